"""The slim list of sessions over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import delta, dialogue, done, event, final, interrupt
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.server.rest.sessions import PAGE
from voicemem.store import overviews as slim_rows
from voicemem.store.session_filters import SessionFilter


@pytest.fixture(autouse=True)
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Figures are made at once."""
    monkeypatch.setattr("voicemem.services.PAUSE_S", 0.01)


async def rows(api: RestClient, query: str = "") -> list[JsonObject]:
    answered = await api.get(f"/v1/sessions?fields=overview{query}")
    assert 200 == answered.status, answered.body
    return list(answered.json["sessions"])


async def test_a_row_shows_figures_and_no_configuration(api: RestClient) -> None:
    """What a running call's memory holds now, with the words that are in progress, and nothing of its LLM."""
    created = await api.create(
        name="desk", user_id="ann", labels={"tier": "vip"}, system_messages=[{"role": "system", "content": "x" * 2000}]
    )
    await api.send(
        *dialogue(1),
        final(2, "Tell me more.", 3),
        delta(2, "It is a long story.", 4),
        done(2, 4),
        interrupt(2, 5, heard_text="It is "),
        event("metric", 1, name="e2e", latency_ms=700),
        event("metric", 2, name="e2e", latency_ms=840.0),
        event("asr", 3, 6, text="And th", final=False),
    )
    await api.contents()  # brings the memory into the cache, as the open of a producer does
    (row,) = await rows(api)
    assert created["started_at"] <= row.pop("active_at")
    shown = row["figures"]["strip"]
    assert {"user", "agent", "unheard", "cut"} == {lane for lane, _, _ in shown["lanes"]}
    assert row == {
        "session_id": "s",
        "name": "desk",
        "user_id": "ann",
        "labels": {"tier": "vip"},
        "state": "running",
        "reason": None,
        "started_at": created["started_at"],
        "ended_at": None,
        "webhooks": None,
        "figures": {
            "turns": 2,
            "interruptions": 1,
            "unheard": 13,
            "slowest_ms": 840,
            "last": {"role": "user", "text": "And th", "open": True},
            "strip": shown,
            "reply_after_ms": 700,
            "outcome": None,
        },
    }


async def figures(api: RestClient, session_id: str = "s") -> Any:
    return {row["session_id"]: row["figures"] for row in await rows(api)}[session_id]


def everything() -> SessionFilter:
    return SessionFilter(project="default")


async def test_figures_are_there_after_the_close_without_the_memory(tmp_path: Path) -> None:
    """They are saved at the close, so that a later process shows them and folds nothing."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as app:
        api = RestClient(app)
        await api.create()
        await api.send(*dialogue(3))
        await api.contents()
        shown = await figures(api)
        assert 3 == shown["turns"]
        await api.end()

        async def is_saved() -> bool:
            ((row,), _) = await app.services.store.overviews.list_overviews(everything())
            return row.figures is not None and row.figures_position == row.position

        await eventually(True, is_saved)
    async with running_service(store=store) as app:
        api = RestClient(app)
        assert shown == await figures(api)
        assert ({}, {}) == (dict(app.services.read_models.cached), app.services.overviews.pending)


async def test_what_is_not_known_is_null_and_then_made(tmp_path: Path) -> None:
    """Figures that were never saved are null in the first list, and there soon after."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as app:
        api = RestClient(app)
        await api.create(idle_timeout=0)
        await api.send(*dialogue(2))
    async with running_service(store=store) as app:
        api = RestClient(app)
        assert None is (await rows(api))[0]["figures"]

        async def turns() -> Any:
            found = await figures(api)
            return found and found["turns"]

        await eventually(2, turns)


async def test_filters_and_pages_are_those_of_the_list(api: RestClient) -> None:
    """A long slim list comes in pieces, and its cursors go on where it stands, under every filter."""
    names = [f"s{number}" for number in range(2 * PAGE + 3)]
    for name in names:
        await api.create(name, labels={"even": str(int(name[1:]) % 2 == 0)}, user_id="ann")
    await api.end("s4")
    answered = await api.get("/v1/sessions?fields=overview&limit=1000")
    assert "chunked" == answered.headers["Transfer-Encoding"]
    assert names[::-1] == [row["session_id"] for row in answered.json["sessions"]]
    met: list[str] = []
    cursor: str | None = ""
    while cursor is not None:
        page = (await api.get(f"/v1/sessions?fields=overview&state=running&label=even:True&limit=7{cursor}")).json
        met += [row["session_id"] for row in page["sessions"]]
        cursor = page["next_cursor"] and f"&cursor={page['next_cursor']}"
    assert [name for name in names[::-1] if int(name[1:]) % 2 == 0 and name != "s4"] == met
    assert ["s4"] == [row["session_id"] for row in await rows(api, "&state=ended&user_id=ann")]


async def test_a_row_is_bounded(api: RestClient) -> None:
    """However large the configuration, the labels, the name, the reason and the last words are."""
    labels = {f"label{number}": "x" * 3000 for number in range(64)}
    await api.create(name="n" * 9000, labels=labels)
    await api.send(final(1, "w" * 100_000, 1))
    await api.end(reason="r" * 9000)

    async def last() -> Any:
        found = await figures(api)
        return found and found["last"]["text"]

    await eventually("w" * 160, last)
    answered = await api.get("/v1/sessions?fields=overview")
    (row,) = answered.json["sessions"]
    assert (160, None, 160) == (len(row["name"]), row["labels"], len(row["reason"]))
    assert len(answered.body) < 2000


