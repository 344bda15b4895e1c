"""Recorded calls in other stacks' frames: `fixtures/<dialect>/<case>.jsonl`, one envelope a line.

`<case>.contents.json` is the memory after the call, `<case>.bare.json` that without the envelopes' times, where the two
differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Any, NamedTuple, TypeVar

import msgspec
import pytest

from tests.support.paths import ROOT
from tests.support.transcripts import closed
from voicemem.dialects.dialect import AUDIO_BYTES, Frame, MalformedFrame, RawFrame, Side
from voicemem.dialects.known import Known
from voicemem.dialects.registry import DIALECTS
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import Asr, FrameEvent, Interrupt
from voicemem.protocol.types import JsonObject
from voicemem.sessions.recording.batches import SenderState
from voicemem.transcript.fold import CLOSED, DecodedRow, fold_event
from voicemem.transcript.history import messages
from voicemem.transcript.state import State, decode_state, encode_state

SomeFrame = TypeVar("SomeFrame", bound=RawFrame)
HANG_UP_MS = 100
"""The caller leaves so long after the last frame, unless the last line of a call is `{"hang_up": TS}`."""


class Recording(NamedTuple):
    """One recorded call of a dialect."""

    dialect: str
    name: str

    def __str__(self) -> str:
        return f"{self.dialect}/{self.name}"

    def document(self, kind: str) -> Any:
        """A document beside the call; None if there is none."""
        path = ROOT / "fixtures" / self.dialect / f"{self.name}.{kind}.json"
        return json.loads(path.read_text("utf-8")) if path.exists() else None

    def lines(self) -> list[JsonObject]:
        path = ROOT / "fixtures" / self.dialect / f"{self.name}.jsonl"
        return [json.loads(line) for line in path.read_text("utf-8").splitlines()]

    def envelopes(self) -> list[JsonObject]:
        """What was sent, each an object with `frame`."""
        return [line for line in self.lines() if "frame" in line]

    def hang_up(self) -> int:
        """When the caller left, Unix ms."""
        lines = self.lines()
        newest: int = max(line.get("ts", 0) for line in lines) + HANG_UP_MS
        return int(lines[-1].get("hang_up", newest))


RECORDINGS = [
    Recording(name, path.stem) for name in DIALECTS for path in sorted((ROOT / "fixtures" / name).glob("*.jsonl"))
]


def reduced(recording: Recording) -> Iterator[tuple[JsonObject, Frame]]:
    """The envelopes of which something is kept, with that."""
    dialect, sender = DIALECTS[recording.dialect], SenderState()
    for envelope in recording.envelopes():
        frame = dialect.reduce(envelope["frame"], envelope.get("from"))
        if frame is not None and sender.admits(frame):
            yield envelope, frame


def journal_rows(recording: Recording, with_times: bool = True, twice: bool = False) -> list[DecodedRow]:
    """The journal of a call, up to its close; `twice` repeats each frame that has an id."""
    events: list[FrameEvent] = []
    for envelope, frame in reduced(recording):
        ts = envelope.get("ts", frame.ts) if with_times else None
        event = FrameEvent(dialect=recording.dialect, frame=frame.content, ts=ts, id=envelope.get("id", frame.id))
        events += [event] * (2 if twice and event.id is not None else 1)
    rows = [
        DecodedRow(position, recording.hang_up(), decode_journaled(msgspec.json.encode(event)), "main")
        for position, event in enumerate(events, 1)
    ]
    close = msgspec.structs.replace(closed(recording.hang_up()), reason=CLOSED)
    return [*rows, DecodedRow(len(rows) + 1, recording.hang_up(), close)]


def fold_rows(rows: Iterable[DecodedRow], restarts: bool = False) -> State:
    """The state after these rows; with `restarts`, it is stored and loaded after each."""
    state = State()
    for row in rows:
        fold_event(state, *row)
        if restarts:
            state = decode_state(encode_state(state))
    return state


def contents(state: State) -> JsonObject:
    """The memory as it is written to JSON."""
    return {"contents": json.loads(msgspec.json.encode(messages(state)))}


def without_ids(content: JsonObject) -> JsonObject:
    """A reduced frame without what may differ in a repeat."""
    return {key: value for key, value in content.items() if key != AUDIO_BYTES}


def is_caught(name: str, wrong: Callable[[Any], Any], monkeypatch: pytest.MonkeyPatch) -> bool:
    """Whether a dialect whose events are all changed by `wrong` gives another memory of any recorded call."""
    right = DIALECTS[name]

    def translate(frame: JsonObject, ts: int, known: Known) -> Any:
        return map(wrong, right.translate(frame, ts, known))

    monkeypatch.setitem(DIALECTS, name, msgspec.structs.replace(right, translate=translate))
    calls = [one for one in RECORDINGS if one.dialect == name]
    return any(contents(fold_rows(journal_rows(one))) != one.document("contents") for one in calls)


def well_formed(
    frames: Iterable[SomeFrame], reduce: Callable[[RawFrame, Side | None], Frame | None]
) -> list[SomeFrame]:
    """The frames that are not refused as malformed."""
    taken = []
    for frame in frames:
        with suppress(MalformedFrame):
            reduce(frame, None)
            taken.append(frame)
    return taken


def speech_is_an_interruption(made: Any) -> Any:
    """A mistake of a dialect: whatever the user says cuts what the agent said last."""
    return Interrupt(more=True) if isinstance(made, Asr) and not made.final else made
