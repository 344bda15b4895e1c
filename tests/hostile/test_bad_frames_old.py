"""Bad input over a real websocket, numbered as in the list of bad inputs: JSON, numbers, strings, order.

Each case is sent to a session that has one event. Whatever comes of it, the service lives, nothing of a bad event is
stored, and no word of it is logged.
"""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import logging
from collections.abc import AsyncIterator
from typing import Any, NamedTuple

import pytest
from callers import Caller
from producers import Fields, Producer, connected, end, producing, said
from services import Serve
from websockets.exceptions import ConnectionClosed

from voicemem.app import App

SECRET = "geheim"
"""In every bad frame, and nowhere else."""
KEY = "k" * 40
MIB = 1024 * 1024
CLOSED = 1007
"""What is no UTF-8 JSON, or no event or array of events."""


class Bad(NamedTuple):
    """A frame, and what comes of it: a close code, the code of an error, or None when it is stored.

    `consumed` says whether a refused event takes its seq.
    """

    number: str
    frame: str | bytes
    outcome: int | str | None
    consumed: bool = True


def event(**fields: Any) -> str:
    """A good event of seq 2, but for these fields."""
    return json.dumps(said(2, text=SECRET) | fields)


def raw(fields: str) -> str:
    """A good event of seq 2, and these fields as they are written."""
    return f'{{"type":"asr","seq":2,"turn_id":2,"text":"{SECRET}","final":true,{fields}}}'


def text(value: str | bytes) -> bytes:
    """A good event of seq 2 whose text is written like this."""
    value = value.encode() if isinstance(value, str) else value
    return b'{"type":"asr","seq":2,"turn_id":2,"final":true,"user":"geheim","text":"%s"}' % value


def deep(levels: int, where: str = "deep") -> str:
    """An event of this nesting; the event itself is a level."""
    return raw(f'"{where}":' + "[" * (levels - 1) + "]" * (levels - 1))