async def test_a_changed_session_is_shown_as_it_is_now(api: RestClient) -> None:
    """Name, user and labels follow patches and updates."""
    await api.create(name="a", user_id="ann", labels={"x": "1"})
    await api.patch("/v1/sessions/s", {"name": None, "labels": {"y": "2"}})
    await api.send({"type": "session.update", "user_id": "bob"})
    (row,) = await rows(api)
    assert (None, "bob", {"x": "1", "y": "2"}) == (row["name"], row["user_id"], row["labels"])


async def test_an_erased_session_leaves_nothing(app: App, api: RestClient) -> None:
    """Neither a row, nor what was saved of it."""
    await api.create(user_id="ann")
    await api.send(*dialogue(1))
    await api.end()
    await api.delete("/v1/sessions/s")
    assert [] == await rows(api)
    store: Any = app.services.store

    async def left() -> Any:
        return await store.database.read(lambda connection: connection.one("select count(*) from overviews")[0])

    await eventually(0, left)


async def test_a_session_that_is_quarantined_has_no_figures(app: App, api: RestClient) -> None:
    """It stands in the list as any other."""
    await api.create()
    stream = await app.services.store.journal.get_session("default", "s")
    app.services.read_models.discard(stream.key)
    await app.services.read_models.quarantined.add(stream.key, ValueError())
    await app.services.overviews.make_pending()
    assert None is await figures(api)
    await app.services.overviews.make_pending()
    assert None is await figures(api)


async def test_projects_do_not_see_each_other(serve: Serve) -> None:
    """Slim rows are those of the key's project."""
    app = await serve()
    one = await client_with_key(app, "admin", project="one")
    other = await client_with_key(app, "admin", project="other")
    await one.create()
    assert ([], 1) == (await rows(other), len(await rows(one)))


@pytest.mark.parametrize("query", ["fields=slim", "fields=overview&limit=1001", "fields=overview&cursor=x"])
async def test_bad_queries_are_refused(api: RestClient, query: str) -> None:
    """As for the whole list."""
    assert 400 == (await api.get(f"/v1/sessions?{query}")).status


async def test_slim_rows_are_filtered_by_what_happened(app: App, api: RestClient) -> None:
    """By interruptions and latencies, also of running calls once a list has shown them; and counted."""
    await api.create("cut")
    await api.send(*dialogue(1), interrupt(1, 5, heard_text=""), session_id="cut")
    await api.create("slow")
    await api.send(*dialogue(1), event("metric", 1, name="e2e", latency_ms=1500.5), session_id="slow")
    await api.create("quiet")
    await api.end("quiet")

    async def found(query: str) -> list[str]:
        return [row["session_id"] for row in await rows(api, query)]

    for query, expected in (
        ("&interrupted=true", ["cut"]),
        ("&slow=1500", ["slow"]),
        ("&slow=1501", []),
        ("&webhook=pending", []),
        ("&interrupted=false&state=running", ["slow"]),
    ):

        async def is_found(query: str = query) -> list[str]:
            await rows(api)
            return await found(query)

        await eventually(expected, is_found)
    answered = (await api.get("/v1/sessions?fields=overview&limit=1&count=true")).json
    assert (3, 1) == (answered["total"], len(answered["sessions"]))
    assert "total" not in (await api.get("/v1/sessions?fields=overview")).json
    full = (await api.get("/v1/sessions?slow=1500")).json["sessions"]
    assert ["slow"] == [session["session_id"] for session in full]


async def test_a_page_of_few_among_many_ends_early(api: RestClient, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its cursor leads on to the rest."""
    monkeypatch.setattr(slim_rows, "MAX_LOOKS", 2)
    for number in range(7):
        await api.create(f"s{number}", labels={"rare": str(number in (0, 6))})
    met, cursor, pages = [], "", 0
    while pages < 20:
        page = (await api.get(f"/v1/sessions?fields=overview&label=rare:True{cursor}")).json
        met += [row["session_id"] for row in page["sessions"]]
        pages += 1
        if page["next_cursor"] is None:
            break
        cursor = f"&cursor={page['next_cursor']}"
    assert (["s6", "s0"], True) == (met, pages > 2)


async def test_slim_rows_are_found_by_words(serve: Serve) -> None:
    """What was heard in them, ids and users, each in the key's project; other filters hold too."""
    app = await serve()
    one = await client_with_key(app, "admin", project="one")
    other = await client_with_key(app, "admin", project="other")
    for api in (one, other):
        await api.create("call-1", user_id="ann")
        await api.create("call-2", user_id="bob")
    await one.send(final(1, "I like walnut cake.", 1), session_id="call-1")
    await one.send(delta(1, "Walnuts? Not heard.", 1), session_id="call-2")
    await one.end("call-1")

    async def found(query: str, api: RestClient = one) -> list[str]:
        return [row["session_id"] for row in await rows(api, query)]

    await eventually(["call-1"], lambda: found("&q=walnuts"))
    assert [] == await found("&q=walnuts", other) == await found("&q=walnut&state=running") == await found("&q=???")
    assert ["call-2", "call-1"] == await found("&q=call-", other)
    assert ["call-2"] == await found("&q=bo") == await found("&q=call&user_id=bob")
    full = (await one.get("/v1/sessions?q=walnut")).json["sessions"]
    assert ["call-1"] == [session["session_id"] for session in full]
