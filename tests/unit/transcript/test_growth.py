"""What an event costs does not grow with what came before it (docs/memory.md, rule 11).

Costs are counted in function calls, not in seconds, so they do not depend on the machine.
"""

from __future__ import annotations

import sys
import tracemalloc
from collections.abc import Callable
from statistics import median
from types import FrameType
from typing import Any

import pytest

from tests.support.events import tts
from tests.support.rows import every_row
from tests.support.samples.hostile_calls import SHAPES, Shape
from tests.support.transcripts import journaled
from voicemem.protocol.events import FrameEvent
from voicemem.transcript.fold import fold_event
from voicemem.transcript.history import messages, turn_messages
from voicemem.transcript.known import FoldKnown
from voicemem.transcript.state import State

EARLY, LATE = range(200, 240), range(860, 900)
COUNTED = {*EARLY, *LATE}
ALLOWED = 1.35
"""A logarithm more, and a little for what is looked through in blocks."""
UNNAMED = journaled(tts(ts=5, total_audio_ms=3))


def calls_of(work: Callable[[], object]) -> int:
    """How many functions are called, those of C included."""
    count = 0

    def note(_frame: FrameType, kind: str, _argument: Any) -> None:
        nonlocal count
        count += kind in ("call", "c_call")

    sys.setprofile(note)
    try:
        work()
    finally:
        sys.setprofile(None)
    return count


def costs(shape: Shape, after: Callable[[State], object]) -> tuple[float, float, State]:
    """The cost of an early and of a late step, with something that is asked after it.

    Calls are counted in these steps only, which makes everything several times slower, and only there and just before
    is anything read.
    """
    state, early, late = State(), [], []
    for step in range(LATE.stop):
        events = [journaled(one) for one in shape(step)]

        def take_unread(events: list[Any] = events) -> None:
            for one in events:
                fold_event(state, state.position + 1, 1000 + state.position, one, "main")

        def take(take_unread: Callable[[], None] = take_unread) -> None:
            take_unread()
            after(state)

        if step in EARLY:
            early.append(calls_of(take))
        elif step in LATE:
            late.append(calls_of(take))
        elif after is read_changes and step + 1 not in COUNTED:
            take_unread()
        else:
            take()
    return median(early), median(late), state


def ask_nothing(_state: State) -> None:
    """Reads nothing."""


def ask_by_event(state: State) -> None:
    """Folds an event that names nothing, for which the fold must know what still plays."""
    fold_event(state, state.position + 1, 1, UNNAMED, "main")


def read_changes(state: State) -> None:
    """Makes the messages of the turns that have changed."""
    for number in sorted(state.dirty_turns):
        assert all(turn_messages(state, state.turns[number]))
    state.dirty_turns.clear()


@pytest.mark.long
@every_row("after", [ask_nothing, ask_by_event])
@every_row("shape", SHAPES.values(), ids=SHAPES)
def test_events_cost_the_same_early_and_late(shape: Shape, after: Callable[[State], object]) -> None:
    """The events of a step, and what they make the fold look up, cost what they cost at the beginning."""
    early, late, _ = costs(shape, after)
    assert late <= ALLOWED * early + 5


@pytest.mark.long
@every_row("shape", SHAPES.values(), ids=SHAPES)
def test_reads_cost_what_they_show(shape: Shape) -> None:
    """A read after an event costs a few calls for each message and segment of its turn, and no more."""
    early, late, state = costs(shape, read_changes)
    parts = max(
        len(turn.segments or ()) + len(turn.replies or ()) + len(turn.typed or ()) for turn in state.turns.values()
    )
    assert late <= ALLOWED * early + 5 + 20 * parts


@pytest.mark.long
@every_row("shape", SHAPES.values(), ids=SHAPES)
def test_no_step_copies_what_came_before(shape: Shape) -> None:
    """A late step asks for about as much memory as an early one: a copy of a list is one call, however long it is."""
    state, asked = State(), dict[int, int]()
    tracemalloc.start()
    try:
        for step in range(LATE.stop):
            events = [journaled(one) for one in shape(step)]
            tracemalloc.reset_peak()
            before, _ = tracemalloc.get_traced_memory()
            for one in events:
                fold_event(state, state.position + 1, 1000 + state.position, one, "main")
            asked[step] = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert median(asked[step] for step in LATE) <= median(asked[step] for step in EARLY) + 3_000


@every_row("shape", SHAPES.values(), ids=SHAPES)
def test_whole_reads_are_linear(shape: Shape) -> None:
    """Reading a call from its start costs a bounded number of calls for each of its events."""
    state = State()
    for step in range(300):
        for one in shape(step):
            fold_event(state, state.position + 1, 1000 + state.position, journaled(one), "main")
    assert calls_of(lambda: messages(state)) <= 400 * state.position


def test_a_history_given_again_costs_its_size_and_that_of_the_turn() -> None:
    """Each text that an app gives a new connection is looked up in a turn, which is looked through once a frame."""
    state = State()
    for number in range(500):
        said = journaled({"type": "asr", "item": f"i{number}", "text": f"words {number}", "final": True, "turn_id": 1})
        fold_event(state, state.position + 1, 1000 + state.position, said, "main")
    assert calls_of(lambda: give(state, 64)) <= calls_of(lambda: give(state, 1)) + 64 * 50


def test_a_text_given_again_costs_no_more_in_a_turn_of_very_many() -> None:
    """Of very many texts the newest are looked through for each frame; a text among these is found."""
    state, costs, asr = State(), list[int](), {"type": "asr", "final": True, "turn_id": 1}
    for number in range(4_000):
        said = journaled({**asr, "item": f"i{number}", "text": f"words {number}"})
        fold_event(state, state.position + 1, 1000 + state.position, said, "main")
        if number in (1_000, 3_999):
            costs.append(calls_of(lambda: give(state, 1)))
    assert costs[1] <= costs[0] * ALLOWED
    known = FoldKnown(state, "gemini-live", has_clock=True)
    assert known.said_after(None, "words 3900") == [1, 3_902]
    assert known.said_after(None, "words 3") is None


def give(state: State, count: int) -> None:
    """Takes a frame with so many texts of the user's that are not in the memory."""
    turns = [{"parts": [{"text": f"other words {number}"}]} for number in range(count)]
    frame = FrameEvent(dialect="gemini-live", frame={"clientContent": {"turns": turns}})
    fold_event(state, state.position + 1, 1000 + state.position, frame, "main")


@every_row("is_oldest_first", [True, False])
def test_an_open_text_moves_to_another_turn_at_the_same_cost(is_oldest_first: bool) -> None:
    """However many texts have moved there before, and in whichever order, the next costs what the first ones did."""
    state, count = State(), 400

    def say(**fields: Any) -> None:
        event = journaled({"type": "asr", **fields})
        fold_event(state, state.position + 1, 1000 + state.position, event, "main")

    for number in range(count):
        say(segment=number, text="hello")
    say(segment=count, text="done", final=True)
    fold_event(
        state, state.position + 1, 1000 + state.position, journaled({"type": "llm.done", "text": "Yes."}), "main"
    )
    numbers = list(range(count)) if is_oldest_first else list(range(count))[::-1]
    costs = [calls_of(lambda number=number: say(segment=number, text="hello you")) for number in numbers]  # type: ignore[misc]
    assert len(state.turns[2].segments or ()) == count
    assert median(costs[-40:]) <= ALLOWED * median(costs[20:60]) + 5
