"""Bad input 1 to 20: frames that are no JSON, or no events."""

from __future__ import annotations

import pytest

from tests.support.callers.bad_input import SECRET, BadFrame, check_refusal, deep, event, over_websocket_and_http, raw
from voicemem.app import App

CASES = [
    BadFrame("1 empty", "", "invalid_json"),
    BadFrame("2 whitespace", " \t\r\n", "invalid_json"),
    BadFrame("3 truncated", event()[:-1], "invalid_json"),
    BadFrame("3 truncated in a text", event()[:40], "invalid_json"),
    BadFrame("4 trailing garbage", event() + "x", "invalid_json"),
    BadFrame("4 trailing bracket", event() + "}", "invalid_json"),
    BadFrame("5 two documents", event() + event(), "invalid_json"),
    BadFrame("5 two lines", event() + "\n" + event(seq=3), "invalid_json", ways=("websocket",)),
    BadFrame("6 trailing comma", raw('"a":1,'), "invalid_json"),
    BadFrame("6 trailing comma in an array", f"[{event()},]", "invalid_json"),
    BadFrame("7 comment", "/* geheim */" + event(), "invalid_json"),
    BadFrame("7 comment inside", raw('"a":1 // geheim\n'), "invalid_json"),
    BadFrame("8 single quotes", event().replace('"', "'"), "invalid_json"),
    BadFrame("9 BOM", "\ufeff" + event(), "invalid_json"),
    BadFrame("10 UTF-16", event().encode("utf-16"), "invalid_json"),
    BadFrame("10 UTF-16 without a BOM", event().encode("utf-16-le"), "invalid_json"),
    BadFrame("11 depth 32", deep(32), None),
    BadFrame("11 depth 33", deep(33), "too_deep"),
    BadFrame("11 depth 33 in an array", f"[{deep(33)}]", "too_deep"),
    BadFrame("12 depth 255", deep(255), "too_deep"),
    BadFrame("13 depth 1,025", deep(1_025), "too_deep"),
    BadFrame("14 depth 100,000", "[" * 100_000, "too_deep"),
    BadFrame("14 depth 100,000 of objects", '{"a":' * 100_000, "too_deep"),
    BadFrame("15 depth 100,000 in an unknown field", raw('"a":' + "[" * 100_000 + "]" * 100_000), "too_deep"),
    BadFrame("16 a number", "1", "not_events"),
    BadFrame("16 a string", f'"{SECRET}"', "not_events"),
    BadFrame("16 null", "null", "not_events"),
    BadFrame("16 true", "true", "not_events"),
    BadFrame("16 an array of arrays", f"[[{event()}]]", "not_events"),
    BadFrame("16 one of an array is none", f"[{event()},1]", "not_events"),
    BadFrame("17 duplicate key", raw('"turn_id":3'), None),
    BadFrame("17 duplicate seq", raw('"seq":9'), "seq_gap", False),
    BadFrame("18 duplicate type", raw('"type":"llm.done"'), "unknown_type"),
    BadFrame("19 a mebibyte of keys", raw(",".join(f'"{n:07}":0' for n in range(80_000))), "unknown_field"),
    BadFrame("19 a mebibyte of metadata", event(metadata={f"{n:07}": 0 for n in range(70_000)}), None),
    BadFrame("20 unknown field", event(mood=SECRET), "unknown_field"),
    BadFrame("20 unknown type", event(type=SECRET), "unknown_type"),
    BadFrame("20 no type", event(type=None), "invalid_field"),
]


@over_websocket_and_http(CASES)
async def test_bad_json(app: App, caplog: pytest.LogCaptureFixture, bad: BadFrame, way: str) -> None:
    """Each has its documented code, leaves nothing of its content in journal and log, and all goes on."""
    await check_refusal(app, bad, way, caplog)
