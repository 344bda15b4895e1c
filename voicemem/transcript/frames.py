"""The fold of other stacks' frames: what their dialect makes of them, checked as a producer's events are.

A dialect does not raise, here: what it fails at is left out and counted, and the call goes on.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from functools import partial
from itertools import islice
from typing import get_args

import msgspec

from voicemem.dialects.dialect import Dialect, Known, MadeEvent
from voicemem.dialects.registry import DIALECTS
from voicemem.errors import Refused
from voicemem.protocol.checks import check_event
from voicemem.protocol.events import FrameEvent, SessionClosed
from voicemem.protocol.types import MAX_TEXT_BYTES
from voicemem.transcript.known import FoldKnown
from voicemem.transcript.state import Notes, State
from voicemem.transcript.timeline import BEFORE_ALL

MAX_MADE = 64
"""Events of one frame, or of one close for each dialect."""
CLOSED = "closed"
"""The reason of a session that is closed because the connection of another stack has gone; its `ts` is when it went."""
MADE_KINDS = frozenset(get_args(MadeEvent))


def events_of(state: State, event: FrameEvent, ts: int) -> list[MadeEvent]:
    """What a frame says, in events of `voicemem.v1`; the state keeps the dialect's notes."""
    dialect = DIALECTS.get(event.dialect)
    if dialect is None or not isinstance(event.frame, dict):
        return []
    if event.dialect not in state.notes:
        state.notes[event.dialect] = Notes()
    content = event.frame
    return made_by(state, dialect, event.ts, lambda known: dialect.translate(content, ts, known))


def events_at_close(state: State, event: SessionClosed, ts: int) -> list[MadeEvent]:
    """What the dialects of a session say at its close, before open replies are cut."""
    at = hung_up_at(state, event, ts)
    dialects = [dialect for name in state.notes if (dialect := DIALECTS.get(name)) is not None]
    return [made for dialect in dialects for made in made_by(state, dialect, at, partial(dialect.closed, at))]


def hung_up_at(state: State, event: SessionClosed, ts: int) -> int:
    """When the caller left: the close itself may come much later."""
    if state.ended_ts is not None:
        return state.ended_ts
    clocks = state.clocks | {state.producer: state.clock}
    newest = max((clock for producer, clock in clocks.items() if producer is not None), default=BEFORE_ALL)
    return ts if event.reason == CLOSED or newest == BEFORE_ALL else newest


def made_by(
    state: State, dialect: Dialect, stated_ts: int | None, make: Callable[[Known], Iterable[MadeEvent]]
) -> list[MadeEvent]:
    """What a dialect makes, as far as a producer might have sent it; nothing if it fails."""
    known = FoldKnown(state, dialect.name, stated_ts is not None)
    try:
        made = [*islice(make(known), MAX_MADE + 1)]
        known.keep_notes()
    except Exception:  # a fault of ours in a dialect: the frame stays in the journal for a version that can read it
        state.ignore("frames")
        return []
    if len(made) > MAX_MADE:
        state.ignore("frames")
    return [event for one in made[:MAX_MADE] if (event := checked(state, one, stated_ts)) is not None]


def checked(state: State, made: MadeEvent, stated_ts: int | None) -> MadeEvent | None:
    """An event as a producer might have sent it, with the frame's `ts` if it has none; None if it breaks a rule."""
    try:
        kind = type(made)
        if kind not in MADE_KINDS:
            raise TypeError
        fields = msgspec.to_builtins(made)
        if stated_ts is not None:
            fields.setdefault("ts", stated_ts)
        event: MadeEvent = msgspec.convert(fields, kind)  # for the union of all kinds it would take thirty times longer
        check_event(event, MAX_TEXT_BYTES + 1)
    except (msgspec.ValidationError, Refused, TypeError, ValueError):
        state.ignore("frames")
        return None
    return event
