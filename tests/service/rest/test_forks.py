"""Forks over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.callers.producer import open_over_websocket, send_over_websocket
from tests.support.callers.rest import LOOPBACK, RestClient, context_texts
from tests.support.events import JOKE, delta, dialogue, done, final, interrupt, partial, tts
from tests.support.rows import every_row
from tests.support.servers.webhook_receiver import webhook_receiver
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    return RestClient(await serve())


async def forked(api: RestClient, at_turn: int, **more: Any) -> JsonObject:
    answered = await api.post("/v1/sessions/s/fork", {"at_turn": at_turn, "session_id": "f", **more})
    assert 201 == answered.status, answered.body
    return dict(answered.json)


async def test_a_dropped_call_goes_on_in_a_fork(serve: Serve) -> None:
    """The fork runs, its next turn is the one after, and unnamed playback is about what is said in it."""
    app = await serve()
    api = RestClient(app)
    await api.create(user_id="ann")
    await api.send(*dialogue(2), final(3, "Tell me", 3), delta(3, JOKE, 3), partial(4, "I"))
    await api.end()
    before = [message for message in await api.contents() if message["turn_id"] <= 3]
    made = await forked(api, 3, labels={"again": "yes"})
    assert ("running", {"user_id": "ann", "labels": {"again": "yes"}}) == (made["state"], made["config"])
    assert before == await api.contents("f")
    assert 4 == (await open_over_websocket(app, "f"))["next_turn"]
    going_on = [final(None, "Go on."), delta(None, "So it won."), done(), tts(heard_text="So it "), interrupt()]
    await send_over_websocket(app, going_on, session_id="f", producer="engine")
    contents = await api.contents("f")
    assert before == contents[:-2]
    assert ["Go on.", "So it "] == [one["content"] for one in contents[-2:]]
    assert 4 == contents[-1]["turn_id"]
    assert {"type": "session.forked", "from_session": "s", "at_turn": 3} in [
        row["event"] for row in await api.journal("f")
    ]


async def test_a_fork_knows_what_was_known_then(api: RestClient) -> None:
    """Tool calls, latencies and what is forgotten go with it; a later summary does not."""
    await api.create()
    call = {"turn_id": 1, "call_id": "c"}
    tools = [
        {"type": "tool.call", "name": "f", "arguments": {"a": 1}, **call},
        {"type": "tool.result", "result": [1], **call},
    ]
    metric = {"type": "metric", "turn_id": 2, "name": "e2e", "latency_ms": 7.5}
    await api.send(*dialogue(1), *tools, *dialogue(3)[3:], metric)
    original = await api.context("?tools=true")
    await forked(api, 3)
    assert original == await api.context("?tools=true", "f")
    turns = [(await api.get(f"/v1/sessions/{name}/turns")).json["turns"] for name in ("s", "f")]
    assert turns[0][1]["metrics"] == turns[1][1]["metrics"]
    assert [turn["start"] for turn in turns[0]] == [turn["start"] for turn in turns[1]]
    await api.post("/v1/sessions/s/forget", {"keep_last": 3})
    await api.post("/v1/sessions/s/fork", {"at_turn": 2, "session_id": "g"})
    assert ["A2"] == context_texts(await api.context("?tools=true", "g"))
    assert 4 == len(await api.contents("g"))


async def test_a_fork_says_how_its_turns_ended(api: RestClient) -> None:
    """With the time and the cause of an interruption, also in a fork of the fork."""
    await api.create()
    cut = [delta(2, "0123456789"), done(2), interrupt(2, heard_text="012", cause="api_interrupt")]
    await api.send(*dialogue(1), final(2, "Q2"), *cut)
    await forked(api, 2)
    await api.post("/v1/sessions/f/fork", {"at_turn": 2, "session_id": "g"})
    ends = [(await api.get(f"/v1/sessions/{name}/turns")).json["turns"][1]["end"] for name in ("s", "f", "g")]
    assert ("interrupted", {"caused_by": "api_interrupt"}) == (ends[0]["type"], ends[0]["metadata"])
    assert ends[0] == ends[1] == ends[2]
    assert await api.contents("s") == await api.contents("f") == await api.contents("g")


async def test_a_fork_has_the_summary_of_its_turn(serve: Serve) -> None:
    """The newest that stands for no later turn; none that stands for what was forgotten since."""
    app = await serve()
    api = RestClient(app)
    await api.create(memory={"policy": "summary"})
    await api.send(*dialogue(3))
    for turn in (1, 2, 3):
        stream = await app.services.store.journal.get_session("default", "s")
        text = b'{"type":"memory.summary","through_turn":%d,"text":"Up to %d.","messages":%d}' % (turn, turn, 2 * turn)
        await app.services.store.journal.append_server_event(
            stream.key, text, stream.position, app.services.runtime.clock()
        )
    await forked(api, 2)
    context = context_texts(await api.context(session_id="f"))
    assert "Up to 2." in context[0]
    assert 1 == len(context)
    await api.post("/v1/sessions/s/forget", {"through_turn": 1})
    stream = await app.services.store.journal.get_session("default", "s")
    await app.services.store.journal.append_server_event(
        stream.key, text, stream.position, app.services.runtime.clock()
    )
    await api.post("/v1/sessions/s/fork", {"at_turn": 2, "session_id": "g"})
    assert ["Q2", "A2"] == context_texts(await api.context(session_id="g"))


@pytest.mark.parametrize("wish", [{"through_turn": 1}, {"keep_last": 1}])
async def test_a_fork_does_not_bring_back_what_was_forgotten(api: RestClient, wish: JsonObject) -> None:
    """What comes late for it is nothing, though it names an item alone."""
    await api.create()
    await api.send(final(1, "Q1", item="u1"), delta(1, "A1", item="r1"), done(1, item="r1"))
    await api.post("/v1/sessions/s/forget", wish)
    await forked(api, 1)
    await api.post("/v1/sessions/f/fork", {"at_turn": 1, "session_id": "g"})
    for fork in ("f", "g"):
        before = await api.context(session_id=fork)
        late = [delta(None, "A1 again", item="r1"), done(item="r1")] if "through_turn" in wish else []
        await api.send(final(None, "Q1 again", item="u1"), *late, session_id=fork)
        assert before == await api.context(session_id=fork)


async def test_a_fork_before_the_first_turn_is_an_empty_memory(api: RestClient) -> None:
    """Also where the call has no turn 0; the next turn is the first."""
    await api.create()
    await api.send(*dialogue(2))
    await forked(api, 0)
    assert [] == await api.contents("f")
    await api.post("/v1/sessions/f/messages", {"role": "user", "content": "Anew."})
    assert [1] == [one["turn_id"] for one in await api.contents("f")]


async def test_erasing_the_original_leaves_its_forks(api: RestClient) -> None:
    """And the other way round."""
    await api.create()
    await api.send(*dialogue(1))
    await forked(api, 1)
    await api.delete("/v1/sessions/s")
    assert ["Q1", "A1"] == context_texts(await api.context(session_id="f"))


async def test_a_fork_keeps_the_secrets(serve: Serve) -> None:
    """Its own webhook is signed with the secret of the original."""
    async with webhook_receiver() as receiver:
        app = await serve(allow_addresses=LOOPBACK)
        api = RestClient(app)
        await api.create(webhook={"url": receiver.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
        await api.send(*dialogue(1))
        await forked(api, 1)
        (endpoint,) = [one async for one in endpoints_of(app.services.store, "f")]
        assert "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" == endpoint
        await api.end("f")
        assert "f" == (await receiver.one()).json["sid"]


async def endpoints_of(store: Any, session_id: str) -> Any:
    stream = await store.journal.find_session("default", session_id)
    query = "select secret from endpoints where stream = :key"
    for (secret,) in await store.database.read(lambda c: c.rows(query, key=stream.key)):
        yield secret


BAD_FORKS: list[tuple[Any, tuple[int, str]]] = [
    ({"at_turn": 7}, (404, "unknown_turn")),
    ({"at_turn": 2**53}, (404, "unknown_turn")),
    ({"at_turn": -1}, (400, "invalid_field")),
    ({"at_turn": None}, (400, "invalid_field")),
    ({"at_turn": True}, (400, "invalid_field")),
    ({}, (400, "invalid_field")),
    ({"at_turn": 1, "session_id": "s"}, (409, "session_exists")),
    ({"at_turn": 1, "session_id": "a b"}, (400, "invalid_field")),
    ({"at_turn": 1, "magic": 1}, (400, "invalid_field")),
    ({"at_turn": 1, "memory": {"policy": "magic"}}, (400, "invalid_field")),
    ({"at_turn": 1, "memory_from": {"sessions": 17}}, (400, "invalid_field")),
    ([], (400, "not_events")),
]


@every_row(("body", "told"), BAD_FORKS, ids=str)
async def test_a_bad_fork_makes_no_session(in_dialogue: RestClient, body: Any, told: tuple[int, str]) -> None:
    """Each gets its code."""
    assert told == (await in_dialogue.post("/v1/sessions/s/fork", body)).problem
    assert ["s"] == [one["session_id"] for one in (await in_dialogue.get("/v1/sessions")).json["sessions"]]
