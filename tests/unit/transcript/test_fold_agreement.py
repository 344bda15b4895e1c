"""Whatever a call reports, the fold and the plain fold give the same messages."""

from __future__ import annotations

import json
from pathlib import Path

import msgspec
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import delta, interrupt, resume, tts
from tests.support.paths import FIXTURES
from tests.support.plain_fold.calls import call_closed, plain_rows
from tests.support.plain_fold.messages import plain_messages
from tests.support.plain_fold.rows import PlainRow
from tests.support.random_calls.strategies import calls
from tests.support.rows import every_row
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.types import JsonObject
from voicemem.transcript.fold import DecodedRow, fold
from voicemem.transcript.history import messages
from voicemem.transcript.packing import HEAVY
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.state import State

IN_PROGRESS = ("open", "heard_so_far")
"""What `unfinished` adds to a message, which the plain fold leaves out."""
LINES = 400
"""The plain fold reads everything again for each unnamed event: longer calls are for the fold alone."""
RECORDED = [path for path in sorted(FIXTURES.glob("*.jsonl")) if path.read_bytes().count(b"\n") <= LINES]


def decoded(row: PlainRow) -> DecodedRow:
    """The row as the fold takes it; the codec knows every field of it, and the row has its producer."""
    event = decode_journaled(msgspec.json.encode(row.event))
    given = {name for name, value in row.event.items() if value is not None}
    unknown = given - {"type", *event.__struct_encode_fields__}
    assert not unknown, f"{row.event['type']} has no {sorted(unknown)}"
    return DecodedRow(row.position, row.received_ms, event, row.producer)


def messages_of(rows: list[PlainRow], unfinished: bool, packed: bool, heavy: int = HEAVY) -> list[JsonObject]:
    """The memory that the fold gives, as JSON; `packed` if nothing stays unpacked from one event to the next."""
    state = State()
    if packed:
        state.find_packed(heavy)
    for row in rows:
        fold(state, decoded(row))
        if packed:
            settle(state)
            state.pack(few=0)
    written = [msgspec.to_builtins(one) for one in messages(state, unfinished)]
    for one in written:
        one["metadata"] = {name: value for name, value in one["metadata"].items() if name not in IN_PROGRESS}
    return written


def agree(rows: list[PlainRow], unfinished: bool, packed: bool = False, heavy: int = HEAVY) -> None:
    """Compares the messages and the order of their keys."""
    expected = plain_messages(rows, unfinished)
    found = messages_of(rows, unfinished, packed, heavy)
    assert found == expected
    assert json.dumps(found) == json.dumps(expected)


@given(events=calls(), unfinished=st.booleans(), packed=st.booleans(), heavy=st.integers(1, 5))
def test_the_fold_agrees_with_the_plain_fold(
    events: list[JsonObject], unfinished: bool, packed: bool, heavy: int
) -> None:
    agree(plain_rows(*events), unfinished, packed, heavy)


@every_row("path", RECORDED, ids=lambda path: path.stem)
@every_row("unfinished", [False, True])
def test_the_fold_agrees_with_the_plain_fold_on_recorded_calls(path: Path, unfinished: bool) -> None:
    events = [msgspec.json.decode(line) for line in path.read_bytes().splitlines()]
    if events[-1]["type"] == "session.end":
        events.append(call_closed(events[-1]["ts"]))
    agree(plain_rows(*events), unfinished)
    agree(plain_rows(*events), unfinished, packed=True, heavy=1)


def test_a_withdrawn_interruption_takes_no_done_back() -> None:
    """Its position says where playback was, and it went on from there: the reply was heard, in either order."""
    played = [tts(1, 900, total_audio_ms=700), tts(1, 1000, done=True), delta(1, "One two.", 800)]
    cut, resumed = interrupt(1, 1000, audio_end_ms=100), resume(1, 1300)
    for events in ([*played, cut, resumed], [*played, resumed, cut]):
        rows = plain_rows(*events, call_closed(2000))
        agree(rows, unfinished=False)
        assert [(one["content"], one["metadata"]) for one in messages_of(rows, False, False)] == [
            ("One two.", {"source": "llm"})
        ]
