"""What the suite of bad input shares: a bad frame and what comes of it, over the websocket and over HTTP.

The numbers are those of the list of bad inputs; `test_all_are_here.py` sees to it that none is missing.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import pytest

from tests.support.callers.producer import Producer, connected_producer, open_producer
from tests.support.callers.rest import RestClient, fresh_id
from tests.support.events import final_transcript
from tests.support.rows import every_row
from voicemem.app import App
from voicemem.errors import CODES
from voicemem.protocol.codec import replace_nul
from voicemem.protocol.types import JsonObject

SECRET = "geheim"
"""In every bad frame, and nowhere else: not in an answer, not in a log."""
MIB = 1024 * 1024
CLOSED = "invalid_json", "not_events", "too_deep", "too_big"
"""Codes of what is no frame of events, which close a connection."""


class BadFrame(NamedTuple):
    """A frame, and what comes of it: a code, or None when it is stored."""

    number: str
    frame: str | bytes
    code: str | None
    consumed: bool = True
    """Whether a refused event takes its seq."""
    ways: tuple[str, ...] = ("websocket", "http")
    """What is good in one of them may be bad in the other."""

    @property
    def left(self) -> list[JsonObject]:
        """What the journal holds of a bad frame."""
        refused = self.code is not None and self.code not in CLOSED and self.consumed
        return [{"type": "refused", "code": self.code}] if refused else []


def event(**fields: Any) -> str:
    """A good event of seq 2, but for these fields."""
    return json.dumps(final_transcript(2, text=SECRET) | fields)


def raw(fields: str) -> str:
    """A good event of seq 2, and these fields as they are written."""
    return f'{{"type":"asr","seq":2,"turn_id":2,"text":"{SECRET}","final":true,{fields}}}'


def text(value: str | bytes) -> bytes:
    """A good event of seq 2 whose text is written like this."""
    value = value.encode() if isinstance(value, str) else value
    return b'{"type":"asr","seq":2,"turn_id":2,"final":true,"user":"geheim","text":"%s"}' % value


def deep(levels: int, where: str = "deep") -> str:
    """An event of this nesting, with arrays in its metadata; the event itself is a level, and so are they."""
    return raw(f'"metadata":{{"{where}":' + "[" * (levels - 2) + "]" * (levels - 2) + "}")


def over_websocket_and_http(cases: Iterable[BadFrame]) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Each case over each way in, in one test."""
    both = [(bad, way) for bad in cases for way in bad.ways]
    return every_row("bad, way", both, ids=[f"{bad.number}, {way}" for bad, way in both])


async def check_refusal(app: App, bad: BadFrame, way: str, logged: pytest.LogCaptureFixture) -> None:
    """Send a case into a new session that has one event; see what comes of it, and that all goes on."""
    logged.clear()
    logged.set_level("INFO")
    session_id = fresh_id()
    await (over_websocket(app, bad, session_id) if way == "websocket" else over_http(app, bad, session_id))
    async with connected_producer(app) as again:
        await check_session_goes_on(again, session_id)
    assert "Still here." in (await RestClient(app).contents(session_id))[-1]["content"]
    assert SECRET not in logged.text
    assert "Traceback" not in logged.text


async def over_websocket(app: App, bad: BadFrame, session_id: str) -> None:
    """A frame on a connection, which closes with the code's close code, or goes on after an error frame or an ack."""
    async with open_producer(app, session_id) as producer:
        await producer.store(final_transcript(1))
        await producer.send_raw(bad.frame)
        if bad.code in CLOSED:
            close, frames = await producer.closed()
            # Of what is no UTF-8 or too big, the library itself tells by the close alone.
            assert [bad.code] * len(frames) == [frame["code"] for frame in frames]
            assert CODES[bad.code].close == close
            return await check_journal(app, bad, session_id)
        answer = await producer.next()
        assert bad.code == answer.get("code"), answer
        assert SECRET not in json.dumps(answer)
        await check_journal(app, bad, session_id)
        return await check_session_goes_on(producer, session_id)


async def over_http(app: App, bad: BadFrame, session_id: str) -> None:
    """A body, which is answered by a problem, or by the errors of its events."""
    api = RestClient(app)
    await api.create(session_id)
    await api.send(final_transcript(1), session_id=session_id)
    body = bad.frame.encode() if isinstance(bad.frame, str) else bad.frame
    answered = await api.post(f"/v1/sessions/{session_id}/events", body)
    assert SECRET.encode() not in answered.body
    if bad.code in CLOSED:
        assert (CODES[bad.code].status, bad.code) == answered.problem
    else:
        assert ([] if bad.code is None else [bad.code]) == [error["code"] for error in answered.appended["errors"]]
    await check_journal(app, bad, session_id)


async def check_journal(app: App, bad: BadFrame, session_id: str) -> None:
    """What is bad has left nothing but, maybe, its code; what is only odd is kept as it is."""
    journal = [row["event"] for row in await RestClient(app).journal(session_id)]
    if bad.code is not None:
        assert [final_transcript(1), *bad.left] == journal
    else:
        event = json.loads(replace_nul(bad.frame.encode() if isinstance(bad.frame, str) else bad.frame))
        assert [final_transcript(1), *([] if event == final_transcript(1) else [event])] == journal


async def check_session_goes_on(producer: Producer, session_id: str) -> None:
    """The session takes its next event."""
    seq = (await producer.open(session_id))["next_seq"]
    await producer.store(final_transcript(seq, text="Still here.", turn_id=99))
