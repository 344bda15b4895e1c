"""Every dialect holds what the contract asks of it, for each call in `fixtures/<dialect>/`."""

from __future__ import annotations

import json
import re
from typing import Any

import msgspec

from tests.support.dialects import RECORDINGS, Recording, contents, fold_rows, journal_rows, reduced
from tests.support.rows import every_row
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.types import MAX_TEXT_BYTES
from voicemem.transcript.fold import DecodedRow
from voicemem.transcript.known import MAX_NOTES_BYTES

recorded = every_row("recording", RECORDINGS, ids=str)


def test_every_dialect_has_recordings() -> None:
    """No dialect is without a recorded call, and each call has its contents."""
    assert {one.dialect for one in RECORDINGS} == set(DIALECTS)
    assert [str(one) for one in RECORDINGS if one.document("contents") is None] == []


@recorded
def test_call_gives_its_contents(recording: Recording) -> None:
    """All frames of a call give the memory that stands beside it, and the fold leaves nothing out."""
    state = fold_rows(journal_rows(recording))
    assert contents(state) == recording.document("contents")
    assert state.ignored == {}


@recorded
def test_restart_after_any_frame_changes_nothing(recording: Recording) -> None:
    """A process that is replaced after every frame gives the same memory."""
    assert contents(fold_rows(journal_rows(recording), restarts=True)) == recording.document("contents")


@recorded
def test_repeated_frames_change_nothing(recording: Recording) -> None:
    """A frame with an id of its own that comes twice counts once."""
    assert contents(fold_rows(journal_rows(recording, twice=True))) == recording.document("contents")


@recorded
def test_call_without_times_gives_its_contents(recording: Recording) -> None:
    """Without the times of envelopes the same is said by the same speakers; what was heard may be less exact."""
    bare = contents(fold_rows(journal_rows(recording, with_times=False)))
    expected = recording.document("bare") or recording.document("contents")
    assert [said_by(one) for one in bare["contents"]] == [said_by(one) for one in expected["contents"]]


def said_by(message: Any) -> tuple[str, int, str]:
    """Who said it, in which turn, and everything that was to be said."""
    return message["role"], message["turn_id"], message["metadata"].get("original", message["content"])


@recorded
def test_reduced_frame_is_reduced_to_itself(recording: Recording) -> None:
    """What is kept of a frame is JSON, no larger than the limit, and loses nothing when it is reduced again."""
    dialect = DIALECTS[recording.dialect]
    for _, frame in reduced(recording):
        again = dialect.reduce(json.loads(msgspec.json.encode(frame.content)), None)
        assert again is not None
        assert (again.content, again.end, again.counts_audio) == (frame.content, frame.end, frame.counts_audio)
        assert len(msgspec.json.encode(frame.content)) <= MAX_TEXT_BYTES


def with_fractions(value: Any) -> Any:
    """The same with a fraction in every time in ms, as some versions of vendors send them."""
    if isinstance(value, list):
        return [with_fractions(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {
        name: one + 0.25 if re.search("(_ms|Ms)$", name) and type(one) is int else with_fractions(one)
        for name, one in value.items()
    }


@recorded
def test_times_with_a_fraction_are_rounded(recording: Recording) -> None:
    """A fraction of a millisecond loses no frame; latencies keep theirs."""
    dialect = DIALECTS[recording.dialect]
    for envelope, frame in reduced(recording):
        fractions = with_fractions(envelope["frame"])
        if fractions != envelope["frame"] and "latency_ms" not in json.dumps(envelope["frame"]):
            again = dialect.reduce(fractions, envelope.get("from"))
            assert again is not None
            assert again.content == frame.content


SECRET = "sk-secret"
TOOLS = (
    "arguments",
    "args",
    "parameters",
    "result",
    "results",
    "full_tool_result",
    "result_value",
    "functionResponses",
)
"""What tools are called with and answer, which is kept as it is."""


def with_secrets(value: Any) -> Any:
    """A frame with a field that no one knows at every level, but in what is a tool's."""
    if isinstance(value, list):
        return [with_secrets(one) for one in value]
    if not isinstance(value, dict):
        return value
    return {key: one if key in TOOLS else with_secrets(one) for key, one in value.items()} | {"new_field": SECRET}


@recorded
def test_what_a_vendor_adds_is_not_kept(recording: Recording) -> None:
    """Fields that a dialect does not name are left out at every level, whatever is in them."""
    dialect = DIALECTS[recording.dialect]
    for envelope in recording.envelopes():
        kept = dialect.reduce(with_secrets(envelope["frame"]), envelope.get("from"))
        before = dialect.reduce(envelope["frame"], envelope.get("from"))
        assert (kept is None) == (before is None)
        if kept is not None and before is not None:
            assert SECRET not in msgspec.json.encode(kept.content).decode()
            assert kept.content == before.content


@recorded
def test_frame_of_the_other_side_is_malformed(recording: Recording) -> None:
    """A dialect knows who sends a frame, where only one side does."""
    dialect = DIALECTS[recording.dialect]
    for envelope, frame in reduced(recording):
        if frame.side is not None:
            assert dialect.reduce(envelope["frame"], frame.side) == frame


@recorded
def test_notes_are_small(recording: Recording) -> None:
    """What a dialect notes stays within its bound after every frame, and its size is known."""
    rows: list[DecodedRow] = []
    for row in journal_rows(recording):
        rows.append(row)
    for notes in fold_rows(rows).notes.values():
        sizes = [len(msgspec.json.encode((key, value))) for key, value in notes.values.items()]
        assert sum(sizes) == notes.size <= MAX_NOTES_BYTES
