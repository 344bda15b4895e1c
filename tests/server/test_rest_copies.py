"""Checkpoints, forks and what is carried over, over REST."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import gzip
import io
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from callers import LOOPBACK, Answered, Caller, JsonObject, Serve, keyed, opening, produce, receiving, said, service
from calls import JOKE, delta, dialogue, done, final, interrupt, partial, tts

REPLY = {"type": "message", "role": "assistant", "source": "llm"}


@pytest.fixture
async def api(serve: Serve) -> Caller:
    return Caller(await serve())


# Checkpoint and restore


async def restored(api: Caller, checkpoint: Any, **more: Any) -> Answered:
    return await api.post("/v1/restore", {"checkpoint": checkpoint, **more})


async def test_what_a_restore_does_not_know_is_refused(api: Caller) -> None:
    """A field too many in the body, or in the document; a bad id is told as such."""
    await api.create()
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    more = await api.post("/v1/restore", {"checkpoint": checkpoint, "session": "t"})
    inside = await api.post("/v1/restore", {"checkpoint": checkpoint | {"signature": "x"}})
    bad_id = await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "not one"})
    assert [(400, "invalid_field"), (400, "invalid_checkpoint")] == [more.told, inside.told]
    assert "It has an unknown field" in inside.json["detail"]
    assert ((400, "invalid_field"), True) == (bad_id.told, "A session id is" in bad_id.json["detail"])
    assert 201 == (await api.post("/v1/restore", {"checkpoint": checkpoint, "session_id": "t"})).status


async def test_a_checkpoint_goes_to_a_fresh_store(serve: Serve, tmp_path: Path) -> None:
    """Everything but what the two services say of themselves is the same, and the call goes on where it was."""
    app = await serve(store=f"sqlite:{tmp_path}/one")
    here = Caller(app)
    await here.create(llm={"max_history": 3}, system_messages=[{"role": "system", "content": "Be kind."}])
    await produce(app, [*dialogue(2), delta(3, JOKE), interrupt(3, heard_text="Why did ")])
    await here.post("/v1/sessions/s/forget", {"through_turn": 1})
    await here.patch("/v1/sessions/s", {"labels": {"tier": "vip"}})
    checkpoint = await here.get("/v1/sessions/s/checkpoint")
    again = await serve(store=f"sqlite:{tmp_path}/two")
    there = Caller(again)
    answered = await there.post("/v1/restore", b'{"session_id":"s","checkpoint":%s}' % checkpoint.body)
    assert (201, await here.session()) == (answered.status, answered.json)
    for path in ("history", "context?tools=true", "turns", "events", "checkpoint"):
        assert (await here.get(f"/v1/sessions/s/{path}")).body == (await there.get(f"/v1/sessions/s/{path}")).body
    one, other = [await opening(each) | {"incarnation": "", "epoch": 0} for each in (app, again)]
    assert one == other
    frames = await produce(again, [done(3, 9) | {"seq": 9}])
    assert "ack" == frames[-1]["type"]


async def test_what_has_ended_has_ended_and_is_not_told_again(serve: Serve) -> None:
    """An ended session is restored as it ended, and its webhook hears nothing of it."""
    async with receiving() as receiver:
        app = await serve(allow_addresses=LOOPBACK)
        api = Caller(app)
        await api.create(webhook={"url": receiver.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
        await api.send(*dialogue(1))
        ended = await api.end(reason="done")
        await receiver.wait()
        checkpoint = await api.get("/v1/sessions/s/checkpoint")
        assert b"whsec_" not in checkpoint.body
        again = (await restored(api, checkpoint.json)).json
        same = ("state", "reason", "started_at", "ended_at", "position", "config")
        assert [ended[name] for name in same] == [again[name] for name in same]
        assert (409, "session_ended") == (
            await api.post(f"/v1/sessions/{again['session_id']}/messages", {"role": "user", "content": "x"})
        ).told
        figures = await app.services.store.figures(app.services.runtime.clock())
        assert (1, 0) == (len(receiver.notices), figures.pending)


async def test_an_id_is_taken_once(api: Caller) -> None:
    """Neither a session that is there nor one that was erased is replaced; without an id the server makes one."""
    await api.create()
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    assert (409, "session_exists") == (await restored(api, checkpoint, session_id="s")).told
    await api.delete("/v1/sessions/s")
    assert (410, "session_erased") == (await restored(api, checkpoint, session_id="s")).told
    assert 201 == (await restored(api, checkpoint)).status


async def test_a_checkpoint_outlives_its_session(api: Caller) -> None:
    """It is a copy: the original's erasure does not reach it."""
    await api.create()
    await api.send(*dialogue(1))
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    await api.delete("/v1/sessions/s")
    await restored(api, checkpoint, session_id="t")
    assert ["Q1", "A1"] == said(await api.context(session_id="t"))


