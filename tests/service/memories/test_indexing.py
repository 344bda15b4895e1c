"""How the index follows the journals of a running service, and of several."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from hypothesis import given

from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.plain_fold.calls import call_closed
from tests.support.profiles import examples
from tests.support.random_calls.strategies import calls
from tests.support.services import Serve, node_on
from tests.support.stores.contract import example_numbers
from tests.support.stores.heard import found_texts
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.memory.transcript_index import MADE_AT_ONCE
from voicemem.protocol.types import JsonObject
from voicemem.store.port import Store
from voicemem.store.sqlite.store import InMemoryStore

SERVERS_OWN = (call_closed(0)["type"], "session.reopened", "session.end")


async def test_the_background_indexes_without_any_search(app: App) -> None:
    """What is asked of the store itself is there soon, once a call is over."""
    api = RestClient(app)
    await api.create()
    await api.send(final(1, "walnuts", 1_000))
    await api.end()

    async def found() -> list[str]:
        return await found_texts(app.services.store, "walnuts", "default")

    await eventually(["walnuts"], found)


async def test_a_running_session_waits_until_it_is_indexed_first(app: App) -> None:
    """Its first words are hardly worth a pass; what was indexed for a search is due at once where the service adds."""
    api, indexer = RestClient(app), app.services.indexer
    await api.create()
    await api.send(final(1, "walnuts", 1_000))
    stream = await app.services.store.journal.get_session("default", "s")
    assert [] == await indexer.find_due()
    await indexer.index_first(lambda stream: True)
    indexer.note(stream)
    assert [stream.key] == await indexer.find_due()


async def test_many_running_sessions_are_indexed(app: App) -> None:
    """More than are indexed at a time; each once it has changed, whether they are many or few."""
    api, app.services.indexer.running_interval_ms = RestClient(app), 0
    for number in range(60):
        await api.create(f"s{number}")
        await api.send(final(1, f"walnuts {number}", 1_000), session_id=f"s{number}")

    async def count() -> int:
        return len(await found_texts(app.services.store, "walnuts", "default", limit=100))

    await eventually(60, count)


@examples(0.1)
@given(calls())
async def test_the_index_holds_exactly_what_was_heard(app: App, events: list[JsonObject]) -> None:
    """Whatever a call reports, at each moment: its messages as the history has them, and no unheard word."""
    api, session_id = RestClient(app), f"s{next(example_numbers)}"
    await api.create(session_id)
    sent = [{k: v for k, v in event.items() if k != "producer"} for event in events if event["type"] not in SERVERS_OWN]
    for first in range(0, len(sent), 5):
        await api.send(*sent[first : first + 5], session_id=session_id)
        await app.services.indexer.index([*app.services.indexer.changed])
        history = [message["content"] for message in await api.contents(session_id)]
        assert set(await indexed_texts(app, session_id)) <= set(history)
    await api.end(session_id)
    await app.services.indexer.index([*app.services.indexer.changed])
    history = [message["content"] for message in await api.contents(session_id)]
    assert [text for text in history if text.strip()] == await indexed_texts(app, session_id)


async def test_a_long_call_is_indexed_in_parts(app: App) -> None:
    """Each message is in the index once, however many there are, and what comes meanwhile is in the next update."""
    api, indexer = RestClient(app), app.services.indexer
    await api.create("s")
    text = "walnuts " * 8_000
    parts = 2 * MADE_AT_ONCE // len(text)
    for turn in range(1, parts):
        await api.send(final(turn, f"{turn} {text}", 1_000 * turn))
    stream = await app.services.store.journal.get_session("default", "s")
    heard = await indexer.hear(stream)
    assert heard.update.rest
    await app.services.store.transcript_index.index_messages([heard.update])
    await api.send(final(1, "pecans", 500), final(parts, "almonds", 1_000 * parts))
    await indexer.index([*indexer.changed])
    history = [message["content"] for message in await api.contents("s")]
    assert parts == len(history)
    assert history == await indexed_texts(app, "s")


async def indexed_texts(app: App, session_id: str) -> list[str]:
    """All rows of a session in the index, in their order."""
    stream = await app.services.store.journal.find_session("default", session_id)
    assert stream is not None
    store = app.services.store
    assert isinstance(store, InMemoryStore)
    query = "select text, before, turn from transcript_messages where stream = :key order by turn, number"
    rows = await store.index_file.read(lambda connection: connection.rows(query, key=stream.key))
    texts = [str(text) for text, _, _ in rows]
    assert {str(before) for _, before, _ in rows} <= {"", *texts}
    return texts


async def test_what_one_node_stores_another_finds(store: Store) -> None:
    """Each indexes what it has stored, in one index."""
    async with node_on(store) as one, node_on(store) as other:
        await RestClient(one).create(user_id="ann")
        await RestClient(one).send(final(1, "walnuts", 1_000))
        await RestClient(one).end()

        async def found() -> list[str]:
            answer = await RestClient(other).post("/v1/memories/search", {"query": "walnuts", "user_id": "ann"})
            return [memory["text"] for memory in answer.json["memories"]]

        await eventually(["walnuts"], found)


async def test_what_a_lost_node_left_undone_is_done(store: Store) -> None:
    """By whoever looks at all sessions next."""
    async with node_on(store) as one:
        await RestClient(one).create()
        one.services.indexer.changed.clear()
        one.services.recorder.feed.collectors.clear()
        await RestClient(one).send(final(1, "walnuts", 1_000))
        await one.services.indexer.catch_up()
        assert ["walnuts"] == await found_texts(store, "walnuts", "default")


async def test_sessions_that_are_too_many_to_wait_are_indexed_from_their_journals(store: Store) -> None:
    """What a process cannot keep in memory it looks for in the store."""
    async with node_on(store) as one:
        indexer = one.services.indexer
        indexer.max_waiting = indexer.running_interval_ms = 0
        for number in range(3):
            await RestClient(one).create(f"s{number}")
            await RestClient(one).send(final(1, f"walnuts {number}", 1_000), session_id=f"s{number}")

        async def found() -> set[str]:
            return {*await found_texts(store, "walnuts", "default")}

        await eventually({f"walnuts {number}" for number in range(3)}, found)
        assert {} == indexer.changed


async def test_two_producers_on_two_nodes_make_one_index(store: Store) -> None:
    """Whichever node indexes last, everything is there, once."""
    async with node_on(store) as one, node_on(store) as other:
        apis = RestClient(one), RestClient(other)
        await apis[0].create()
        for turn in range(1, 7):
            sent: Any = await apis[turn % 2].send(final(turn, f"walnut{turn}", turn), query=f"?producer=p{turn % 2}")
            assert [] == sent["errors"]
            for app in (one, other)[:: 1 if turn % 3 else -1]:
                await app.services.indexer.index([*app.services.indexer.changed])
        texts = [await found_texts(store, f"walnut{turn}", "default", limit=1) for turn in range(1, 7)]
        assert [[f"walnut{turn}"] for turn in range(1, 7)] == texts


@pytest.mark.long
async def test_the_commands_search_and_index_again(serve: Serve, tmp_path: Path) -> None:
    """`voicemem search` shows what was heard; `voicemem reindex` fills a new index, but not under a server."""
    from tests.process.cli.test_calls import voicemem

    store = f"sqlite:{tmp_path}/db"
    app = await serve(store=store)
    api = RestClient(app)
    await api.create(user_id="ann")
    await api.send(final(1, "I am allergic to walnuts.", 1_790_000_000_000))
    code, output, _ = await voicemem("search", "walnut", "--user-id", "ann", "--url", api.base)
    assert (0, "2026-09-21 14:13  s  user: I am allergic to walnuts.\n") == (code, output)
    code, _, errors = await voicemem("search", "walnut", "--user-id", "ben", "--url", api.base)
    assert (0, True) == (code, "nothing was found" in errors)
    code, _, errors = await voicemem("reindex", "--store", store)
    assert (1, True) == (code, "Another server is already using" in errors)
    await app.stop()
    await app.services.store.close_store()
    (tmp_path / "db-memories").unlink()
    code, output, _ = await voicemem("reindex", "--store", store)
    assert (0, "1 session indexed\n") == (code, output)
    assert (tmp_path / "db-memories").exists()
    code, _, errors = await voicemem("reindex", "--store", f"sqlite:{tmp_path}/mistyped")
    assert (1, True) == (code, "There is no store" in errors)
    assert not (tmp_path / "mistyped").exists()


async def test_the_log_says_that_an_index_was_missing(
    serve: Serve, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """As what happens after a restore or an update, which is no warning; not of a new store."""
    caplog.set_level("INFO", "voicemem")
    line = "1 of 1 sessions were not in the index of heard messages, and are now"
    for is_new in (True, False):
        app = await serve(store=f"sqlite:{tmp_path}/db")
        await app.services.indexer.catch_up()
        said = {(one.levelname, one.getMessage()) for one in caplog.records if "index" in one.getMessage()}
        assert (set() if is_new else {("INFO", line)}) == said
        if is_new:
            await RestClient(app).create()
            await RestClient(app).send(final(1, "Walnuts.", 1_790_000_000_000))
        await app.stop()
        await app.services.store.close_store()
        (tmp_path / "db-memories").unlink()
