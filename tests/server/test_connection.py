"""One connection: what it opens, what it sends, and what it is answered (design, section 5)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import apsw
import pytest
from callers import Caller, until
from producers import (
    BIG,
    JsonObject,
    Producer,
    connected,
    database_of,
    down_store,
    end,
    full_store,
    held_store,
    producing,
    said,
    unknown,
)
from services import Serve

from voicemem.app import App

MIB = 1024 * 1024
REFUSED: list[tuple[str, JsonObject]] = [
    ("unknown_type", {"type": "no.such.type"}),
    ("invalid_field", {"type": 7}),
    ("missing_field", {"text": "without a type"}),
    ("missing_field", {"type": "asr", "turn_id": 1}),
    ("missing_field", {"type": "tts", "turn_id": 1}),
    ("missing_field", {"type": "metric", "name": "e2e", "latency_ms": 1}),
    ("invalid_field", {"type": "asr", "turn_id": -1, "text": "a"}),
    ("invalid_field", {"type": "asr", "turn_id": "1", "text": "a"}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": None}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "ts": 2**53 + 1}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "id": ""}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "item": "i" * 129}),
    ("invalid_field", {"type": "asr", "turn_id": 1, "text": "a", "metadata": []}),
    ("invalid_field", {"type": "interrupt", "turn_id": 1, "heard_text": "a", "heard_chars": 1}),
    ("invalid_field", {"type": "message", "turn_id": 1, "role": "system", "text": "a", "source": "command"}),
    ("invalid_field", {"type": "message", "turn_id": 1, "role": "user", "text": "a", "source": "llm"}),
    ("invalid_field", {"type": "session.update", "labels": {"a": 1}}),
    ("invalid_field", {"type": "session.update", "no_such_setting": 1, "llm": {"no_such_setting": 1}}),
    ("reserved_metadata", {"type": "asr", "turn_id": 1, "text": "a", "metadata": {"interrupted": True}}),
    ("text_too_long", {"type": "llm.delta", "turn_id": 1, "text": "ä" * (128 * 1024 + 1)}),
    ("last_seq_mismatch", {"type": "session.end", "last_seq": 7}),
    ("unknown_type", {"type": "session.closed", "reason": "mine"}),
    ("unknown_type", {"type": "session.gap", "from_seq": 1, "to_seq": 2}),
    ("unknown_type", {"type": "refused", "code": "mine"}),
]
"""Events that no journal takes, whatever their seq is."""
UNREADABLE: list[Any] = [0, -1, 1.0, 1.5, "1", True, [1], {"seq": 1}, 2**53 + 1, 2**64]
"""What is no seq."""
NO_FRAMES: list[tuple[int, str | bytes]] = [
    (1007, ""),
    (1007, "hello"),
    (1007, '"hello"'),
    (1007, "null"),
    (1007, "[null]"),
    (1007, "[[]]"),
    (1007, b'{"type":"asr","text":"\xff"}'),
    (1007, json.dumps([said(2), said(3), 3])),
    (1007, json.dumps([said(2), said(3)])[:-1]),
    (1007, json.dumps([said(2), said(3)]) + json.dumps(said(4))),
    (1007, json.dumps([said(2), said(3, metadata={"a": json.loads("[" * 40 + "]" * 40)})])),
    (1009, json.dumps([said(2), said(3, text="x" * MIB)])),
]
"""What is no frame of events, and the code that the connection is closed with."""


@pytest.fixture
async def app(serve: Serve) -> App:
    """An empty service."""
    return await serve()


@pytest.fixture
async def on_file(serve: Serve, tmp_path: Path) -> App:
    """An empty service on a file."""
    return await serve(store=f"sqlite:{tmp_path}/db")


@pytest.fixture
def api(app: App) -> Caller:
    """A caller of the same service."""
    return Caller(app)


@pytest.fixture
async def producer(app: App) -> AsyncIterator[Producer]:
    """A producer with an open session "s"."""
    async with producing(app) as one:
        yield one


async def journaled(api: Caller, session_id: str = "s") -> list[JsonObject]:
    """The events in a session's journal."""
    return [row["event"] for row in await api.journal(session_id)]


def nested(depth: int) -> JsonObject:
    """An event that is nested so deep."""
    return said(1, deep=json.loads("[" * (depth - 1) + "]" * (depth - 1)))


# Opening


async def test_ready_says_where_to_go_on(app: App) -> None:
    """The answer to an open has every field that a producer needs, and no other."""
    async with connected(app) as producer:
        ready = await producer.open("s", producer="asr")
    assert {
        "type": "session.ready",
        "session_id": "s",
        "producer": "asr",
        "state": "running",
        "epoch": 1,
        "next_seq": 1,
        "next_turn": 1,
        "incarnation": app.services.store.incarnation,
        "window": MIB,
    } == ready