@pytest.mark.parametrize("packed", [True, False])
async def test_a_checkpoint_may_be_larger_than_other_bodies(api: Caller, packed: bool) -> None:
    """One of several MiB is restored, compressed or not; other routes keep their limit."""
    await api.create()
    for _ in range(3):
        await api.send(*(REPLY | {"turn_id": 1, "text": "word " * 40_000} for _ in range(4)))
    checkpoint = await api.get("/v1/sessions/s/checkpoint")
    body = b'{"session_id":"t","checkpoint":' + checkpoint.body + b"}"
    assert len(body) > 2 * 1024 * 1024
    headers = {"Content-Encoding": "gzip"} if packed else {}
    answered = await api.call(
        "POST", "/v1/restore", headers=headers, data=io.BytesIO(gzip.compress(body) if packed else body)
    )
    assert 201 == answered.status, answered.body
    assert await api.contents() == await api.contents("t")
    assert (413, "too_big") == (await api.post("/v1/sessions/s/fork", body)).told


async def test_two_checkpoints_are_restored_at_a_time(api: Caller, monkeypatch: pytest.MonkeyPatch) -> None:
    """Others wait, and are told to come back when neither ends; a turn that is free again is taken."""
    await api.create()
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    going_on, end = [asyncio.Event(), asyncio.Event()], asyncio.Event()

    async def body(begun: asyncio.Event) -> AsyncIterator[bytes]:
        text = json.dumps({"checkpoint": checkpoint}).encode()
        yield text[:1]
        begun.set()
        await end.wait()
        yield text[1:]

    slow = [asyncio.create_task(api.call("POST", "/v1/restore", data=body(begun))) for begun in going_on]
    async with asyncio.timeout(30):
        await asyncio.gather(*(begun.wait() for begun in going_on))
        while not (await restored_at_once(api, checkpoint, monkeypatch)).headers.get("Retry-After"):
            pass  # until both have their turns
    waiting = asyncio.create_task(restored(api, checkpoint))
    assert not (await asyncio.wait([waiting], timeout=0.1))[0]
    end.set()
    assert [201] * 3 == [one.status for one in await asyncio.gather(*slow, waiting)]
    assert 201 == (await restored_at_once(api, checkpoint, monkeypatch)).status


async def restored_at_once(api: Caller, checkpoint: Any, monkeypatch: pytest.MonkeyPatch) -> Answered:
    """The answer of a restore that is not to wait for long."""
    with monkeypatch.context() as patched:
        patched.setattr("voicemem.server.rest.checkpoints.SLOT_WAIT_S", 0.05)
        answered = await restored(api, checkpoint)
    assert answered.status == 201 or answered.told == (429, "rate_limited")
    return answered


async def test_a_body_without_end_is_cut_off(api: Caller) -> None:
    """Beyond 64 MiB nothing is read, unpacked or not."""
    bomb = gzip.compress(b" " * (64 * 1024 * 1024 + 1))
    answered = await api.call("POST", "/v1/restore", headers={"Content-Encoding": "gzip"}, data=bomb)
    assert (413, "too_big") == answered.told
    assert "64 MiB" in answered.json["detail"]


