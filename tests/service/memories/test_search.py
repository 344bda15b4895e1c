"""What was heard is found over REST, by the client, the library and the command line."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

import voicemem
from tests.support.callers.client_sessions import client_to
from tests.support.callers.rest import RestClient, client_with_key
from tests.support.events import delta, done, final, interrupt
from tests.support.rows import every_row
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.client import ClientError
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

PATH = "/v1/memories/search"
SECRET = "marzipan"
CALL = [
    final(1, "I am allergic to walnuts.", 1_000),
    delta(1, f"Noted. By the way, we have {SECRET}.", 2_000),
    done(1, 2_100),
    interrupt(1, 2_500, heard_text="Noted."),
    final(2, "And my dog is called Rex.", 3_000),
]


async def found(api: RestClient, query: str, **wanted: Any) -> list[str]:
    """The texts that are found, the best first."""
    return [memory["text"] for memory in (await search(api, query, **wanted))["memories"]]


async def search(api: RestClient, query: str, **wanted: Any) -> JsonObject:
    answered = await api.post(PATH, {"query": query, **wanted})
    assert 200 == answered.status, answered.body
    return dict(answered.json)


async def call_of(api: RestClient, session_id: str = "s", **config: Any) -> None:
    await api.create(session_id, **config)
    await api.send(*CALL, session_id=session_id)


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    app = await serve()
    await eventually(True, lambda: asyncio.sleep(0, app.services.indexer.is_complete))
    return RestClient(app)


async def test_what_was_acknowledged_is_found_at_once(api: RestClient) -> None:
    """With where it is from; its words as they were heard."""
    await call_of(api, user_id="ann", labels={"namespace": "shop"})
    answer = await search(api, "Which nuts is she allergic to? walnuts?", user_id="ann")
    assert (None, True) == (answer["next_cursor"], answer["complete"])
    memory = answer["memories"][0]
    assert memory.pop("id").startswith("mem_")
    assert {
        "kind": "message", "text": "I am allergic to walnuts.", "role": "user", "session_id": "s", "user_id": "ann",
        "namespace": "shop", "said_at": 1_000, "score": 1.0, "by": ["words"],
        "from": [{"session_id": "s", "first": 1, "last": 1, "turn_ids": [1]}],
    } == memory  # fmt: skip


async def test_what_was_not_heard_is_not_found(api: RestClient) -> None:
    """The caller cut the agent off before the word came; while a reply may still be cut, none of it is found."""
    await call_of(api)
    assert [] == await found(api, SECRET)
    assert "Noted." in await found(api, "noted")
    await api.send(delta(2, "Rex is a nice name for a dachshund.", 4_000), done(2, 4_100))
    assert [] == await found(api, "dachshund")
    await api.send(interrupt(2, 4_200, heard_text="Rex is a nice name"))
    assert [] == await found(api, "dachshund")
    assert "Rex is a nice name" in await found(api, "nice")


async def test_a_closed_call_is_found_whole(api: RestClient) -> None:
    """Its last reply too."""
    await call_of(api)
    await api.send(delta(2, "What a nice dachshund.", 4_000), done(2, 4_100))
    await api.end()
    assert ["What a nice dachshund."] == await found(api, "dachshund")


async def test_what_was_said_again_replaces_what_was_found(api: RestClient) -> None:
    """A corrected final, in the same turn."""
    await api.create()
    await api.send(final(1, "Wall nuts", 1_000, item="u1"))
    assert ["Wall nuts"] == await found(api, "wall")
    await api.send(final(1, "Walnuts", 1_100, item="u1"))
    assert ([], ["Walnuts"]) == (await found(api, "wall"), await found(api, "walnut"))


async def test_what_was_forgotten_or_erased_is_not_found(api: RestClient) -> None:
    """Forgotten messages of a session, an erased session, an erased user."""
    for name, user in (("a", "ann"), ("b", "ann"), ("c", "ben"), ("d", "ben")):
        await call_of(api, name, user_id=user)
    assert 4 == len(await found(api, "walnuts", limit=4))
    await api.post("/v1/sessions/a/forget", {"through_turn": 1})
    assert [] == [text for text in await found(api, "allergic", session_id="a") if "walnuts" in text]
    assert ["And my dog is called Rex."] == await found(api, "Rex", session_id="a")
    await api.delete("/v1/sessions/b")
    assert [] == await found(api, "walnuts", session_id="b")
    await api.delete("/v1/users/ben")
    assert [] == await found(api, "walnuts", user_id="ben")
    assert {"a"} == {memory["session_id"] for memory in (await search(api, "dog rex"))["memories"]}


async def test_a_call_that_gets_another_user_is_that_users(api: RestClient) -> None:
    """From then on, for all of it; the same holds for its namespace."""
    await call_of(api, user_id="ann")
    assert [] != await found(api, "walnuts", user_id="ann")
    await api.patch("/v1/sessions/s", {"user_id": "ben", "labels": {"namespace": "bank"}})
    assert [] == await found(api, "walnuts", user_id="ann")
    assert [] != await found(api, "walnuts", user_id="ben", namespace="bank")


async def test_forks_and_restored_sessions_are_found(api: RestClient) -> None:
    """As sessions of their own."""
    await call_of(api)
    forked = await api.post("/v1/sessions/s/fork", {"at_turn": 1, "session_id": "f"})
    assert 201 == forked.status
    assert "I am allergic to walnuts." in await found(api, "walnuts", session_id="f")
    assert [] == await found(api, "Rex", session_id="f")


async def test_projects_do_not_see_each_other(serve: Serve) -> None:
    """A key finds what is in its own project, whatever it asks for; one without the scope finds nothing."""
    app = await serve()
    ann = await client_with_key(app, "ingest", "read", project="one")
    ben = await client_with_key(app, "ingest", "read", project="two")
    await call_of(ann, user_id="ann")
    assert [] != await found(ann, "walnuts")
    for wanted in ({}, {"user_id": "ann"}, {"session_id": "s"}):
        assert [] == await found(ben, "walnuts", **wanted)
    sender = await client_with_key(app, "ingest", project="one")
    assert (403, "forbidden") == (await sender.post(PATH, {"query": "walnuts"})).problem


async def holder_of(app: App, admin: RestClient, session_id: str, **body: Any) -> RestClient:
    """A caller with a session token."""
    made = await admin.post(f"/v1/sessions/{session_id}/tokens", body)
    assert 201 == made.status, made.body
    return RestClient(app, made.json["token"])


@pytest.fixture
async def admin(serve: Serve) -> tuple[App, RestClient]:
    """A service with keys: two calls of ann's in a shop, one in a bank, one of bob's, one of no one's."""
    app = await serve()
    admin = await client_with_key(app, "admin")
    for session_id, user_id, namespace in (("a1", "ann", "shop"), ("a2", "ann", "shop"), ("a3", "ann", "bank")):
        await admin.create(session_id, user_id=user_id, labels={"namespace": namespace})
    await admin.create("b1", user_id="bob", labels={"namespace": "shop"})
    await admin.create("n1")
    for session_id in ("a1", "a2", "a3", "b1", "n1"):
        await admin.send(final(1, f"walnuts of {session_id}", 1_000), session_id=session_id)
    return app, admin