JSON_STRUCTURE = [
    Bad("1 empty", "", CLOSED),
    Bad("2 whitespace", " \t\r\n", CLOSED),
    Bad("3 truncated", event()[:-1], CLOSED),
    Bad("3 truncated in a text", event()[:40], CLOSED),
    Bad("4 trailing garbage", event() + "x", CLOSED),
    Bad("4 trailing bracket", event() + "}", CLOSED),
    Bad("5 two documents", event() + event(), CLOSED),
    Bad("5 two lines", event() + "\n" + event(seq=3), CLOSED),
    Bad("6 trailing comma", raw('"a":1,'), CLOSED),
    Bad("6 trailing comma in an array", f"[{event()},]", CLOSED),
    Bad("7 comment", "/* geheim */" + event(), CLOSED),
    Bad("7 comment inside", raw('"a":1 // geheim\n'), CLOSED),
    Bad("8 single quotes", event().replace('"', "'"), CLOSED),
    Bad("9 BOM", "\ufeff" + event(), CLOSED),
    Bad("10 UTF-16", event().encode("utf-16"), CLOSED),
    Bad("10 UTF-16 without a BOM", event().encode("utf-16-le"), CLOSED),
    Bad("11 depth 32", deep(32), None),
    Bad("11 depth 33", deep(33), CLOSED),
    Bad("11 depth 33 in metadata", deep(33, "metadata"), CLOSED),
    Bad("11 depth 33 in an array", f"[{deep(33)}]", CLOSED),
    Bad("12 depth 255", deep(255), CLOSED),
    Bad("13 depth 1,025", deep(1_025), CLOSED),
    Bad("14 depth 100,000", "[" * 100_000, CLOSED),
    Bad("14 depth 100,000 of objects", '{"a":' * 100_000, CLOSED),
    Bad("15 depth 100,000 in an unknown field", deep(100_000), CLOSED),
    Bad("16 a number", "1", CLOSED),
    Bad("16 a string", f'"{SECRET}"', CLOSED),
    Bad("16 null", "null", CLOSED),
    Bad("16 true", "true", CLOSED),
    Bad("16 an array of arrays", f"[[{event()}]]", CLOSED),
    Bad("16 one of an array is none", f"[{event()},1]", CLOSED),
    Bad("17 duplicate key", raw('"turn_id":3'), None),
    Bad("17 duplicate seq", raw('"seq":9'), "seq_gap", False),
    Bad("18 duplicate type", raw('"type":"llm.done"'), "unknown_type"),
    Bad("19 a mebibyte of keys", raw(",".join(f'"{n:07}":0' for n in range(80_000))), None),
    Bad("19 a mebibyte of metadata", event(metadata={f"{n:07}": 0 for n in range(70_000)}), None),
    Bad("20 unknown field", event(geheim=SECRET), None),
    Bad("20 unknown type", event(type=SECRET), "unknown_type"),
    Bad("20 no type", event(type=None), "invalid_field"),
]
NUMBERS = [
    Bad("21 NaN", raw('"ts":NaN'), CLOSED),
    Bad("21 NaN in an unknown field", raw('"a":NaN'), CLOSED),
    Bad("22 Infinity", raw('"confidence":Infinity'), CLOSED),
    Bad("22 -Infinity", raw('"a":-Infinity'), CLOSED),
    Bad("23 1e400", raw('"ts":1e400'), "invalid_field"),
    Bad("23 1e400 for a number", raw('"confidence":1e400'), "invalid_field"),
    Bad("23 1e400 in an unknown field", raw('"a":[1e400]'), "invalid_field"),
    Bad("24 5,000 digits", raw('"ts":' + "9" * 5_000), "invalid_field"),
    Bad("24 5,000 digits in metadata", raw('"metadata":{"a":' + "9" * 5_000 + "}"), "invalid_field"),
    Bad("24 5,000 digits behind a point", raw('"a":0.' + "9" * 5_000), None),
    Bad("25 2^53", event(ts=2**53), None),
    Bad("25 2^53+1", event(ts=2**53 + 1), "invalid_field"),
    Bad("25 2^53+1 in an unknown field", event(a={"b": [2**53 + 1]}), "invalid_field"),
    Bad("25 2^53+1 for the turn", event(turn_id=2**53 + 1), "invalid_field"),
    Bad("26 2^63", event(ts=2**63), "invalid_field"),
    Bad("26 2^63 in metadata", event(metadata={"a": 2**63}), "invalid_field"),
    Bad("27 2^64", event(ts=2**64), "invalid_field"),
    Bad("27 2^64 for the seq", event(seq=2**64), "invalid_field", False),
    Bad("28 -2^63-1", event(ts=-(2**63) - 1), "invalid_field"),
    Bad("29 1.0 for int", raw('"turn_id":1.0'), "invalid_field"),
    Bad("29 1e0 for int", raw('"turn_id":1e0'), "invalid_field"),
    Bad("29 1.0 for the seq", raw('"seq":2.0'), "invalid_field", False),
    Bad("30 true for int", raw('"turn_id":true'), "invalid_field"),
    Bad("30 true for the seq", raw('"seq":true'), "invalid_field", False),
    Bad('31 "1" for int', raw('"turn_id":"1"'), "invalid_field"),
    Bad('31 "2" for the seq', raw('"seq":"2"'), "invalid_field", False),
    Bad("31 1 for bool", raw('"final":1'), "invalid_field"),
    Bad("31 1 for text", raw('"text":1'), "invalid_field"),
    Bad("32 leading zero", raw('"turn_id":01'), CLOSED),
    Bad("32 leading plus", raw('"turn_id":+1'), CLOSED),
    Bad("32 hexadecimal", raw('"turn_id":0x1'), CLOSED),
    Bad("32 -0", raw('"turn_id":-0'), None),
    Bad("32 -1", raw('"turn_id":-1'), "invalid_field"),
]
STRINGS = [
    Bad("33 invalid UTF-8", text(b"\xff"), CLOSED),
    Bad("33 overlong UTF-8", text(b"\xc0\xaf"), CLOSED),
    Bad("33 truncated UTF-8", text(b"\xf0\x9f\x98"), CLOSED),
    Bad("34 lone high surrogate escape", text(r"\ud800"), CLOSED),
    Bad("34 lone high surrogate escape in an unknown field", raw(r'"a":"\ud83d"'), CLOSED),
    Bad("35 lone low surrogate escape", text(r"\udc00"), CLOSED),
    Bad("35 surrogates the wrong way round", raw(r'"a":"\udc00\ud800"'), CLOSED),
    Bad("36 UTF-8-encoded surrogate", text(b"\xed\xa0\x80"), CLOSED),
    Bad(r"37 \u0000", text(r"a\u0000b"), None),
    Bad(r"37 \u0000 in an id", raw(r'"item":"\u0000"'), None),
    Bad("38 raw control character", text("a\x01b"), CLOSED),
    Bad("38 raw line break", text("a\nb"), CLOSED),
    Bad("38 raw control character in an unknown field", raw('"a":"\x1f"'), CLOSED),
    Bad("38 bad escape", text(r"\x41"), CLOSED),
    Bad("38 DEL", text("a\x7fb"), None),
    Bad("39 noncharacters", text("\ufffe\uffff\U0010ffff"), None),
    Bad("40 right-to-left override", text("\u202egeheim\u202c"), None),
    Bad("41 emoji", text("👩\u200d🚀"), None),
    Bad("41 emoji as escapes", text(r"\ud83d\ude80"), None),
    Bad("42 an NFC name", event(user="caf\u00e9"), None),
    Bad("42 an NFD name", event(user="cafe\u0301"), None),
    Bad("42 a session id that is no ASCII", event(session_id="caf\u00e9"), "invalid_field"),
    Bad("42 a session id of full-width letters", event(session_id="\uff53"), "invalid_field"),
    Bad("43 a text of 256 KiB", event(text="ä" * (128 * 1024)), None),
    Bad("43 a text over 256 KiB", event(text="ä" * (128 * 1024) + "x"), "text_too_long"),
    Bad("43 a text of 1 MiB", event(text="x" * MIB), 1009),
    Bad("44 only whitespace", text(r" \t "), None),
    Bad("44 only ideographic space", text("\u3000"), None),
    Bad("45 CR and LF", text(r"a\r\nERROR voicemem: geheim"), None),
    Bad("45 CR and LF in an id", event(item="a\r\nERROR geheim"), None),
    Bad("45 CR and LF in a session id", event(session_id="s\r\ngeheim"), "invalid_field"),
    Bad("45 CR and LF in a type", event(type="a\r\nERROR geheim"), "unknown_type"),
    Bad("46 HTML", text("<script>geheim</script>"), None),
    Bad("46 SQL", text("'; drop table journal; --"), None),
    Bad("46 format strings", text("%s%n{0}{self.__class__}${jndi:ldap://geheim}"), None),
    Bad("46 SQL in a session id", event(session_id="' or 1=1 --"), "invalid_field"),
]
ORDER = [
    Bad("49 seq 0", event(seq=0), "invalid_field", False),
    Bad("50 negative seq", event(seq=-1), "invalid_field", False),
    Bad("51 seq gap", event(seq=4), "seq_gap", False),
    Bad("51 the largest gap", event(seq=2**53), "seq_gap", False),
    Bad("52 old seq same body", json.dumps(said(1)), None),
    Bad("53 old seq other body", event(seq=1), "seq_conflict", False),
    Bad("56 end with a last_seq too high", json.dumps(end(2, last_seq=2, reason=SECRET)), "last_seq_mismatch"),
    Bad("56 end with a last_seq too low", json.dumps(end(2, last_seq=0, reason=SECRET)), "last_seq_mismatch"),
    Bad("56 end with a last_seq and no seq", json.dumps(end(last_seq=1, reason=SECRET)), "last_seq_mismatch", False),
    Bad("58 another session's id", event(session_id="other"), "not_open", False),
    Bad("58 another producer", event(session_id="s", producer="other"), "not_open", False),
    Bad("59 a time in the far future", event(ts=2**53), None),
    Bad("59 a time in the far past", event(ts=-(2**53)), None),
    Bad("59 a time before the one before", event(ts=1), None),
    Bad("60 a turn's id for another role", json.dumps(said(2, turn_id=1) | {"type": "llm.done"}), None),
]
CASES = [*JSON_STRUCTURE, *NUMBERS, *STRINGS, *ORDER]


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with a session of somebody else."""
    app = await serve()
    await Caller(app).create("other")
    return app


@pytest.fixture
async def producer(app: App) -> AsyncIterator[Producer]:
    """A producer of session "s", which has one event."""
    async with producing(app) as one:
        await one.store(said(1))
        yield one


async def come_of(producer: Producer, frame: str | bytes) -> int | str | None:
    """What comes of a frame: the code of a close, else of an error; None for an ack."""
    await producer.send_raw(frame)
    try:
        answer = await producer.next()
    except ConnectionClosed as gone:
        return gone.rcvd.code if gone.rcvd else None
    assert SECRET not in json.dumps(answer)
    closing = answer.get("code") in ("invalid_json", "not_events", "too_deep")
    return (await producer.closed())[0] if closing else answer.get("code")


async def journaled(app: App) -> list[Fields]:
    """The events of session "s"."""
    return [row["event"] for row in await Caller(app).journal()]


def left(bad: Bad) -> list[Fields]:
    """What the journal holds after a case that is not stored."""
    refused = isinstance(bad.outcome, str) and bad.consumed
    return [said(1), *([{"type": "refused", "code": bad.outcome}] if refused else [])]


@pytest.mark.parametrize("bad", [case for case in CASES if case.outcome is not None], ids=lambda bad: bad.number)
async def test_bad_frames(app: App, producer: Producer, caplog: pytest.LogCaptureFixture, bad: Bad) -> None:
    """Each has its documented code, leaves nothing of its content in journal and log, and the service goes on."""
    caplog.set_level(logging.INFO)
    assert bad.outcome == await come_of(producer, bad.frame)
    assert left(bad) == await journaled(app)
    async with connected(app) as again:
        seq = (await again.open())["next_seq"]
        assert len(left(bad)) + 1 == seq
        await again.store(said(seq))
    assert SECRET not in caplog.text
    assert "Traceback" not in caplog.text


@pytest.mark.parametrize("bad", [case for case in CASES if case.outcome is None], ids=lambda bad: bad.number)
async def test_odd_but_good_frames(app: App, producer: Producer, caplog: pytest.LogCaptureFixture, bad: Bad) -> None:
    """What is only odd is kept as it is, can be read, and is logged as little."""
    caplog.set_level(logging.INFO)
    assert await come_of(producer, bad.frame) is None
    assert json.loads(bad.frame) == (await journaled(app))[-1]
    assert "Line 1." in [message["content"] for message in await Caller(app).contents()]
    assert SECRET not in caplog.text


# 47, 48, 54, 55, 57: order that takes more than one frame


async def test_47_an_event_before_the_hello(app: App) -> None:
    """Nothing is taken before an open, not even for a session that exists."""
    async with connected(app) as producer:
        await producer.send(said(1, session_id="other"))
        await producer.expect_error("not_open", seq=1)
    assert [] == await Caller(app).journal("other")


async def test_48_a_second_hello(app: App, producer: Producer) -> None:
    """A second open on one connection is a new epoch, and the call goes on."""
    ready = await producer.open()
    assert (2, 2) == (ready["epoch"], ready["next_seq"])
    await producer.store(said(2))
    assert [said(1), said(2)] == await journaled(app)


async def test_54_an_event_after_the_end(app: App, producer: Producer) -> None:
    """What comes after a producer's own end is refused, and commits nothing."""
    await producer.store(end(2))
    await producer.send(said(3))
    await producer.expect_error("session_ended", seq=3)
    assert ["asr", "session.end", "session.closed"] == [event["type"] for event in await journaled(app)]