async def test_the_server_makes_an_id(app: App, api: Caller) -> None:
    """A session that comes without an id gets one of its own, and is there under it."""
    async with connected(app) as producer:
        ids = [(await producer.open(None))["session_id"] for _ in range(3)]
    assert 3 == len(set(ids))
    assert all(re.fullmatch("[A-Za-z0-9._:-]{16,128}", one) for one in ids)
    assert ["running"] * 3 == [(await api.get(f"/v1/sessions/{one}")).json["state"] for one in ids]


async def test_an_open_brings_the_configuration(app: App, api: Caller) -> None:
    """What `session` says is the new session's configuration."""
    config = {"name": "Call", "labels": {"line": "7"}, "llm": {"vendor": "custom"}, "idle_timeout": 5}
    async with producing(app, session=config):
        assert config == (await api.session())["config"]


@pytest.mark.parametrize("session", [{}, {"name": "other"}, {"no_such_setting": 1}, {"labels": 5}])
async def test_the_session_of_a_later_open_is_ignored(app: App, api: Caller, session: JsonObject) -> None:
    """On a session that exists nothing of `session` counts, so that no resume fails for it."""
    await api.create(name="Call")
    async with connected(app) as producer:
        await producer.open("s", session=session)
    assert {"name": "Call"} == (await api.session())["config"]