async def test_a_session_token_searches_its_session(admin: tuple[App, RestClient]) -> None:
    """And nothing else, whatever it asks for."""
    app, api = admin
    holder = await holder_of(app, api, "a1")
    assert ["walnuts of a1"] == await found(holder, "walnuts")
    assert ["walnuts of a1"] == await found(holder, "walnuts", session_id="a1")
    assert [] == await found(holder, "walnuts", namespace="bank")
    for wider in ({"user_id": "ann"}, {"session_id": "a2"}, {"user_id": "bob", "session_id": "a1"}):
        assert (403, "forbidden") == (await holder.post(PATH, {"query": "walnuts", **wider})).problem
    listed = await holder.get("/v1/sessions?fields=overview")
    assert (403, "forbidden") == listed.problem


async def test_a_token_may_be_made_for_the_memories_of_its_user(admin: tuple[App, RestClient]) -> None:
    """Within the namespace of its session; it also lists the user's calls there, without their configurations."""
    app, api = admin
    holder = await holder_of(app, api, "a1", memories="user")
    assert ["walnuts of a1", "walnuts of a2"] == sorted(await found(holder, "walnuts"))
    assert ["walnuts of a2"] == await found(holder, "walnuts", session_id="a2", user_id="ann", namespace="shop")
    assert [] == await found(holder, "walnuts", session_id="b1")
    for wider in ({"user_id": "bob"}, {"namespace": "bank"}):
        assert (403, "forbidden") == (await holder.post(PATH, {"query": "walnuts", **wider})).problem
    listed = await holder.get("/v1/sessions?fields=overview")
    assert ["a1", "a2"] == sorted(row["session_id"] for row in listed.json["sessions"])
    for query in ("", "?user_id=ann", "?fields=overview&user_id=bob", "?fields=overview&label=namespace:bank"):
        assert (403, "forbidden") == (await holder.get(f"/v1/sessions{query}")).problem
    assert (403, "forbidden") == (await holder.get("/v1/sessions/a2/history")).problem


