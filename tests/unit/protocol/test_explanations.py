"""Why an event is refused, said without what was sent."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from tests.support.samples.frames import rejected

# No payload text in errors

SECRET = "s3cret"
LEAKS: list[bytes] = [
    b'{"type":"%s"}',
    b'{"type":"asr","text":"Hi.","turn_id":"%s"}',
    b'{"type":"asr","text":"Hi.","session_id":"%s !"}',
    b'{"type":"asr","text":{"%s":1}}',
    b'{"type":"asr","text":"Hi.","%s !":1}',
    b'{"type":"asr","text":"Hi.","a - at `$.words[%s !]":1}',
    b'{"type":"asr","text":"Hi.","a` - at `$.%s":1}',
    b'{"type":"asr","text":"Hi.","metadata":"%s"}',
    b'{"type":"asr","text":"Hi.","metadata":{"user":"%s"}}',
    b'{"type":"message","role":"%s","source":"asr","text":"Hi."}',
    b'{"type":"message","role":"user","source":"%s","text":"Hi."}',
    b'{"type":"message","role":"assistant","source":"llm","text":"Hi.","metadata":{"interrupted":"%s"}}',
]


@every_row("quote", ["", "'", '\\"', "`", "''", "\\\\"])
@every_row("template", LEAKS, ids=[template.decode() for template in LEAKS])
def test_detail_does_not_hold_what_was_sent(template: bytes, quote: str) -> None:
    """No sentence of a refusal tells a value, however it is quoted."""
    text = f"{quote}{SECRET}{quote}x{quote}{SECRET}".encode()
    assert SECRET not in rejected(template.replace(b"%s", text)).detail


@given(
    st.sampled_from(LEAKS),
    st.text(alphabet="'\"`$. -[]\\xyz", max_size=6),
    st.text(alphabet="'\"`$. -[]\\xyz", max_size=6),
)
def test_no_detail_holds_what_was_sent(template: bytes, before: str, after: str) -> None:
    """Quotes and brackets around a value do not bring it into a detail."""
    text = json.dumps(before + SECRET + after)[1:-1].encode()
    assert SECRET not in rejected(template.replace(b"%s", text)).detail


# Most events: a shorter way to the same


@pytest.mark.parametrize(
    ("fields", "detail"),
    [
        ('"role":"x","source":"llm"', "must be one of user, assistant: `role`"),
        (
            '"role":"assistant","source":"llm","metadata":{"heard":"x"}',
            "must be one of aligned, estimated, unmatched: `heard`",
        ),
    ],
)
def test_refusal_of_a_choice_lists_what_can_be(fields: str, detail: str) -> None:
    """Where a field is a choice, the sentence shows it."""
    assert rejected(b'{"type":"message","turn_id":1,"text":"a",%b}' % fields.encode()).detail.endswith(detail)


@every_row(
    ("sent", "near"),
    [
        ("llm.dleta", " (did you mean `llm.delta`?)"),
        ("llm_delta", " (did you mean `llm.delta`?)"),
        ("ASR", " (did you mean `asr`?)"),
        ("interupt", " (did you mean `interrupt`?)"),
        ("session.opens", " (did you mean `session.open`?)"),
        ("transcript", ""),
        ("x" * 10_000, ""),
        ("", ""),
    ],
)
def test_an_unknown_type_gets_the_nearest_one_and_all(sent: str, near: str) -> None:
    """The sentence names the type that was probably meant, and lists those that are known; never what was sent."""
    refused = rejected(b'{"type":"%b"}' % sent.encode())
    assert refused.code == "unknown_type"
    assert refused.detail.startswith(
        f"The event's type is unknown{near}; known: `asr`, `auth`, `frame`, `interrupt`, `llm.cancel`,"
    )


def test_reserved_metadata_is_listed() -> None:
    """The sentence about a reserved key lists all of them."""
    refused = rejected(b'{"type":"asr","turn_id":1,"text":"a","metadata":{"source":"x"}}')
    assert refused.detail.endswith("are interrupted, interrupt_timestamp, original, source, user, heard, partial.")


def test_missing_fields_and_wrong_types_are_said_in_plain_words() -> None:
    """No sentence is the decoder's own."""
    assert rejected(b'{"type":"llm.delta","turn_id":1}').detail == "A required field is missing: `text`"
    words = b'{"type":"asr","turn_id":1,"text":"Hi","words":[{"text":"Hi","end_ms":5}]}'
    assert rejected(words).detail == "A required field is missing: `words[0].start_ms`"
    assert rejected(b'{"type":"llm.delta","turn_id":1,"text":7}').detail == "Expected a text: `text`"
    assert rejected(b'{"type":"tts","words":7}').detail == "Expected a list: `words`"
