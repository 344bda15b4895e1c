"""Bad input 21 to 32: numbers that are none, or that not every reader of JSON can hold."""

from __future__ import annotations

import pytest
from bad_input import Bad, check, event, every_way, raw
from services import Serve

CASES = [
    Bad("21 NaN", raw('"ts":NaN'), "invalid_json"),
    Bad("21 NaN in an unknown field", raw('"a":NaN'), "invalid_json"),
    Bad("22 Infinity", raw('"confidence":Infinity'), "invalid_json"),
    Bad("22 -Infinity", raw('"a":-Infinity'), "invalid_json"),
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
    Bad("32 leading zero", raw('"turn_id":01'), "invalid_json"),
    Bad("32 leading plus", raw('"turn_id":+1'), "invalid_json"),
    Bad("32 hexadecimal", raw('"turn_id":0x1'), "invalid_json"),
    Bad("32 -0", raw('"turn_id":-0'), None),
    Bad("32 -1", raw('"turn_id":-1'), "invalid_field"),
]


@every_way(CASES)
async def test_bad_numbers(serve: Serve, caplog: pytest.LogCaptureFixture, bad: Bad, way: str) -> None:
    """Each has its documented code, leaves nothing of its content in journal and log, and all goes on."""
    await check(await serve(), bad, way, caplog)
