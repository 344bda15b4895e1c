"""Opening a session over the websocket."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re

import pytest

from tests.support.callers.ingest import MIB
from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.events import final_transcript
from tests.support.rows import every_row
from voicemem.app import App
from voicemem.protocol.frames import FEATURES
from voicemem.protocol.types import JsonObject
from voicemem.sessions.recording.commits import NO_UNIX_MS


async def test_ready_says_where_to_go_on(app: App) -> None:
    """The answer to an open has every field that a producer needs, and no other."""
    async with connected_producer(app) as producer:
        ready = await producer.open("s", producer="asr")
    assert {
        "type": "session.ready",
        "session_id": "s",
        "producer": "asr",
        "state": "running",
        "epoch": 1,
        "next_seq": 1,
        "next_turn": 1,
        "incarnation": app.services.store.directory.incarnation,
        "window": MIB,
        "features": [*FEATURES],
    } == ready


async def test_settings_without_effect_are_warned_of(app: App) -> None:
    """A call whose caller no one knows is recorded; its producer learns that nothing is carried over."""
    async with connected_producer(app) as producer:
        ready = await producer.open("s", session={"memory_from": {}})
    assert ["`memory_from` has no effect until the session has a `user_id`."] == ready["warnings"]


async def test_times_in_seconds_are_warned_of(app: App, caplog: pytest.LogCaptureFixture) -> None:
    """The log says it once for a session, and `session.ready` whenever a producer opens it after that."""
    ready = {}
    for name, ts in (("seconds", 1_790_000_000), ("ms", 1_790_000_000_000), ("none", None)):
        async with open_producer(app, name) as producer:
            await producer.send(final_transcript(1, ts=ts), final_transcript(2, ts=ts))
            await producer.expect_ack(2)
        async with connected_producer(app) as producer:
            ready[name] = (await producer.open(name)).get("warnings")
    assert {"seconds": [NO_UNIX_MS], "ms": None, "none": None} == ready
    assert [NO_UNIX_MS] == [record.message for record in caplog.records if record.levelname == "WARNING"]


async def test_the_server_makes_an_id(app: App, api: RestClient) -> None:
    """A session that comes without an id gets one of its own, and is there under it."""
    async with connected_producer(app) as producer:
        ids = [(await producer.open(None))["session_id"] for _ in range(3)]
    assert 3 == len(set(ids))
    assert all(re.fullmatch("[A-Za-z0-9._:-]{16,128}", one) for one in ids)
    assert ["running"] * 3 == [(await api.get(f"/v1/sessions/{one}")).json["state"] for one in ids]


async def test_an_open_brings_the_configuration(app: App, api: RestClient) -> None:
    """What `session` says is the new session's configuration."""
    config = {"name": "Call", "labels": {"line": "7"}, "llm": {"vendor": "custom"}, "idle_timeout": 5}
    async with open_producer(app, session=config):
        assert config == (await api.session())["config"]


@pytest.mark.parametrize("session", [{}, {"name": "other"}, {"no_such_setting": 1}, {"labels": 5}])
async def test_the_session_of_a_later_open_is_ignored(app: App, api: RestClient, session: JsonObject) -> None:
    """On a session that exists nothing of `session` counts, so that no resume fails for it."""
    await api.create(name="Call")
    async with connected_producer(app) as producer:
        await producer.open("s", session=session)
    assert {"name": "Call"} == (await api.session())["config"]


@every_row(
    "given",
    [
        {"session": {"no_such_setting": 1}},
        {"session": {"idle_timeout": -1}},
        {"session": {"labels": {str(n): "" for n in range(65)}}},
        {"session": {"webhook": {"url": "http://10.0.0.1/hook"}}},
        {"session": []},
        {"producer": ""},
        {"producer": "p" * 129},
        {"from_seq": 0},
        {"session_id": ""},
        {"session_id": "s/t"},
        {"session_id": "s" * 129},
        {"session_id": "sé"},
        {"session_id": "s\n"},
    ],
    ids=str,
)
async def test_a_bad_open_makes_nothing(app: App, api: RestClient, given: JsonObject) -> None:
    """An open that cannot be taken is an error; no session is there, and the connection lives on."""
    before = (await api.get("/v1/sessions")).json["sessions"]
    async with connected_producer(app) as producer:
        await producer.send({"type": "session.open", "session_id": fresh_id(), **given})
        frame = await producer.expect("error")
        assert frame["code"] in ("invalid_field", "address_not_allowed")
        assert before == (await api.get("/v1/sessions")).json["sessions"]
        assert 1 == (await producer.open(fresh_id()))["epoch"]


async def test_every_open_raises_its_producers_epoch(app: App) -> None:
    """Epochs count the opens of one producer in one session."""
    async with connected_producer(app) as producer:
        assert [1, 2] == [(await producer.open())["epoch"] for _ in range(2)]
        assert 1 == (await producer.open(producer="other"))["epoch"]
        assert 1 == (await producer.open("t"))["epoch"]


async def test_ready_comes_after_the_epochs_commit(app: App, api: RestClient) -> None:
    """As soon as a producer is ready, everything of its older epochs is refused."""
    async with connected_producer(app) as producer:
        await producer.open()
        await producer.open()
        assert ["superseded"] == [
            one["code"] for one in (await api.send(final_transcript(1), query="?epoch=1"))["errors"]
        ]
        assert [] == (await api.send(final_transcript(1), query="?epoch=2"))["errors"]


async def test_a_resume_goes_on_behind_what_is_stored(app: App) -> None:
    """Whoever comes back is told the next seq of its own, and the next turn of the session."""
    async with open_producer(app) as first, open_producer(app, producer="other") as other:
        await first.store(*(final_transcript(seq) for seq in range(1, 8)))
        await other.store(final_transcript(1, turn_id=41))
    async with connected_producer(app) as again:
        ready = await again.open()
    assert (2, 8, 42) == (ready["epoch"], ready["next_seq"], ready["next_turn"])


@pytest.mark.parametrize("event", [{"turn_id": 0}, {"turn_id": 5, "text": "", "final": False}])
async def test_the_next_turn_is_behind_the_newest(app: App, event: JsonObject) -> None:
    """A turn counts as soon as anything of it came, and turn 0 is before the first."""
    async with open_producer(app) as producer:
        await producer.store(final_transcript(1) | event)
        assert event["turn_id"] + 1 == (await producer.open())["next_turn"]


async def test_an_ended_session_says_so(app: App, api: RestClient) -> None:
    """An open on a session that is over is answered with its state, and changes nothing."""
    await api.create()
    ended = await api.end()
    async with connected_producer(app) as producer:
        ready = await producer.open(from_seq=9)
        assert ("ended", 1) == (ready["state"], ready["next_seq"])
        await producer.send(final_transcript(1))
        await producer.expect_error("session_ended", seq=1)
    assert ended == await api.session()


@pytest.mark.parametrize("bad", [{}, {"from_seq": 0}, {"session": {"no_such_setting": 1}}])
async def test_an_open_takes_no_seq(producer: Producer, bad: JsonObject) -> None:
    """A `session.open` that carries a seq takes none from its producer, even when it is refused."""
    await producer.send({"type": "session.open", "session_id": "s", "seq": 1, **bad})
    await producer.next()
    assert 1 == (await producer.open())["next_seq"]


async def test_unknown_fields_of_an_open_are_refused(producer: Producer) -> None:
    """A misspelt id must not open another session; the right one is named."""
    await producer.send({"type": "session.open", "sesion_id": "s"})
    refused = await producer.expect_error("unknown_field")
    assert "no field `sesion_id` (did you mean `session_id`?)" in refused["detail"]