async def test_a_token_for_the_memories_of_nobody_has_its_session(admin: tuple[App, RestClient]) -> None:
    """Where the session has no user, there is nothing more to reach."""
    app, api = admin
    holder = await holder_of(app, api, "n1", memories="user")
    assert ["walnuts of n1"] == await found(holder, "walnuts")


async def test_pages_follow_each_other(api: RestClient) -> None:
    """Without holes; a cursor of another search is refused."""
    await api.create()
    await api.send(*(final(turn, f"walnut {turn}", turn) for turn in range(1, 8)))
    first = await search(api, "walnut", limit=3)
    second = await search(api, "walnut", limit=3, cursor=first["next_cursor"])
    third = await search(api, "walnut", limit=3, cursor=second["next_cursor"])
    texts = [memory["text"] for page in (first, second, third) for memory in page["memories"]]
    assert (None, 7, sorted(texts)) == (third["next_cursor"], len(texts), sorted(await found(api, "walnut", limit=100)))
    for wanted in ({"query": "walnuts"}, {"query": "walnut", "user_id": "ann"}):
        assert (400, "invalid_cursor") == (await api.post(PATH, {**wanted, "cursor": first["next_cursor"]})).problem


BAD = [
    {},
    {"query": ""},
    {"query": 3},
    {"query": None},
    {"query": "x" * 4_001},
    {"query": "x", "limit": 0},
    {"query": "x", "limit": 101},
    {"query": "x", "limit": "10"},
    {"query": "x", "user_id": ""},
    {"query": "x", "user_id": 5},
    {"query": "x", "user_id": ["ann"]},
    {"query": "x", "user_id": None},
    {"query": "x", "session_id": None},
    {"query": "x", "namespace": None},
    {"query": "x", "session_id": "a b"},
    {"query": "x", "since": "yesterday"},
    {"query": "x", "until": 1.5},
    {"query": "x", "until": 2**54},
    {"query": "x", "kinds": []},
    {"query": "x", "kinds": ["facts"]},
    {"query": "x", "kinds": "message"},
    {"query": "x", "mode": "vectors"},
    {"query": "x", "mode": "meaning"},
    {"query": "x", "topics": "food"},
    {"query": "x", "user_id": {"eq": "ann"}},
]


@every_row("body", BAD, ids=str)
async def test_bad_searches_are_refused(api: RestClient, body: JsonObject) -> None:
    """Filters of wrong types, and those that there are not, are refused and never left out."""
    assert (400, "invalid_field") == (await api.post(PATH, body)).problem


