"""CSV for spreadsheets, and JSON lines."""

from __future__ import annotations

import csv as reader
import io
import json

from hypothesis import given

from tests.support.events import delta, done, event, final, tts
from tests.support.samples.exported_calls import EVENTS, JOKE, START, TEXTS, call_after, said
from tests.support.transcripts import messages_after
from voicemem.exports.call import strip_invisible
from voicemem.exports.rows import COLUMNS, FORMULA, csv, jsonl

# ruff: noqa: SIM300 (asserts read `expected == actual`)


def rows(text: str) -> list[dict[str, str]]:
    return list(reader.DictReader(io.StringIO(text, newline="")))


def test_each_message_is_a_row() -> None:
    """With what was heard, what was not, and when."""
    _, reply, last = rows("".join(csv(call_after(*EVENTS))))
    assert {
        "session_id": "call-1", "turn_id": "2", "role": "assistant", "speaker": "Agent",
        "began_at": "2026-09-21T14:13:22.000Z", "start_ms": "2000", "end_ms": "5000",
        "text": "Why did the scarecrow ", "interrupted": "true", "interrupted_at": "2026-09-21T14:13:25.000Z",
        "unheard": JOKE[22:], "heard_by": "exact", "source": "llm", "agent": "",
        "reply_after_ms": "", "reply_after_by": "", "outcome": "",
    } == reply  # fmt: skip
    assert ("false", "", "", "", "") == tuple(
        last[name] for name in ("interrupted", "interrupted_at", "unheard", "heard_by", "end_ms")
    )


@given(TEXTS, TEXTS, TEXTS)
def test_no_text_is_a_formula_or_another_field(text: str, heard: str, unheard: str) -> None:
    """What a spreadsheet would take for a formula has an apostrophe in front; quotes and line breaks stay."""
    call = said(text, heard, unheard)
    read = rows("".join(csv(call)))
    assert [set(COLUMNS)] * len(call.utterances) == [set(row) for row in read]
    for row, one in zip(read, call.utterances, strict=True):
        assert strip_invisible(one.heard) == row["text"].removeprefix("'") or one.heard.startswith("'")
        assert not any(FORMULA.match(value) for value in row.values())


def test_spaces_do_not_hide_a_formula() -> None:
    """Some spreadsheets skip white space at the beginning of a field, so it counts for none here."""
    for hidden in (" =1+1", "\u00a0@SUM(1)", "\u3000\uff1d1", "\t =1"):
        assert "'" + hidden == rows("".join(csv(said(hidden))))[0]["text"]
    assert " plain -1" == rows("".join(csv(said(" plain -1"))))[0]["text"]


# ruff: noqa: SIM300 (asserts read `expected == actual`)


def test_the_call_comes_first_and_then_all_that_happened_in_order() -> None:
    """Messages are those of the history, with the time in which they could be heard."""
    lines = [json.loads(line) for line in "".join(jsonl(call_after(*EVENTS, user_id="ann", name="desk"))).splitlines()]
    assert ["call", "message", "message", "tool_call", "message"] == [line["type"] for line in lines]
    assert {"session_id": "call-1", "user_id": "ann", "name": "desk", "summary": None}.items() <= lines[0].items()
    messages = [line for line in lines if line["type"] == "message"]
    assert all(known.items() <= line.items() for known, line in zip(messages_after(*EVENTS), messages, strict=True))
    assert (START + 2_000, START + 5_000) == (messages[1]["start_at"], messages[1]["end_at"])
    assert ({"nut": "walnut"}, ["none"]) == (lines[3]["arguments"], lines[3]["result"])


@given(TEXTS)
def test_texts_are_as_they_were_said(text: str) -> None:
    """Nothing is taken out or changed."""
    call = said(text)
    lines = "".join(jsonl(call)).split("\n")
    assert [one.heard for one in call.utterances] == [json.loads(line)["content"] for line in lines[1:-1]]


WAITED = (
    final(1, "Hello?", START),
    delta(1, "Yes?", START + 500, metadata={"agent": "billing"}),
    tts(1, START + 740, audio_ms=0),
    event("metric", 1, START + 740, name="llm_ttft", latency_ms=480),
    done(1, START + 900),
)


def test_a_row_says_which_agent_spoke_and_how_long_it_was_waited_for() -> None:
    """In columns of the first reply of a turn; JSON lines have what was reported of the turn besides."""
    asked, reply = rows("".join(csv(call_after(*WAITED))))
    assert ("Caller", "", "") == (asked["speaker"], asked["agent"], asked["reply_after_ms"])
    assert ("billing", "billing", "740", "marks") == tuple(
        reply[name] for name in ("speaker", "agent", "reply_after_ms", "reply_after_by")
    )
    last = json.loads("".join(jsonl(call_after(*WAITED))).splitlines()[-1])
    assert {
        "type": "latencies", "session_id": "call-1", "turn_id": 1, "reply_after_ms": 740, "reply_after_by": "marks",
        "e2e_latency_ms": None, "segmented_latency_ms": {"llm_ttft": 480},
    } == last  # fmt: skip