BAD_BODIES: list[tuple[Any, tuple[int, str]]] = [
    (b"", (400, "invalid_json")),
    (b"{", (400, "invalid_json")),
    (b"[" * 100_000, (400, "invalid_field")),
    (b'{"checkpoint":' + b"[" * 100_000, (400, "invalid_json")),
    (b'{"x":' + b"[" * 100_000, (400, "invalid_field")),
    (b'{"checkpoint":{"voicemem":"\xff"}}', (400, "invalid_checkpoint")),
    ([], (400, "invalid_field")),
    ({}, (400, "invalid_field")),
    ({"checkpoint": {}, "session_id": "not one"}, (400, "invalid_field")),
    ({"checkpoint": 1}, (400, "invalid_checkpoint")),
    ({"checkpoint": {}}, (400, "invalid_checkpoint")),
    ({"checkpoint": {"voicemem": "checkpoint", "version": 2}}, (400, "invalid_checkpoint")),
]


@pytest.mark.parametrize(("body", "told"), BAD_BODIES, ids=range(len(BAD_BODIES)))
async def test_what_is_no_checkpoint_makes_no_session(api: Caller, body: Any, told: tuple[int, str]) -> None:
    """Each gets its code."""
    assert told == (await api.post("/v1/restore", body)).told
    assert [] == (await api.get("/v1/sessions")).json["sessions"]


@pytest.mark.parametrize("what", ["version", "events", "sha256", "session"])
async def test_a_checkpoint_that_was_tampered_with_is_refused(api: Caller, what: str) -> None:
    """A word of the call, the configuration, the hash, the version: nothing can be another."""
    await api.create(user_id="ann")
    await api.send(*dialogue(1))
    checkpoint = (await api.get("/v1/sessions/s/checkpoint")).json
    checkpoint["version"] += what == "version"
    if what == "events":
        checkpoint["events"][0]["event"]["text"] = "Something else"
    if what == "sha256":
        checkpoint["sha256"] = "0" + checkpoint["sha256"][1:-1] + "x"
    if what == "session":
        checkpoint["session"]["config"]["user_id"] = "bob"
    assert (400, "invalid_checkpoint") == (await restored(api, checkpoint, session_id="t")).told
    assert (404, "unknown_session") == (await api.get("/v1/sessions/t")).told


async def test_what_calls_out_needs_admin(serve: Serve) -> None:
    """A checkpoint with a webhook, and a fork that gets one, are like a configuration with one."""
    app = await serve()
    admin, ingest = await keyed(app, "admin", "ingest", "read"), await keyed(app, "ingest")
    await admin.create(webhook={"url": "https://example.com/hook"})
    await admin.send(*dialogue(1))
    checkpoint = (await admin.get("/v1/sessions/s/checkpoint")).json
    assert (403, "forbidden") == (await restored(ingest, checkpoint)).told
    assert 201 == (await restored(admin, checkpoint)).status
    calling = {"at_turn": 1, "webhook": {"url": "https://example.com/other"}}
    assert (403, "forbidden") == (await ingest.post("/v1/sessions/s/fork", calling)).told
    assert 201 == (await ingest.post("/v1/sessions/s/fork", {"at_turn": 1})).status


# Fork


async def forked(api: Caller, at_turn: int, **more: Any) -> JsonObject:
    answered = await api.post("/v1/sessions/s/fork", {"at_turn": at_turn, "session_id": "f", **more})
    assert 201 == answered.status, answered.body
    return dict(answered.json)


async def test_a_dropped_call_goes_on_in_a_fork(serve: Serve) -> None:
    """The fork runs, its next turn is the one after, and unnamed playback is about what is said in it."""
    app = await serve()
    api = Caller(app)
    await api.create(user_id="ann")
    await api.send(*dialogue(2), final(3, "Tell me", 3), delta(3, JOKE, 3), partial(4, "I"))
    await api.end()
    before = [message for message in await api.contents() if message["turn_id"] <= 3]
    made = await forked(api, 3, labels={"again": "yes"})
    assert ("running", {"user_id": "ann", "labels": {"again": "yes"}}) == (made["state"], made["config"])
    assert before == await api.contents("f")
    assert 4 == (await opening(app, "f"))["next_turn"]
    going_on = [final(None, "Go on."), delta(None, "So it won."), done(), tts(heard_text="So it "), interrupt()]
    await produce(app, going_on, session_id="f", producer="engine")
    contents = await api.contents("f")
    assert before == contents[:-2]
    assert ["Go on.", "So it "] == [one["content"] for one in contents[-2:]]
    assert 4 == contents[-1]["turn_id"]
    assert {"type": "session.forked", "from_session": "s", "at_turn": 3} in [
        row["event"] for row in await api.journal("f")
    ]


