"""A search for calls in which an event costs more the longer the call has become (docs/memory.md, rule 11).

Costs are counted in steps of the interpreter, not in seconds, so they do not depend on the machine.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from statistics import median
from types import FrameType
from typing import Any

import pytest
from hypothesis import example, given, note

from tests.support.profiles import examples
from tests.support.random_calls.repeated import CALLS, Part, step_of
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.fold import fold_event
from voicemem.transcript.state import State

STEPS = 240
EARLY, LATE = slice(40, 80), slice(200, 240)
ALLOWED = 1.5
"""A logarithm more, and a little for what is looked through in blocks."""
MOST = 12_000
"""Steps of the interpreter for one event, at most: no event looks through a long reply again."""


def steps_of(work: Callable[[], object]) -> int:
    """How many steps the interpreter takes."""
    count = 0

    def trace(frame: FrameType, kind: str, _argument: Any) -> Any:
        nonlocal count
        frame.f_trace_lines, frame.f_trace_opcodes = False, True
        count += kind == "opcode"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def costs(parts: list[Part], read_model: ReadModel) -> list[int]:
    """The cost of each step of a call."""
    state, found = read_model.state, []
    for number in range(STEPS):
        events = step_of(parts, number)

        def take(events: list[Any] = events) -> None:
            for one in events:
                fold_event(state, state.position + 1, 2_000_000 + state.position, one, "main")

        found.append(steps_of(take))
        if number in (STEPS // 4, STEPS // 2):
            read_model.current_messages()
    return found


NAMED = "one item of one turn"
HEARD: list[Part] = [
    ("long reply", NAMED, "rising"),
    ("heard to the end", NAMED, "rising"),
    ("cut", "unnamed", "rising"),
]
"""A long reply, all of which was heard; what else is reported of it must not look through its text again."""


@pytest.mark.long
@example(HEARD)
@examples(0.4)
@given(CALLS)
def test_no_event_costs_more_as_the_call_grows(parts: list[Part]) -> None:
    """Whatever is repeated, the last steps cost what the first ones did; and reading it all is linear."""
    read_model = ReadModel(State())
    found = costs(parts, read_model)
    note(f"early {median(found[EARLY])}, late {median(found[LATE])}")
    assert median(found[LATE]) <= ALLOWED * median(found[EARLY]) + 200
    assert max(found[EARLY] + found[LATE]) <= MOST * len(parts)
    whole = ReadModel(State())
    whole.unpacked = read_model.state
    read_model.state.dirty_turns.update(read_model.state.turns)
    assert steps_of(whole.current_messages) <= 2_000 * read_model.state.position + 20_000