@pytest.mark.parametrize(
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
async def test_a_bad_open_makes_nothing(app: App, api: Caller, given: JsonObject) -> None:
    """An open that cannot be taken is an error; no session is there, and the connection lives on."""
    async with connected(app) as producer:
        await producer.send({"type": "session.open", "session_id": "s", **given})
        frame = await producer.expect("error")
        assert frame["code"] in ("invalid_field", "address_not_allowed")
        assert [] == (await api.get("/v1/sessions")).json["sessions"]
        assert 1 == (await producer.open())["epoch"]


async def test_every_open_raises_its_producers_epoch(app: App) -> None:
    """Epochs count the opens of one producer in one session."""
    async with connected(app) as producer:
        assert [1, 2] == [(await producer.open())["epoch"] for _ in range(2)]
        assert 1 == (await producer.open(producer="other"))["epoch"]
        assert 1 == (await producer.open("t"))["epoch"]


async def test_ready_comes_after_the_epochs_commit(app: App, api: Caller) -> None:
    """As soon as a producer is ready, everything of its older epochs is refused."""
    async with connected(app) as producer:
        await producer.open()
        await producer.open()
        assert ["superseded"] == [one["code"] for one in (await api.send(said(1), query="?epoch=1"))["errors"]]
        assert [] == (await api.send(said(1), query="?epoch=2"))["errors"]


async def test_a_resume_goes_on_behind_what_is_stored(app: App) -> None:
    """Whoever comes back is told the next seq of its own, and the next turn of the session."""
    async with producing(app) as first, producing(app, producer="other") as other:
        await first.store(*(said(seq) for seq in range(1, 8)))
        await other.store(said(1, turn_id=41))
    async with connected(app) as again:
        ready = await again.open()
    assert (2, 8, 42) == (ready["epoch"], ready["next_seq"], ready["next_turn"])


@pytest.mark.parametrize("event", [{"turn_id": 0}, {"turn_id": 5, "text": "", "final": False}])
async def test_the_next_turn_is_behind_the_newest(app: App, event: JsonObject) -> None:
    """A turn counts as soon as anything of it came, and turn 0 is before the first."""
    async with producing(app) as producer:
        await producer.store(said(1) | event)
        assert event["turn_id"] + 1 == (await producer.open())["next_turn"]


async def test_an_ended_session_says_so(app: App, api: Caller) -> None:
    """An open on a session that is over is answered with its state, and changes nothing."""
    await api.create()
    ended = await api.end()
    async with connected(app) as producer:
        ready = await producer.open(from_seq=9)
        assert ("ended", 1) == (ready["state"], ready["next_seq"])
        await producer.send(said(1))
        await producer.expect_error("session_ended", seq=1)
    assert ended == await api.session()


@pytest.mark.parametrize("bad", [{}, {"from_seq": 0}, {"session": {"no_such_setting": 1}}])
async def test_an_open_takes_no_seq(producer: Producer, bad: JsonObject) -> None:
    """A `session.open` that carries a seq takes none from its producer, even when it is refused."""
    await producer.send({"type": "session.open", "session_id": "s", "seq": 1, **bad})
    await producer.next()
    assert 1 == (await producer.open())["next_seq"]


async def test_unknown_fields_of_an_open_are_passed_over(app: App) -> None:
    """A newer client may say more than this server knows."""
    async with connected(app) as producer:
        assert 1 == (await producer.open(capabilities=["x"]))["epoch"]


# Seqs


async def test_the_next_seq_is_stored(producer: Producer, api: Caller) -> None:
    """Events stand in the journal as they were sent, at rising positions, with producer and seq."""
    events = [said(1, more={"ü": [1, 2.5, None]}), said(2), end(3)]
    await producer.store(*events)
    rows = (await api.journal())[:3]
    assert [(n, "main", n, event) for n, event in enumerate(events, 1)] == [
        (row["position"], row["producer"], row["seq"], row["event"]) for row in rows
    ]


async def test_acks_are_cumulative(producer: Producer) -> None:
    """An ack names its session and producer, and covers everything below it."""
    await producer.send_together(*(said(seq) for seq in range(1, 51)))
    assert {"type": "ack", "session_id": "s", "producer": "main", "seq": 50} == await producer.next()


async def test_acks_never_go_back(producer: Producer) -> None:
    """In a stream of single frames acks rise until the last."""
    await producer.send(*(said(seq) for seq in range(1, 301)))
    acked = await producer.expect_ack(300)
    assert sorted(set(acked)) == acked


@pytest.mark.parametrize(
    "again",
    [
        '{"type":"asr","seq":1,"turn_id":1,"text":"Café","final":true,"metadata":{"a":[1,2.5]}}',
        '{"metadata" : {"a" : [1, 2.5]},\n"final":true, "text":"Café","turn_id":1,"seq":1,"type":"asr"}',
        '{"type":"asr","seq":1,"turn_id":1,"text":"Caf\\u00e9","final":true,"metadata":{"a":[1,25e-1]}}',
    ],
)
async def test_the_same_again_is_acknowledged_again(producer: Producer, api: Caller, again: str) -> None:
    """A duplicate is what is equal as decoded JSON; it gets its ack and is not stored twice."""
    await producer.send_raw('{"type":"asr","seq":1,"turn_id":1,"text":"Café","final":true,"metadata":{"a":[1,2.5]}}')
    await producer.store(said(2))
    await producer.send_raw(again)
    await producer.expect("ack", seq=1)
    assert 2 == len(await api.journal())


async def test_duplicates_are_found_on_every_way_in(app: App, api: Caller) -> None:
    """A resend over a new connection, or over HTTP, is the same event."""
    async with producing(app) as producer:
        await producer.store(said(1), said(2))
    async with producing(app) as again:
        await again.send_together(said(1), said(2), said(3))
        await again.expect("ack", seq=3)
    assert {"next_seq": 4, "errors": []} == await api.send(said(2), said(3))
    assert [1, 2, 3] == [row["seq"] for row in await api.journal()]


@pytest.mark.parametrize("other", [{"text": "Other."}, {"more": 1}, {"turn_id": 2}, {"ts": 1}, {"metadata": {}}])
async def test_another_event_under_a_seq_is_a_conflict(producer: Producer, api: Caller, other: JsonObject) -> None:
    """What was stored first stays; the other gets an error, and the connection goes on."""
    await producer.store(said(1))
    await producer.send(said(1) | other)
    await producer.expect_error("seq_conflict", session_id="s", producer="main", seq=1)
    await producer.store(said(2))
    assert [said(1), said(2)] == await journaled(api)


async def test_a_frame_may_contradict_itself(producer: Producer, api: Caller) -> None:
    """Of two events of one seq in one frame the first is stored, the second is a conflict."""
    await producer.send_together(said(1), said(1), said(1, text="Other."), said(2))
    await producer.expect_error("seq_conflict", seq=1)
    await producer.expect("ack", seq=2)
    assert [said(1), said(2)] == await journaled(api)


async def test_a_gap_is_told_once(producer: Producer, api: Caller) -> None:
    """Above the next seq nothing is stored: one error with the seq that is expected, then silence."""
    await producer.store(said(1))
    await producer.send(said(3), said(4))
    await producer.send_together(said(9), unknown(10), said(5))
    await producer.expect_error("seq_gap", session_id="s", producer="main", seq=3, expected=2)
    await producer.send(said(2))
    assert [("ack", 2)] == [(frame["type"], frame["seq"]) for frame in await producer.rest()]
    assert [said(1), said(2)] == await journaled(api)


async def test_a_duplicate_does_not_end_the_silence(producer: Producer) -> None:
    """A gap is silent until the expected seq arrives, whatever else is sent again meanwhile."""
    await producer.store(said(1), said(2))
    await producer.send(said(5))
    await producer.expect_error("seq_gap", expected=3)
    await producer.store(said(2))
    await producer.send(said(6))
    assert [] == await producer.rest()


async def test_every_gap_is_told(producer: Producer) -> None:
    """Once the expected event has come, the next hole is a new one."""
    await producer.send(said(2))
    await producer.expect_error("seq_gap", expected=1)
    await producer.store(said(1))
    await producer.send(said(3))
    await producer.expect_error("seq_gap", seq=3, expected=2)


async def test_a_new_connection_hears_of_its_gap(app: App) -> None:
    """The silence is that of one connection."""
    for _ in range(2):
        async with producing(app) as producer:
            await producer.send(said(5), said(6))
            await producer.expect_error("seq_gap", seq=5, expected=1)


async def test_the_rest_of_a_frame_is_not_lost_to_a_gap(producer: Producer, api: Caller) -> None:
    """Each event of a frame stands alone: what comes in order behind a hole is stored."""
    await producer.send_together(said(1), said(3), said(2), said(3))
    await producer.expect_error("seq_gap", seq=3, expected=2)
    await producer.expect("ack", seq=3)
    assert [1, 2, 3] == [row["seq"] for row in await api.journal()]


async def test_events_without_seq_are_never_acknowledged(producer: Producer, api: Caller) -> None:
    """A producer that does not count is stored as it comes, twice if it comes twice."""
    await producer.send(said(), said(), end())
    assert [] == await producer.rest()
    assert [said(), said(), end()] == (await journaled(api))[:3]


@pytest.mark.parametrize(("first", "then"), [(said(1), said()), (said(), said(1)), (unknown(1), said())])
async def test_a_producer_counts_or_does_not(
    producer: Producer, api: Caller, first: JsonObject, then: JsonObject
) -> None:
    """Who mixes events with and without seq is told so, and nothing of the other kind is stored."""
    await producer.send(first, then)
    errors = [(frame["code"], frame.get("seq")) for frame in await producer.rest() if "code" in frame]
    assert ("seq_required", then.get("seq")) == errors[-1]
    assert 1 == len(await api.journal())


@pytest.mark.parametrize("events", [[said(1), said()], [said(), said(1)]])
async def test_a_frame_counts_or_does_not(producer: Producer, api: Caller, events: list[JsonObject]) -> None:
    """The same holds inside of one frame."""
    await producer.send_together(*events)
    assert ["seq_required"] == [frame["code"] for frame in await producer.rest() if "code" in frame]
    assert events[:1] == await journaled(api)


async def test_producers_count_for_themselves(app: App, api: Caller) -> None:
    """Each producer of a session has seqs of its own; one may count while the other does not."""
    async with producing(app, producer="asr") as asr, producing(app, producer="llm") as llm:
        await asr.store(said(1), said(2))
        await llm.send(said())
        await llm.rest()
        await asr.store(said(3))
    assert [("asr", 1), ("asr", 2), ("llm", None), ("asr", 3)] == [
        (row["producer"], row["seq"]) for row in await api.journal()
    ]


async def test_an_empty_frame_of_events_is_nothing(producer: Producer, api: Caller) -> None:
    """An array without events is passed over."""
    await producer.send_together()
    assert [] == await producer.rest()
    assert [] == await api.journal()


# Acks and the disk


async def test_no_ack_before_the_commit(on_file: App, tmp_path: Path) -> None:
    """While the commit hangs there is no ack and no error; both come once it is through."""
    async with producing(on_file) as producer:
        with held_store(f"{tmp_path}/db"):
            await producer.send(said(1), unknown(2))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(producer.socket.recv(), 0.3)
        assert [("ack", 1), ("error", 2)] == sorted([(f["type"], f["seq"]) for f in await producer.rest()])


async def test_whatever_is_acknowledged_is_in_the_file(on_file: App, tmp_path: Path) -> None:
    """At the moment of an ack anybody who opens the database finds the event there."""
    other = apsw.Connection(f"{tmp_path}/db", flags=apsw.SQLITE_OPEN_READONLY)
    async with producing(on_file) as producer:
        await producer.send(*(said(seq) for seq in range(1, 200)))
        acked = 0
        while acked < 199:
            acked = (await producer.expect("ack"))["seq"]
            found = other.execute("select max(seq + count - 1) from journal").fetchall()
            assert found[0][0] >= acked
    other.close()


async def test_a_duplicate_waits_for_its_original(on_file: App, tmp_path: Path) -> None:
    """A resend over a new connection is acknowledged once the original is committed, not before."""
    async with producing(on_file) as first, connected(on_file) as again:
        with held_store(f"{tmp_path}/db"):
            await first.send(said(1))
            await again.send({"type": "session.open", "session_id": "s"}, said(1))
            with pytest.raises(TimeoutError):
                await asyncio.wait_for(again.socket.recv(), 0.3)
        assert (await again.expect("session.ready"))["next_seq"] in (1, 2)
        await again.expect("ack", seq=1)
    assert 1 == len(await Caller(on_file).journal())


# Refused events


@pytest.mark.parametrize(("code", "event"), REFUSED)
async def test_a_refused_event_leaves_its_code(producer: Producer, api: Caller, code: str, event: JsonObject) -> None:
    """It takes its position and seq, without any of its content; the connection lives on."""
    await producer.store(said(1))
    await producer.send(event | {"seq": 2})
    await producer.expect_error(code, session_id="s", producer="main", seq=2)
    await producer.store(said(3))
    row = (await api.journal())[1]
    assert (2, "main", 2, {"type": "refused", "code": code}) == (
        row["position"],
        row["producer"],
        row["seq"],
        row["event"],
    )


async def test_every_resend_repeats_the_error(app: App, api: Caller) -> None:
    """A seq that was refused stays refused, over new connections and HTTP, even for an event that could be taken."""
    async with producing(app) as producer:
        await producer.send(unknown(1), unknown(1), said(2), said(1))
        answers = [(frame["type"], frame["seq"]) for frame in await producer.rest()]
        assert [("ack", 2), ("error", 1), ("error", 1), ("error", 1)] == sorted(answers)
    async with producing(app) as again:
        await again.send(unknown(1, text="secret"), said(1))
        await again.expect_error("unknown_type", seq=1)
        await again.expect_error("unknown_type", seq=1)
    assert [(1, "unknown_type")] == [(one["seq"], one["code"]) for one in (await api.send(unknown(1)))["errors"]]
    assert [1, 2] == [row["seq"] for row in await api.journal()]


async def test_an_error_counts_as_an_ack(producer: Producer) -> None:
    """A later ack covers the refused event, and a resume goes on behind it."""
    await producer.send_together(said(1), unknown(2), said(3))
    await producer.expect_error("unknown_type", seq=2)
    await producer.expect("ack", seq=3)
    await producer.send(unknown(4))
    await producer.expect_error("unknown_type", seq=4)
    assert 5 == (await producer.open())["next_seq"]


@pytest.mark.parametrize("seq", UNREADABLE, ids=str)
async def test_what_has_no_readable_seq_consumes_nothing(producer: Producer, api: Caller, seq: Any) -> None:
    """The error names no seq, nothing is stored, and the producer counts on."""
    await producer.send(said(1) | {"seq": seq})
    error = await producer.expect_error("invalid_field", session_id="s", producer="main")
    assert "seq" not in error
    assert [] == await api.journal()
    await producer.store(said(1))


async def test_a_refused_event_without_seq_consumes_nothing(producer: Producer, api: Caller) -> None:
    """Who does not count hears of the error, and nothing of it is stored."""
    await producer.send(said(), unknown(), said())
    (error,) = await producer.rest()
    assert ("unknown_type", None) == (error["code"], error.get("seq"))
    assert [said(), said()] == await journaled(api)


async def test_no_content_of_a_refused_event_is_kept(on_file: App, tmp_path: Path) -> None:
    """Neither the journal nor the error nor the file holds a word of it."""
    async with producing(on_file) as producer:
        await producer.send(unknown(1, text="geheim", geheim={"geheim": 1}), said(2, user=["geheim"]))
        assert "geheim" not in json.dumps(await producer.rest())
    files = [path.read_bytes() for path in tmp_path.iterdir()]  # noqa: ASYNC240 (they are small)
    assert not any(b"geheim" in file for file in files)


# What is no frame of events


@pytest.mark.parametrize(("code", "frame"), NO_FRAMES, ids=lambda value: str(value)[:24])
async def test_what_is_no_frame_closes(app: App, api: Caller, code: int, frame: str | bytes) -> None:
    """The connection is closed with the code; what came before is stored, nothing of the frame is."""
    async with producing(app) as producer:
        await producer.send(said(1))
        await producer.send_raw(frame)
        assert code == (await producer.closed())[0]
    async with producing(app) as again:
        await again.store(said(1), said(2))
    assert [said(1), said(2)] == await journaled(api)


async def test_binary_frames_close(app: App, api: Caller) -> None:
    """Bytes are no text, even when they would be good events."""
    async with producing(app) as producer:
        await producer.socket.send(json.dumps(said(1)).encode())
        assert 1003 == (await producer.closed())[0]
    assert [] == await api.journal()


async def test_a_frame_may_have_one_mebibyte(producer: Producer, api: Caller) -> None:
    """The bound counts bytes, and is itself allowed."""
    frame = json.dumps(said(1, more=""))
    frame = frame.replace('"more": ""', '"more": "' + "ä" * ((MIB - len(frame)) // 2) + '"', 1)
    await producer.send_raw(frame + " " * (MIB - len(frame.encode())))
    await producer.expect_ack(1)


async def test_a_frame_may_not_have_one_byte_more(producer: Producer) -> None:
    """One byte over the bound closes."""
    await producer.send_raw(json.dumps(said(1)).ljust(MIB + 1))
    assert 1009 == (await producer.closed())[0]


@pytest.mark.parametrize("together", [False, True])
async def test_an_event_may_be_32_levels_deep(app: App, together: bool) -> None:
    """The array around events is no level of theirs; one level more closes."""
    for depth in (32, 33):
        async with producing(app, str(depth)) as producer:
            await producer.send_raw(json.dumps([nested(depth)] if together else nested(depth)))
            if depth == 32:
                await producer.expect_ack(1)
            else:
                assert 1007 == (await producer.closed())[0]


async def test_brackets_in_texts_are_no_levels(producer: Producer) -> None:
    """What a user says may look like JSON."""
    await producer.store(said(1, text='[{"' * 100), said(2, text="\\" + "[" * 100))


async def test_a_flood_closes(app: App) -> None:
    """Who sends nothing but what cannot be stored is sent away."""
    async with connected(app) as producer:
        await producer.send_together(*([said(1)] * 1100))
        code, frames = await producer.closed()
    assert 1008 == code
    assert {"not_open", "flood"} == {frame["code"] for frame in frames}


async def test_a_flood_is_not_answered_to_its_end(producer: Producer) -> None:
    """A small frame of many bad events does not make the server write and write."""
    await producer.send_raw("[" + ",".join(["{}"] * 20_000) + "]")
    code, frames = await producer.closed()
    assert 1008 == code
    assert len(frames) < 5_000


async def test_good_events_end_a_flood(producer: Producer) -> None:
    """A producer whose every frame has one bad event beside a good one is no flood."""
    for _ in range(1_100):
        await producer.send_together(said(), unknown())
    errors = await producer.rest()
    assert {"unknown_type"} == {frame["code"] for frame in errors}
    assert 1_100 == len(errors)


# Several lines on one connection


async def test_two_sessions_on_one_connection(producer: Producer, api: Caller) -> None:
    """Events go where their session says, and acks say where they come from."""
    await producer.open("t", producer="other")
    await producer.send_together(said(1, session_id="t"), said(1, session_id="s"), said(2, session_id="t"))
    acks = {(frame["session_id"], frame["producer"], frame["seq"]) for frame in await producer.rest()}
    assert {("s", "main", 1), ("t", "other", 2)} == acks
    assert (1, 2) == (len(await api.journal("s")), len(await api.journal("t")))


async def test_two_producers_of_one_session_on_one_connection(app: App, api: Caller) -> None:
    """An ASR and an LLM worker may share a connection, each with its own seqs."""
    async with producing(app, producer="asr") as both:
        await both.open(producer="llm")
        await both.send_together(said(1, producer="asr"), said(1, producer="llm"), said(2, producer="asr"))
        acks = {(frame["producer"], frame["seq"]) for frame in await both.rest()}
    assert {("asr", 2), ("llm", 1)} == acks
    assert [("asr", 1), ("asr", 2)] == [
        (row["producer"], row["seq"]) for row in await api.journal() if row["producer"] == "asr"
    ]


async def test_two_producers_on_two_connections(app: App, api: Caller) -> None:
    """Both write one journal; nobody supersedes the other."""
    async with producing(app, producer="asr") as asr, producing(app, producer="llm") as llm:
        for seq in range(1, 6):
            await asr.store(said(seq))
            await llm.store(said(seq))
    assert ["asr", "llm"] * 5 == [row["producer"] for row in await api.journal()]


@pytest.mark.parametrize("name", [{}, {"producer": "main"}])
async def test_with_several_sessions_an_event_names_its_own(producer: Producer, api: Caller, name: JsonObject) -> None:
    """Without a session it is refused, and takes nobody's seq."""
    await producer.open("t")
    await producer.send(said(1, **name))
    await producer.expect_error("session_required", seq=1)
    assert ([], []) == (await api.journal("s"), await api.journal("t"))
    await producer.store(said(1, session_id="t"))


async def test_with_several_producers_an_event_names_its_own(producer: Producer, api: Caller) -> None:
    """A session alone does not say which producer speaks."""
    await producer.open(producer="llm")
    await producer.send(said(1, session_id="s"))
    await producer.expect_error("session_required", seq=1)
    assert [] == await api.journal()


@pytest.mark.parametrize("name", [{"session_id": "t"}, {"session_id": "s", "producer": "llm"}])
async def test_what_is_not_open_takes_no_events(producer: Producer, api: Caller, name: JsonObject) -> None:
    """An event for another session or producer than those opened here goes nowhere."""
    await api.create("t")
    await producer.send(said(1, **name))
    await producer.expect_error("not_open", seq=1, **name)
    assert ([], []) == (await api.journal("s"), await api.journal("t"))


async def test_before_an_open_nothing_is_taken(app: App, api: Caller) -> None:
    """An event on a new connection is refused and stored nowhere, though the session exists."""
    await api.create()
    async with connected(app) as producer:
        await producer.send(said(1), said(1, session_id="s"), end(1))
        for _ in range(3):
            await producer.expect_error("not_open", seq=1)
        await producer.open()
        await producer.store(said(1))
    assert 1 == len(await api.journal())


async def test_what_was_sent_before_an_open_is_stored_before_it(app: App, api: Caller) -> None:
    """Frames count in their order: an open waits for the events before it."""
    async with producing(app) as producer:
        await producer.send(said(1), said(2), {"type": "session.open", "session_id": "s"}, said(3))
        await producer.expect_ack(2)
        assert 3 == (await producer.expect("session.ready"))["next_seq"]
        await producer.expect_ack(3)


# A producer that has lost events


async def test_a_hole_is_declared_and_seen(app: App, api: Caller) -> None:
    """`from_seq` above the next seq is journaled with the first and last missing seq, and the call goes on there."""
    async with producing(app) as producer:
        await producer.store(said(1), said(2))
    async with connected(app) as again:
        assert 6 == (await again.open(from_seq=6))["next_seq"]
        await again.store(said(6))
    gap = {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 5}
    assert [said(1), said(2), gap, said(6)] == await journaled(api)
    row = (await api.journal())[2]
    assert (3, None, None) == (row["position"], row["producer"], row["seq"])


async def test_a_new_session_may_begin_with_a_hole(app: App, api: Caller) -> None:
    """A producer whose store was lost goes on with what it still has."""
    async with connected(app) as producer:
        assert 9 == (await producer.open(from_seq=9))["next_seq"]
        await producer.store(said(9))
    gap = {"type": "session.gap", "producer": "main", "from_seq": 1, "to_seq": 8}
    assert [gap, said(9)] == await journaled(api)


@pytest.mark.parametrize("from_seq", [1, 2, 3])
async def test_what_can_still_be_sent_is_no_hole(app: App, api: Caller, from_seq: int) -> None:
    """`from_seq` at or below the next seq changes nothing; resends are duplicates."""
    async with producing(app) as producer:
        await producer.store(said(1), said(2))
        assert 3 == (await producer.open(from_seq=from_seq))["next_seq"]
        await producer.store(said(1), said(3))
    assert [said(1), said(2), said(3)] == await journaled(api)


async def test_what_is_in_a_hole_is_never_acknowledged(app: App, api: Caller) -> None:
    """An event that was given up and turns up later cannot be stored any more, so it gets an error."""
    async with producing(app, from_seq=5) as producer:
        await producer.send(said(3))
        await producer.expect_error("seq_conflict", seq=3)
        await producer.store(said(5))
    assert 2 == len(await api.journal())


# The window


async def test_a_client_may_read_its_acks_late(app: App, api: Caller) -> None:
    """Who sends a long call without reading a single answer loses nothing."""
    events = [said(seq, text="word " * 20) for seq in range(1, 20_001)]
    async with producing(app) as producer:
        producer.socket.transport.pause_reading()
        for start in range(0, len(events), 50):
            await producer.send_together(*events[start : start + 50])
        producer.socket.transport.resume_reading()
        await producer.expect_ack(20_000)
    last = (await api.journal(query="?after=19998"))[-1]
    assert (20_000, 20_000, events[-1]) == (last["position"], last["seq"], last["event"])


async def test_over_the_window_the_server_stops_reading(on_file: App, tmp_path: Path) -> None:
    """While nothing can be committed at most a window is taken in; later everything is stored, nothing dropped."""
    events = [said(seq, text="x" * 100_000) for seq in range(1, 201)]
    async with producing(on_file) as producer:
        with held_store(f"{tmp_path}/db"):
            sending = asyncio.create_task(producer.send(*events))
            done, _ = await asyncio.wait({sending}, timeout=1.0)
            assert not done
            assert max(one.unanswered for one in on_file.ingest.connections) <= 1.3 * MIB  # a read brings up to 256 KiB
        await producer.expect_ack(200)
        await sending
    assert 200 == (await Caller(on_file).session())["position"]


async def test_a_slow_session_holds_up_only_its_connection(app: App) -> None:
    """A client whose window is full, and who reads nothing, leaves others untouched."""
    async with producing(app, "slow") as slow, producing(app, "quick") as quick:
        slow.socket.transport.pause_reading()
        sending = asyncio.create_task(slow.send(*(unknown(seq) for seq in range(1, 900))))
        for seq in range(1, 50):
            await quick.store(said(seq))
        await sending
        slow.socket.transport.resume_reading()
        assert 899 == len(await slow.rest())


# A store in trouble


async def test_a_store_that_is_down_acknowledges_nothing(app: App, api: Caller) -> None:
    """The connection is closed with 1013 without an ack; after the recovery a resend stores everything once."""
    async with producing(app) as producer:
        await producer.store(said(1))
        async with full_store(app):
            await producer.send_together(said(2, text=BIG), said(3))
            code, frames = await producer.closed()
    assert (1013, ["store_unavailable"]) == (code, [frame.get("code") for frame in frames])
    async with connected(app) as again:
        assert 2 == (await again.open())["next_seq"]
        await again.store(said(1), said(2, text=BIG), said(3))
    assert [1, 2, 3] == [row["seq"] for row in await api.journal()]
    assert ["Line 1.", BIG, "Line 3."] == [one["content"] for one in await api.contents()]


async def test_a_service_whose_store_is_down_is_not_ready(on_file: App) -> None:
    """`readyz` tells the last commit's outcome, `livez` does not care."""
    api = Caller(on_file)
    async with producing(on_file) as producer, down_store(on_file):
        await producer.send(said(1))
        assert 1013 == (await producer.closed())[0]
        assert [503, 200] == [(await api.get(path)).status for path in ("/readyz", "/livez")]
        assert (503, "store_unavailable") == (await api.post("/v1/sessions/s/events", [said(1)])).told
    assert {"next_seq": 2, "errors": []} == await api.send(said(1))
    assert 200 == (await api.get("/readyz")).status


async def test_a_service_gets_ready_by_itself(on_file: App) -> None:
    """After the outage `readyz` is well again though nobody sends anything: nobody would, as long as it is not."""
    async with producing(on_file) as producer, down_store(on_file):
        await producer.send(said(1))
        await producer.closed()
    await until(200, lambda: readiness(Caller(on_file)), timeout_s=4)


async def readiness(api: Caller) -> int:
    """What `readyz` answers."""
    return (await api.get("/readyz")).status


async def test_what_was_acknowledged_can_be_read_while_the_store_is_down(app: App, api: Caller) -> None:
    """Readers are shown what is stored, and nothing of what is not."""
    async with producing(app) as producer:
        await producer.store(said(1))
        async with full_store(app):
            await producer.send(said(2, text=BIG))
            await producer.closed()
            assert ["Line 1."] == [one["content"] for one in await api.contents()]


async def test_an_open_while_the_store_is_down_is_turned_away(app: App, api: Caller) -> None:
    """There is no ready without a commit; the client is to try again later."""
    async with full_store(app), connected(app) as producer:
        await producer.send({"type": "session.open", "session_id": "s", "session": {"llm": {"params": {"a": BIG}}}})
        code, frames = await producer.closed()
    assert (1013, ["store_unavailable"]) == (code, [frame.get("code") for frame in frames])
    assert 404 == (await api.get("/v1/sessions/s")).status


async def test_after_an_outage_silence_counts_again(app: App, api: Caller) -> None:
    """A session whose producer did not come back after the store was down is closed as idle."""
    async with producing(app, session={"idle_timeout": 0.2}) as producer, full_store(app):
        await producer.send(said(1, text=BIG))
        await producer.closed()
    await until("ended", lambda: state(api), timeout_s=2)


async def test_silence_that_begins_in_an_outage_counts(on_file: App) -> None:
    """A session whose last connection went while nothing could be committed is closed as idle afterwards."""
    async with producing(on_file, session={"idle_timeout": 0.2}) as producer, down_store(on_file):
        await producer.socket.close()
        await until(0, lambda: connections(on_file))
    await until("ended", lambda: state(Caller(on_file)), timeout_s=2)


async def test_an_open_that_fails_does_not_hide_a_silence(on_file: App, tmp_path: Path) -> None:
    """A session whose last connection went while another open was on its way, and failed, is closed as idle."""
    await database_of(on_file).write(lambda connection: connection.set_busy_timeout(300))
    async with producing(on_file, session={"idle_timeout": 0.2}) as last, connected(on_file) as failing:
        with held_store(f"{tmp_path}/db"):
            await failing.send({"type": "session.open", "session_id": "s", "producer": "other"})
            await until({"main": 1, "other": 1}, lambda: producers(on_file))
            await last.socket.close()
            assert 1013 == (await failing.closed())[0]
    await until("ended", lambda: state(Caller(on_file)), timeout_s=2)


async def producers(app: App) -> JsonObject:
    """Who is connected to session "s", and how often."""
    return dict(app.services.presence.connected.get(("default", "s"), {}))


async def connections(app: App) -> int:
    """How many there are."""
    return len(app.ingest.connections)


async def test_after_a_flood_silence_counts_again(app: App, api: Caller) -> None:
    """A session whose producer was sent away is closed as idle."""
    async with producing(app, session={"idle_timeout": 0.2}) as producer:
        await producer.send_together(*(unknown(seq) for seq in range(1, 1_100)))
        assert 1008 == (await producer.closed())[0]
    await until("ended", lambda: state(api), timeout_s=2)


async def state(api: Caller) -> str:
    """Of session "s"."""
    return str((await api.session())["state"])