async def test_a_fork_knows_what_was_known_then(api: Caller) -> None:
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
    assert ["A2"] == said(await api.context("?tools=true", "g"))
    assert 4 == len(await api.contents("g"))


async def test_a_fork_says_how_its_turns_ended(api: Caller) -> None:
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
    api = Caller(app)
    await api.create(memory={"policy": "summary"})
    await api.send(*dialogue(3))
    for turn in (1, 2, 3):
        stream = await app.services.sessions.get("default", "s")
        text = b'{"type":"memory.summary","through_turn":%d,"text":"Up to %d.","messages":%d}' % (turn, turn, 2 * turn)
        await app.services.store.append_server_event(stream.key, text, stream.position, app.services.runtime.clock())
    await forked(api, 2)
    context = said(await api.context(session_id="f"))
    assert "Up to 2." in context[0]
    assert 1 == len(context)
    await api.post("/v1/sessions/s/forget", {"through_turn": 1})
    stream = await app.services.sessions.get("default", "s")
    await app.services.store.append_server_event(stream.key, text, stream.position, app.services.runtime.clock())
    await api.post("/v1/sessions/s/fork", {"at_turn": 2, "session_id": "g"})
    assert ["Q2", "A2"] == said(await api.context(session_id="g"))


@pytest.mark.parametrize("wish", [{"through_turn": 1}, {"keep_last": 1}])
async def test_a_fork_does_not_bring_back_what_was_forgotten(api: Caller, wish: JsonObject) -> None:
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


async def test_a_fork_before_the_first_turn_is_an_empty_memory(api: Caller) -> None:
    """Also where the call has no turn 0; the next turn is the first."""
    await api.create()
    await api.send(*dialogue(2))
    await forked(api, 0)
    assert [] == await api.contents("f")
    await api.post("/v1/sessions/f/messages", {"role": "user", "content": "Anew."})
    assert [1] == [one["turn_id"] for one in await api.contents("f")]


async def test_erasing_the_original_leaves_its_forks(api: Caller) -> None:
    """And the other way round."""
    await api.create()
    await api.send(*dialogue(1))
    await forked(api, 1)
    await api.delete("/v1/sessions/s")
    assert ["Q1", "A1"] == said(await api.context(session_id="f"))


async def test_a_fork_keeps_the_secrets(serve: Serve) -> None:
    """Its own webhook is signed with the secret of the original."""
    async with receiving() as receiver:
        app = await serve(allow_addresses=LOOPBACK)
        api = Caller(app)
        await api.create(webhook={"url": receiver.url(), "secret": "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw"})
        await api.send(*dialogue(1))
        await forked(api, 1)
        (endpoint,) = [one async for one in endpoints_of(app.services.store, "f")]
        assert "whsec_MfKQ9r8GKYqrTwjUPD8ILPZIo2LaLaSw" == endpoint
        await api.end("f")
        assert "f" == (await receiver.one()).json["sid"]


async def endpoints_of(store: Any, session_id: str) -> Any:
    stream = await store.stream("default", session_id)
    query = "select secret from endpoints where stream = ?"
    for (secret,) in await store.database.read(lambda c: c.execute(query, (stream.key,)).fetchall()):
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


@pytest.mark.parametrize(("body", "told"), BAD_FORKS, ids=str)
async def test_a_bad_fork_makes_no_session(api: Caller, body: Any, told: tuple[int, str]) -> None:
    """Each gets its code."""
    await api.create()
    await api.send(*dialogue(1))
    assert told == (await api.post("/v1/sessions/s/fork", body)).told
    assert ["s"] == [one["session_id"] for one in (await api.get("/v1/sessions")).json["sessions"]]


# Carry over


async def call_of(api: Caller, session_id: str, user_id: str, *texts: str) -> None:
    """A call of a user that has ended."""
    await api.create(session_id, user_id=user_id)
    messages = [{"role": "user", "content": text} for text in texts]
    await api.post(f"/v1/sessions/{session_id}/messages", messages)
    await api.end(session_id)


