"""Bad input 33 to 46: texts that are none, and texts that are only odd."""

from __future__ import annotations

import logging

import pytest

from tests.support.callers.bad_input import (
    MIB,
    SECRET,
    BadFrame,
    check_refusal,
    event,
    over_websocket_and_http,
    raw,
    text,
)
from tests.support.callers.producer import connected_producer
from tests.support.events import final_transcript
from tests.support.services import Serve
from voicemem.app import App

CASES = [
    BadFrame("33 invalid UTF-8", text(b"\xff"), "invalid_json"),
    BadFrame("33 overlong UTF-8", text(b"\xc0\xaf"), "invalid_json"),
    BadFrame("33 truncated UTF-8", text(b"\xf0\x9f\x98"), "invalid_json"),
    BadFrame("34 lone high surrogate escape", text(r"\ud800"), "invalid_json"),
    BadFrame("34 lone high surrogate escape in an unknown field", raw(r'"a":"\ud83d"'), "invalid_json"),
    BadFrame("35 lone low surrogate escape", text(r"\udc00"), "invalid_json"),
    BadFrame("35 surrogates the wrong way round", raw(r'"a":"\udc00\ud800"'), "invalid_json"),
    BadFrame("36 UTF-8-encoded surrogate", text(b"\xed\xa0\x80"), "invalid_json"),
    BadFrame(r"37 \u0000", text(r"a\u0000b"), None),
    BadFrame(r"37 \u0000 in an id", raw(r'"item":"\u0000"'), "invalid_field"),
    BadFrame(r"37 \u0000 in a key", raw(r'"metadata":{"\u0000":1}'), "invalid_field"),
    BadFrame(r"37 \u0000 behind a backslash", text(r"a\\\u0000b\\u0000"), None),
    BadFrame("38 raw control character", text("a\x01b"), "invalid_json"),
    BadFrame("38 raw line break", text("a\nb"), "invalid_json"),
    BadFrame("38 raw control character in an unknown field", raw('"a":"\x1f"'), "invalid_json"),
    BadFrame("38 bad escape", text(r"\x41"), "invalid_json"),
    BadFrame("38 DEL", text("a\x7fb"), None),
    BadFrame("39 noncharacters", text("\ufffe\uffff\U0010ffff"), None),
    BadFrame("40 right-to-left override", text("\u202egeheim\u202c"), None),
    BadFrame("41 emoji", text("👩\u200d🚀"), None),
    BadFrame("41 emoji as escapes", text(r"\ud83d\ude80"), None),
    BadFrame("42 an NFC name", event(user="caf\u00e9"), None),
    BadFrame("42 an NFD name", event(user="cafe\u0301"), None),
    BadFrame("42 a session id that is no ASCII", event(session_id="caf\u00e9"), "invalid_field"),
    BadFrame("42 a session id of full-width letters", event(session_id="\uff53"), "invalid_field"),
    BadFrame("43 a text of 256 KiB", event(text="ä" * (128 * 1024)), None),
    BadFrame("43 a text over 256 KiB", event(text="ä" * (128 * 1024) + "x"), "text_too_long"),
    BadFrame("43 a text of 1 MiB", event(text="x" * MIB), "too_big"),
    BadFrame("44 only whitespace", text(r" \t "), None),
    BadFrame("44 only ideographic space", text("\u3000"), None),
    BadFrame("45 CR and LF", text(r"a\r\nERROR voicemem: geheim"), None),
    BadFrame("45 CR and LF in an id", event(item="a\r\nERROR geheim"), None),
    BadFrame("45 CR and LF in a session id", event(session_id="s\r\ngeheim"), "invalid_field"),
    BadFrame("45 CR and LF in a type", event(type="a\r\nERROR geheim"), "unknown_type"),
    BadFrame("46 HTML", text("<script>geheim</script>"), None),
    BadFrame("46 SQL", text("'; drop table journal; --"), None),
    BadFrame("46 format strings", text("%s%n{0}{self.__class__}${jndi:ldap://geheim}"), None),
    BadFrame("46 SQL in a session id", event(session_id="' or 1=1 --"), "invalid_field"),
]


@over_websocket_and_http(CASES)
async def test_bad_strings(app: App, caplog: pytest.LogCaptureFixture, bad: BadFrame, way: str) -> None:
    """Each has its documented code, leaves nothing of its content in journal and log, and all goes on."""
    await check_refusal(app, bad, way, caplog)


async def test_45_nothing_is_logged_at_any_level(serve: Serve, caplog: pytest.LogCaptureFixture) -> None:
    """An operator who turns on debugging gets neither payloads nor keys into the log."""
    caplog.set_level(logging.DEBUG, logger="voicemem")
    key = "k" * 40
    app = await serve(admin_key=key)
    async with connected_producer(app, {"Authorization": f"Bearer {key}"}) as producer:
        await producer.open()
        await producer.store(final_transcript(1, text=SECRET))
    logged = "".join(record.getMessage() for record in caplog.records if record.name.startswith("voicemem"))
    assert SECRET not in logged
    assert key not in logged
