"""Bad input 21 to 32: numbers that are none, or that not every reader of JSON can hold."""

from __future__ import annotations

import pytest

from tests.support.callers.bad_input import BadFrame, check_refusal, event, over_websocket_and_http, raw
from voicemem.app import App

CASES = [
    BadFrame("21 NaN", raw('"ts":NaN'), "invalid_json"),
    BadFrame("21 NaN in an unknown field", raw('"a":NaN'), "invalid_json"),
    BadFrame("22 Infinity", raw('"confidence":Infinity'), "invalid_json"),
    BadFrame("22 -Infinity", raw('"a":-Infinity'), "invalid_json"),
    BadFrame("23 1e400", raw('"ts":1e400'), "invalid_field"),
    BadFrame("23 1e400 for a number", raw('"confidence":1e400'), "invalid_field"),
    BadFrame("23 1e400 in an unknown field", raw('"a":[1e400]'), "unknown_field"),
    BadFrame("24 5,000 digits", raw('"ts":' + "9" * 5_000), "invalid_field"),
    BadFrame("24 5,000 digits in metadata", raw('"metadata":{"a":' + "9" * 5_000 + "}"), "invalid_field"),
    BadFrame("24 5,000 digits behind a point", raw('"metadata":{"a":0.' + "9" * 5_000 + "}"), None),
    BadFrame("25 2^53", event(ts=2**53), None),
    BadFrame("25 2^53+1", event(ts=2**53 + 1), "invalid_field"),
    BadFrame("25 2^53+1 in an unknown field", event(a={"b": [2**53 + 1]}), "unknown_field"),
    BadFrame("25 2^53+1 for the turn", event(turn_id=2**53 + 1), "invalid_field"),
    BadFrame("26 2^63", event(ts=2**63), "invalid_field"),
    BadFrame("26 2^63 in metadata", event(metadata={"a": 2**63}), "invalid_field"),
    BadFrame("27 2^64", event(ts=2**64), "invalid_field"),
    BadFrame("27 2^64 for the seq", event(seq=2**64), "invalid_field", False),
    BadFrame("28 -2^63-1", event(ts=-(2**63) - 1), "invalid_field"),
    BadFrame("29 1.0 for int", raw('"turn_id":1.0'), "invalid_field"),
    BadFrame("29 1e0 for int", raw('"turn_id":1e0'), "invalid_field"),
    BadFrame("29 1.0 for the seq", raw('"seq":2.0'), "invalid_field", False),
    BadFrame("30 true for int", raw('"turn_id":true'), "invalid_field"),
    BadFrame("30 true for the seq", raw('"seq":true'), "invalid_field", False),
    BadFrame('31 "1" for int', raw('"turn_id":"1"'), "invalid_field"),
    BadFrame('31 "2" for the seq', raw('"seq":"2"'), "invalid_field", False),
    BadFrame("31 1 for bool", raw('"final":1'), "invalid_field"),
    BadFrame("31 1 for text", raw('"text":1'), "invalid_field"),
    BadFrame("32 leading zero", raw('"turn_id":01'), "invalid_json"),
    BadFrame("32 leading plus", raw('"turn_id":+1'), "invalid_json"),
    BadFrame("32 hexadecimal", raw('"turn_id":0x1'), "invalid_json"),
    BadFrame("32 -0", raw('"turn_id":-0'), None),
    BadFrame("32 -1", raw('"turn_id":-1'), "invalid_field"),
]


@over_websocket_and_http(CASES)
async def test_bad_numbers(app: App, caplog: pytest.LogCaptureFixture, bad: BadFrame, way: str) -> None:
    """Each has its documented code, leaves nothing of its content in journal and log, and all goes on."""
    await check_refusal(app, bad, way, caplog)
