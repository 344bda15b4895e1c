"""What a new session knows of the user's earlier ones."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.rest import RestClient, context_texts
from tests.support.events import dialogue
from tests.support.rows import every_row
from tests.support.services import Serve, running_service
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    return RestClient(await serve())


# Fork


async def forked(api: RestClient, at_turn: int, **more: Any) -> JsonObject:
    answered = await api.post("/v1/sessions/s/fork", {"at_turn": at_turn, "session_id": "f", **more})
    assert 201 == answered.status, answered.body
    return dict(answered.json)


# Carry over


async def call_of(api: RestClient, session_id: str, user_id: str, *texts: str) -> None:
    """A call of a user that has ended."""
    await api.create(session_id, user_id=user_id)
    messages = [{"role": "user", "content": text} for text in texts]
    await api.post(f"/v1/sessions/{session_id}/messages", messages)
    await api.end(session_id)


async def known(api: RestClient, session_id: str) -> list[str]:
    """What the system messages of a context say below their headings."""
    messages = (await api.context("?system=separate", session_id=session_id))["messages"]
    return [one["content"].partition("\n")[2] for one in messages if one["role"] == "system"]


async def test_the_preferences_of_one_call_are_known_in_the_next(api: RestClient) -> None:
    """Those of the same user only, the oldest call first, before everything that is said."""
    await call_of(api, "one", "ann", "I like tea.", "And no sugar.")
    await call_of(api, "two", "ann", "I moved to Bonn.")
    await call_of(api, "other", "bob", "I like coffee.")
    await api.create(
        "now", user_id="ann", memory_from={"sessions": 5}, system_messages=[{"role": "system", "content": "\nBe kind."}]
    )
    await api.post("/v1/sessions/now/messages", {"role": "user", "content": "Hello."})
    assert ["Be kind.", "user: I like tea.\nuser: And no sugar.", "user: I moved to Bonn."] == await known(api, "now")
    assert "Hello." == context_texts(await api.context(session_id="now"))[-1]
    assert "From an earlier call with this user, begun 20" in context_texts(await api.context(session_id="now"))[0]


async def test_goals_of_one_call_are_unknown_in_another(api: RestClient) -> None:
    """Nothing is carried without `memory_from`, without a user, or from a call that still runs."""
    await call_of(api, "one", "ann", "Book a table.")
    await api.create("plain", user_id="ann")
    assert ["`memory_from` has no effect"] == [
        one[:27] for one in (await api.create("nobody", memory_from={}))["warnings"]
    ]
    await api.create("carol", user_id="carol", memory_from={})
    for session_id in ("plain", "nobody", "carol"):
        assert [] == await known(api, session_id)


@pytest.mark.parametrize(
    ("memory_from", "expected"),
    [
        ({"sessions": 1, "what": "messages", "max_messages": 1}, ["user: 4"]),
        ({"sessions": 2, "what": "messages", "max_messages": 3}, ["user: 1", "user: 2\nuser: 3\nuser: 4"]),
        ({"sessions": 16}, ["user: 0", "user: 1", "user: 2\nuser: 3\nuser: 4"]),
    ],
)
async def test_how_much_is_carried_is_configured(api: RestClient, memory_from: JsonObject, expected: list[str]) -> None:
    """So many calls, and so many messages of each."""
    await call_of(api, "one", "ann", "0")
    await call_of(api, "two", "ann", "1")
    await call_of(api, "three", "ann", "2", "3", "4")
    await api.create("now", user_id="ann", memory_from=memory_from)
    assert expected == await known(api, "now")


async def test_a_summary_is_carried_with_what_it_does_not_stand_for(serve: Serve) -> None:
    """The summary, then the messages after it."""
    app = await serve()
    api = RestClient(app)
    await api.create("one", user_id="ann")
    await api.send(*dialogue(3), session_id="one")
    stream = await app.services.store.journal.get_session("default", "one")
    summary = b'{"type":"memory.summary","through_turn":2,"text":"They greeted.","messages":4}'
    await app.services.store.journal.append_server_event(
        stream.key, summary, stream.position, app.services.runtime.clock()
    )
    await api.end("one")
    await api.create("two", user_id="ann", memory_from={})
    await api.create("three", user_id="ann", memory_from={"what": "messages", "max_messages": 2})
    assert ['Summary of what was said: "They greeted."\nuser: Q3\nassistant: A3'] == await known(api, "two")
    assert ["user: Q3\nassistant: A3"] == await known(api, "three")


async def test_what_was_carried_stays(serve: Serve, tmp_path: Path) -> None:
    """Journaled once, whatever ends or is erased afterwards, also after a restart; forgotten with everything."""
    async with running_service(store=f"sqlite:{tmp_path}/db") as app:
        api = RestClient(app)
        await call_of(api, "one", "ann", "I like tea.")
        await api.create("now", user_id="ann", memory_from={"sessions": 3}, idle_timeout=0)
        assert ["user: I like tea."] == await known(api, "now")
        await call_of(api, "two", "ann", "I like milk.")
        await api.delete("/v1/sessions/one")
        assert ["user: I like tea."] == await known(api, "now")
    api = RestClient(await serve(store=f"sqlite:{tmp_path}/db"))
    assert ["user: I like tea."] == await known(api, "now")
    assert ["memory.carried"] == [row["event"]["type"] for row in await api.journal("now")]
    await api.create("later", user_id="ann", memory_from={"sessions": 3})
    assert ["user: I like milk."] == await known(api, "later")
    await api.post("/v1/sessions/now/forget", {})
    assert [] == await known(api, "now")


async def test_it_is_journaled_once(api: RestClient) -> None:
    """Whoever asks at the same time."""
    await call_of(api, "one", "ann", "I like tea.")
    await api.create("now", user_id="ann", memory_from={})
    await asyncio.gather(*(api.context(session_id="now") for _ in range(8)))
    assert ["memory.carried"] == [row["event"]["type"] for row in await api.journal("now")]


async def test_what_was_forgotten_is_not_carried(api: RestClient) -> None:
    """Contexts of later calls do not bring it back either."""
    await call_of(api, "one", "ann", "My number is 4711.", "I like tea.")
    await api.post("/v1/sessions/one/forget", {"through_turn": 1})
    await api.create("now", user_id="ann", memory_from={})
    assert ["user: I like tea."] == await known(api, "now")


async def test_a_fork_knows_what_its_original_was_told(api: RestClient) -> None:
    """It carries nothing over of its own, not even its original."""
    await call_of(api, "one", "ann", "I like tea.")
    await api.create("s", user_id="ann", memory_from={})
    await api.context()
    await api.send(*dialogue(1))
    await api.end()
    await forked(api, 1)
    assert await known(api, "s") == await known(api, "f") == ["user: I like tea."]


async def test_a_fork_for_somebody_else_knows_nothing_of_the_first(api: RestClient) -> None:
    """What was carried over from the calls of one user is not for another."""
    await call_of(api, "one", "ann", "I like tea.")
    await api.create("s", user_id="ann", memory_from={})
    await api.context()
    await api.send(*dialogue(1))
    await api.post("/v1/sessions/s/fork", {"at_turn": 1, "session_id": "f", "user_id": "bob"})
    assert [] == await known(api, "f")
    assert "tea" not in str(await api.journal("f"))


async def test_calls_in_which_nothing_was_said_are_passed_over(api: RestClient) -> None:
    """They are none of the calls that are carried, however many there were."""
    await call_of(api, "one", "ann", "I like tea.")
    await call_of(api, "two", "ann", "I moved.")
    for number in range(18):
        await call_of_nothing(api, f"empty{number}")
    await api.create("now", user_id="ann", memory_from={"sessions": 2})
    assert ["user: I like tea.", "user: I moved."] == await known(api, "now")


async def call_of_nothing(api: RestClient, session_id: str) -> None:
    """A call of Ann's that was hung up at once."""
    await api.create(session_id, user_id="ann")
    await api.end(session_id)