async def test_55_the_end_twice(app: App, producer: Producer) -> None:
    """The same end is acknowledged again, another one is refused; there is one close."""
    await producer.store(end(2), end(2))
    await producer.send(end(3))
    await producer.expect_error("session_ended", seq=3)
    assert ["asr", "session.end", "session.closed"] == [event["type"] for event in await journaled(app)]


@pytest.mark.parametrize(("epoch", "code"), [(1, "superseded"), (3, "superseded"), (2, None)])
async def test_57_a_stale_epoch(app: App, producer: Producer, epoch: int, code: str | None) -> None:
    """Only the newest epoch writes, neither an old one nor one that was never given."""
    await producer.open()
    errors = (await Caller(app).send(said(2), query=f"?epoch={epoch}"))["errors"]
    assert [code] * len(errors) == [error["code"] for error in errors]
    assert (2 if code is None else 1) == len(await journaled(app))


async def test_nothing_is_logged_at_any_level(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """An operator who turns on debugging gets neither payloads nor keys into the log."""
    caplog.set_level(logging.DEBUG, logger="voicemem")
    app = await serve(admin_key=KEY)
    async with connected(app, {"Authorization": f"Bearer {KEY}"}) as producer:
        await producer.open()
        await producer.store(said(1, text=SECRET))
    logged = "".join(record.getMessage() for record in caplog.records if record.name.startswith("voicemem"))
    assert SECRET not in logged
    assert KEY not in logged