async def known(api: Caller, session_id: str) -> list[str]:
    """What the system messages of a context say below their headings."""
    messages = (await api.context(session_id=session_id))["messages"]
    return [one["content"].partition("\n")[2] for one in messages if one["role"] == "system"]


async def test_the_preferences_of_one_call_are_known_in_the_next(api: Caller) -> None:
    """Those of the same user only, the oldest call first, before everything that is said."""
    await call_of(api, "one", "ann", "I like tea.", "And no sugar.")
    await call_of(api, "two", "ann", "I moved to Bonn.")
    await call_of(api, "other", "bob", "I like coffee.")
    await api.create(
        "now", user_id="ann", memory_from={"sessions": 5}, system_messages=[{"role": "system", "content": "\nBe kind."}]
    )
    await api.post("/v1/sessions/now/messages", {"role": "user", "content": "Hello."})
    assert ["Be kind.", "user: I like tea.\nuser: And no sugar.", "user: I moved to Bonn."] == await known(api, "now")
    assert "Hello." == said(await api.context(session_id="now"))[-1]
    assert "From an earlier call with this user, begun 20" in said(await api.context(session_id="now"))[1]


async def test_goals_of_one_call_are_unknown_in_another(api: Caller) -> None:
    """Nothing is carried without `memory_from`, without a user, or from a call that still runs."""
    await call_of(api, "one", "ann", "Book a table.")
    await api.create("plain", user_id="ann")
    await api.create("nobody", memory_from={})
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
async def test_how_much_is_carried_is_configured(api: Caller, memory_from: JsonObject, expected: list[str]) -> None:
    """So many calls, and so many messages of each."""
    await call_of(api, "one", "ann", "0")
    await call_of(api, "two", "ann", "1")
    await call_of(api, "three", "ann", "2", "3", "4")
    await api.create("now", user_id="ann", memory_from=memory_from)
    assert expected == await known(api, "now")


async def test_a_summary_is_carried_with_what_it_does_not_stand_for(serve: Serve) -> None:
    """The summary, then the messages after it."""
    app = await serve()
    api = Caller(app)
    await api.create("one", user_id="ann")
    await api.send(*dialogue(3), session_id="one")
    stream = await app.services.sessions.get("default", "one")
    summary = b'{"type":"memory.summary","through_turn":2,"text":"They greeted.","messages":4}'
    await app.services.store.append_server_event(stream.key, summary, stream.position, app.services.runtime.clock())
    await api.end("one")
    await api.create("two", user_id="ann", memory_from={})
    await api.create("three", user_id="ann", memory_from={"what": "messages", "max_messages": 2})
    assert ["They greeted.\nuser: Q3\nassistant: A3"] == await known(api, "two")
    assert ["user: Q3\nassistant: A3"] == await known(api, "three")


async def test_what_was_carried_stays(serve: Serve, tmp_path: Path) -> None:
    """Journaled once, whatever ends or is erased afterwards, also after a restart; forgotten with everything."""
    async with service(store=f"sqlite:{tmp_path}/db") as app:
        api = Caller(app)
        await call_of(api, "one", "ann", "I like tea.")
        await api.create("now", user_id="ann", memory_from={"sessions": 3}, idle_timeout=0)
        assert ["user: I like tea."] == await known(api, "now")
        await call_of(api, "two", "ann", "I like milk.")
        await api.delete("/v1/sessions/one")
        assert ["user: I like tea."] == await known(api, "now")
    api = Caller(await serve(store=f"sqlite:{tmp_path}/db"))
    assert ["user: I like tea."] == await known(api, "now")
    assert ["memory.carried"] == [row["event"]["type"] for row in await api.journal("now")]
    await api.create("later", user_id="ann", memory_from={"sessions": 3})
    assert ["user: I like milk."] == await known(api, "later")
    await api.post("/v1/sessions/now/forget", {})
    assert [] == await known(api, "now")


async def test_it_is_journaled_once(api: Caller) -> None:
    """Whoever asks at the same time."""
    await call_of(api, "one", "ann", "I like tea.")
    await api.create("now", user_id="ann", memory_from={})
    await asyncio.gather(*(api.context(session_id="now") for _ in range(8)))
    assert ["memory.carried"] == [row["event"]["type"] for row in await api.journal("now")]