async def test_behind_a_summary_there_is_no_silent_gap(serve: Serve) -> None:
    """All messages after it follow, however many; where they are too long, how many are left out is said."""
    app = await serve()
    api = RestClient(app)
    for session_id, length in (("short", 10), ("long", 1600)):
        await api.create(session_id, user_id=session_id)
        texts = [f"{number:02}".ljust(length, "x") for number in range(1, 17)]
        messages = [{"role": "user", "content": text} for text in texts]
        await api.post(f"/v1/sessions/{session_id}/messages", messages)
        stream = await app.services.store.journal.get_session("default", session_id)
        summary = b'{"type":"memory.summary","through_turn":2,"text":"They greeted.","messages":2}'
        await app.services.store.journal.append_server_event(
            stream.key, summary, stream.position, app.services.runtime.clock()
        )
        await api.end(session_id)
        await api.create(f"after-{session_id}", user_id=session_id, memory_from={"max_messages": 3})
    (text,) = await known(api, "after-short")
    assert [
        'Summary of what was said: "They greeted."',
        *(f"user: {n:02}xxxxxxxx" for n in range(3, 17)),
    ] == text.split("\n")
    (text,) = await known(api, "after-long")
    assert ['Summary of what was said: "They greeted."', "(… 4 messages left out)"] == text.split("\n")[:2]
    assert [f"user: {n:02}" for n in range(7, 17)] == [line[:8] for line in text.split("\n")[2:]]


@every_row("given", [1, {"sessions": 0}, {"sessions": 17}, {"what": "all"}, {"max_messages": 0}, {"x": 1}])
async def test_bad_settings_are_refused(api: RestClient, given: Any) -> None:
    """As any setting that cannot be."""
    assert (400, "invalid_field") == (await api.post("/v1/sessions", {"memory_from": given})).problem


# Users


async def test_the_sessions_of_a_user_are_listed(api: RestClient) -> None:
    """In pages, the newest first, and those of no one else."""
    for number in range(3):
        await call_of(api, f"s{number}", "ann:ä /x", "Hello.")
    await call_of(api, "other", "bob", "Hello.")
    path = "/v1/users/ann:%C3%A4%20%2Fx/sessions"
    page = (await api.get(f"{path}?limit=2&state=ended")).json
    rest = (await api.get(f"{path}?limit=2&cursor={page['next_cursor']}")).json
    assert ["s2", "s1", "s0"] == [one["session_id"] for one in (*page["sessions"], *rest["sessions"])]
    assert None is rest["next_cursor"]
    assert [] == (await api.get("/v1/users/carol/sessions")).json["sessions"]


@pytest.mark.parametrize("user_id", ["x" * 129, "%ED%A0%80", "%00"])
async def test_an_odd_user_has_no_sessions(api: RestClient, user_id: str) -> None:
    """What cannot be an id is refused, and what can be is someone without sessions."""
    answered = await api.get(f"/v1/users/{user_id}/sessions")
    assert answered.status in (200, 400)
    assert [] == answered.json["sessions"] if answered.status == 200 else answered.problem