@every_row("cursor", ["", "x", "AAAA", "é", "A" * 300, "W10"])
async def test_bad_cursors_are_refused(api: RestClient, cursor: str) -> None:
    """Whatever they are."""
    assert (400, "invalid_cursor") == (await api.post(PATH, {"query": "x", "cursor": cursor})).problem


async def test_odd_texts_harm_nothing(api: RestClient) -> None:
    """Long ones, quotes, controls, words of the engine's language; what can be found, is."""
    await api.create()
    odd = ['"', "a OR b NOT c", "x*", 'scope : "a"', "nul\0 walnut", "walnut " * 20_000, "\u202e", "ａｂ"]
    await api.send(*(final(turn, text, turn) for turn, text in enumerate(odd, 1)))
    for query in (*odd[:5], *odd[6:], "'", "%", "NEAR(walnut)", "walnut\0", "-walnut", "{said} : walnut"):
        await found(api, query)
    assert {odd[4].replace("\0", "\ufffd"), odd[5]} <= set(await found(api, "walnut"))
    assert [odd[7]] == (await found(api, "AB"))[:1]


async def test_a_restarted_service_finds_what_was_not_indexed(serve: Serve, tmp_path: Path) -> None:
    """Also when the index is gone; until it is made again, the answer says that something may be missing."""
    store = f"sqlite:{tmp_path}/db"
    async with running_service(store=store) as app:
        await call_of(RestClient(app))
    (tmp_path / "db-memories").unlink(missing_ok=True)
    async with running_service(store=store) as app:
        api = RestClient(app)

        async def first_of_complete() -> tuple[bool, str]:
            answer = await search(api, "walnuts")
            return answer["complete"], answer["memories"][0]["text"] if answer["memories"] else ""

        await eventually((True, "I am allergic to walnuts."), first_of_complete)


async def test_the_client_searches(serve: Serve) -> None:
    """As the REST API answers; without its address it says so."""
    app: App = await serve()
    await call_of(RestClient(app), user_id="ann")
    async with client_to(app) as client:
        answer = await client.search("walnuts", user_id="ann", limit=1)
    assert ["I am allergic to walnuts."] == [memory["text"] for memory in answer["memories"]]
    without = voicemem.client.Client(f"ws://{app.ingest_address}")
    with pytest.raises(ClientError, match="REST"):
        await without.search("walnuts")


async def test_the_library_searches(tmp_path: Path) -> None:
    """What was added just now, and what another process left in the file."""
    for query in ("walnuts", "rex"):
        async with voicemem.open(f"sqlite:{tmp_path}/db") as library:
            call = await library.create(user_id="ann")
            await call.record(*CALL)
            answer = await library.search(query, user_id="ann")
            assert answer.complete
            assert answer.memories[0].text in ("I am allergic to walnuts.", "And my dog is called Rex.")
            with pytest.raises(Refused):
                await library.search(query, topics="food")
    async with voicemem.open(f"sqlite:{tmp_path}/db") as library:
        found = (await library.search("walnuts", limit=100)).memories
        assert 2 == sum(memory.text == "I am allergic to walnuts." for memory in found)


async def test_a_long_conversation_is_found_right_after_its_last_ack(api: RestClient) -> None:
    """Of many sessions that were added over REST one after another: each message at once, and nothing twice."""
    days, length = 35, 30
    for day in range(days):
        await api.create(f"day{day}", user_id="ann")
        said = [{"role": "user" if n % 2 else "assistant", "content": f"On word{day}x{n}."} for n in range(length)]
        assert 200 == (await api.post(f"/v1/sessions/day{day}/messages", said)).status
    for day in reversed(range(days)):
        number = day % length
        assert f"On word{day}x{number}." == (await found(api, f"word{day}x{number}", user_id="ann"))[0]
    seen = await found(api, "on", user_id="ann", limit=100)
    assert (100, 100) == (len(seen), len(set(seen)))