async def test_what_was_forgotten_is_not_carried(api: Caller) -> None:
    """Contexts of later calls do not bring it back either."""
    await call_of(api, "one", "ann", "My number is 4711.", "I like tea.")
    await api.post("/v1/sessions/one/forget", {"through_turn": 1})
    await api.create("now", user_id="ann", memory_from={})
    assert ["user: I like tea."] == await known(api, "now")


async def test_a_fork_knows_what_its_original_was_told(api: Caller) -> None:
    """It carries nothing over of its own, not even its original."""
    await call_of(api, "one", "ann", "I like tea.")
    await api.create("s", user_id="ann", memory_from={})
    await api.context()
    await api.send(*dialogue(1))
    await api.end()
    await forked(api, 1)
    assert await known(api, "s") == await known(api, "f") == ["user: I like tea."]


async def test_a_fork_for_somebody_else_knows_nothing_of_the_first(api: Caller) -> None:
    """What was carried over from the calls of one user is not for another."""
    await call_of(api, "one", "ann", "I like tea.")
    await api.create("s", user_id="ann", memory_from={})
    await api.context()
    await api.send(*dialogue(1))
    await api.post("/v1/sessions/s/fork", {"at_turn": 1, "session_id": "f", "user_id": "bob"})
    assert [] == await known(api, "f")
    assert "tea" not in str(await api.journal("f"))


async def test_calls_in_which_nothing_was_said_are_passed_over(api: Caller) -> None:
    """They are none of the calls that are carried, however many there were."""
    await call_of(api, "one", "ann", "I like tea.")
    await call_of(api, "two", "ann", "I moved.")
    for number in range(18):
        await call_of_nothing(api, f"empty{number}")
    await api.create("now", user_id="ann", memory_from={"sessions": 2})
    assert ["user: I like tea.", "user: I moved."] == await known(api, "now")


async def call_of_nothing(api: Caller, session_id: str) -> None:
    """A call of Ann's that was hung up at once."""
    await api.create(session_id, user_id="ann")
    await api.end(session_id)


async def test_behind_a_summary_there_is_no_silent_gap(serve: Serve) -> None:
    """All messages after it follow, however many; where they are too long, how many are left out is said."""
    app = await serve()
    api = Caller(app)
    for session_id, length in (("short", 10), ("long", 1600)):
        await api.create(session_id, user_id=session_id)
        texts = [f"{number:02}".ljust(length, "x") for number in range(1, 17)]
        messages = [{"role": "user", "content": text} for text in texts]
        await api.post(f"/v1/sessions/{session_id}/messages", messages)
        stream = await app.services.sessions.get("default", session_id)
        summary = b'{"type":"memory.summary","through_turn":2,"text":"They greeted.","messages":2}'
        await app.services.store.append_server_event(stream.key, summary, stream.position, app.services.runtime.clock())
        await api.end(session_id)
        await api.create(f"after-{session_id}", user_id=session_id, memory_from={"max_messages": 3})
    (text,) = await known(api, "after-short")
    assert ["They greeted.", *(f"user: {n:02}xxxxxxxx" for n in range(3, 17))] == text.split("\n")
    (text,) = await known(api, "after-long")
    assert ["They greeted.", "(… 4 messages left out)"] == text.split("\n")[:2]
    assert [f"user: {n:02}" for n in range(7, 17)] == [line[:8] for line in text.split("\n")[2:]]


@pytest.mark.parametrize(
    "given", [1, {"sessions": 0}, {"sessions": 17}, {"what": "all"}, {"max_messages": 0}, {"x": 1}]
)
async def test_bad_settings_are_refused(api: Caller, given: Any) -> None:
    """As any setting that cannot be."""
    assert (400, "invalid_field") == (await api.post("/v1/sessions", {"memory_from": given})).told


# Users


async def test_the_sessions_of_a_user_are_listed(api: Caller) -> None:
    """In pages, the newest first, and those of nobody else."""
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
async def test_an_odd_user_has_no_sessions(api: Caller, user_id: str) -> None:
    """What cannot be an id is refused, and what can be is somebody without sessions."""
    answered = await api.get(f"/v1/users/{user_id}/sessions")
    assert answered.status in (200, 400)
    assert [] == answered.json["sessions"] if answered.status == 200 else answered.told
