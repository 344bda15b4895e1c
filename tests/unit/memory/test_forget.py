"""Forgetting: gone from every context, and still in the history."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.events import delta, done, final, partial, typed
from tests.support.rows import every_row
from tests.support.strategies import ANY_JOURNALS, PRODUCER_JOURNALS
from tests.support.transcripts import closed, journaled, message_dicts
from voicemem.config.context import ContextConfig
from voicemem.config.session import parse_config, validate_config
from voicemem.context.builder import ContextOptions, left_out, render_body, select_from
from voicemem.context.policy_registry import Policies
from voicemem.errors import Refused
from voicemem.memory.add_and_forget import ForgetRequest, forgotten_event
from voicemem.protocol.events import JournaledEvent, MemoryForgotten, MemorySummary
from voicemem.protocol.types import JsonObject
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.transcript.fold import DecodedRow
from voicemem.transcript.history import turn_entries
from voicemem.transcript.state import State

FORGETS = st.one_of(
    st.builds(ForgetRequest, through_turn=st.integers(0, 4)),
    st.builds(ForgetRequest, keep_last=st.integers(0, 6)),
    st.just(ForgetRequest()),
    st.just(ForgetRequest(everything=True)),
)


def after(read_model: ReadModel, *events: JournaledEvent) -> ReadModel:
    """The memory after more events."""
    position = read_model.position
    read_model.fold([DecodedRow(place, place * 1000, event) for place, event in enumerate(events, position + 1)])
    return read_model


def of(*events: JsonObject | JournaledEvent) -> ReadModel:
    """The memory of a call."""
    return after(ReadModel(State()), *map(journaled, events))


def forget(read_model: ReadModel, wanted: ForgetRequest) -> MemoryForgotten | None:
    """Forget as it is asked, and say what was journaled for it."""
    event = forgotten_event(read_model, wanted)
    if event is not None:
        after(read_model, event)
    return event


def kept(read_model: ReadModel) -> list[str]:
    """What contexts are made of."""
    return [message.content for message in read_model.remembered_messages()]


def exchange(turn: int) -> list[JsonObject]:
    """A question and its answer."""
    return [final(turn, f"Q{turn}"), delta(turn, f"A{turn}"), done(turn)]


def orders(read_model: ReadModel, places: set[int]) -> set[int]:
    """Where these messages began in the journal."""
    state = read_model.state
    entries = [entry for number in state.turn_numbers for entry in turn_entries(state, state.turns[number])]
    return {entries[place].position for place in places}


@given(ANY_JOURNALS, st.lists(FORGETS, min_size=1, max_size=3), PRODUCER_JOURNALS)
def test_what_is_forgotten_never_comes_back(
    before: list[JournaledEvent], forgets: list[ForgetRequest], more: list[JournaledEvent]
) -> None:
    """Whatever is forgotten, in whatever order, and whatever comes later, of these messages none is shown again."""
    read_model = of(*before)
    history = message_dicts(read_model.state)
    remembered = set(read_model.remembered_indexes())
    for wanted in forgets:
        try:
            forget(read_model, wanted)
        except Refused:
            continue
        assert set(read_model.remembered_indexes()) <= remembered
        remembered = set(read_model.remembered_indexes())
    assert history == message_dicts(read_model.state)
    gone = orders(read_model, set(range(len(history))) - remembered)
    after(read_model, *more)
    assert gone.isdisjoint(orders(read_model, set(read_model.remembered_indexes())))


@given(PRODUCER_JOURNALS, st.integers(0, 8))
def test_exactly_the_newest_are_kept(call: list[JournaledEvent], count: int) -> None:
    """`keep_last` keeps so many messages, wherever in a turn the first of them stands."""
    read_model = of(*call)
    messages = [*read_model.current_messages()]
    forget(read_model, ForgetRequest(keep_last=count))
    assert messages[max(0, len(messages) - count) :] == read_model.remembered_messages()


def test_the_last_ten_are_kept_and_the_rest_is_cleared() -> None:
    """Of thirty messages ten stay, and those that come later are added to them."""
    read_model = of(*(event for turn in range(1, 16) for event in exchange(turn)))
    forget(read_model, ForgetRequest(keep_last=10))
    assert [f"{letter}{turn}" for turn in range(11, 16) for letter in "QA"] == kept(read_model)
    after(read_model, *map(journaled, exchange(16)))
    assert ["A15", "Q16", "A16"] == kept(read_model)[-3:]
    assert 12 == len(kept(read_model))


def test_a_turn_may_be_forgotten_in_part() -> None:
    """The question is gone, its answer stays; a correction of the question does not bring it back."""
    read_model = of(*exchange(1), *exchange(2))
    forget(read_model, ForgetRequest(keep_last=1))
    assert ["A2"] == kept(read_model)
    after(read_model, journaled(final(2, "once more", item="u")), journaled(typed(2, "New")))
    assert ["New", "A2"] == kept(read_model)


def test_what_comes_late_for_a_forgotten_turn_is_forgotten() -> None:
    """A transcript that was still on its way stays out."""
    memory = of(delta(1, "A1"), done(1), *exchange(2))
    forget(memory, ForgetRequest(through_turn=1))
    after(memory, journaled(final(1, "Q1")))
    assert ["Q1", "A1", "Q2", "A2"] == [message.content for message in memory.current_messages()]
    assert ["Q2", "A2"] == kept(memory)


def test_what_is_still_being_said_is_not_forgotten() -> None:
    """Of the newest turn only what is a message is cleared; the reply in progress becomes one afterwards."""
    read_model = of(*exchange(1), final(2, "Forget that."), delta(2, "I have for"))
    forget(read_model, ForgetRequest(everything=True))
    assert [] == kept(read_model)
    after(read_model, journaled(delta(2, "gotten it.")), journaled(done(2)), journaled(partial(3, "Th")))
    assert ["I have forgotten it."] == kept(read_model)
    forget(read_model, ForgetRequest())
    after(read_model, closed(99))
    assert ["Th"] == kept(read_model)


def test_a_summary_of_forgotten_turns_is_not_shown() -> None:
    """It goes with the first of its turns, and what it stood for and is not forgotten is shown as it was."""
    policy = ContextConfig(policy="summary", max_tokens=10_000)
    read_model = of(*exchange(1), *exchange(2), *exchange(3), MemorySummary(through_turn=2, text="Both.", messages=4))
    assert ["system", "user", "assistant"] == [one["role"] for one in body(read_model, policy)["messages"]]
    forget(read_model, ForgetRequest(through_turn=1))
    assert ["Q2", "A2", "Q3", "A3"] == [one["content"] for one in body(read_model, policy)["messages"]]


def test_a_later_summary_stays_when_nothing_more_is_forgotten() -> None:
    """Forgetting again what is forgotten journals nothing."""
    read_model = of(*exchange(1), *exchange(2))
    assert forget(read_model, ForgetRequest(through_turn=1)) is not None
    after(read_model, MemorySummary(through_turn=2, text="The second.", messages=2))
    for again in (
        ForgetRequest(through_turn=1),
        ForgetRequest(through_turn=0),
        ForgetRequest(keep_last=2),
        ForgetRequest(keep_last=9),
    ):
        assert forget(read_model, again) is None
    assert read_model.state.summary is not None


TOOL: list[JsonObject] = [
    {"type": "tool.call", "turn_id": 1, "call_id": "c", "name": "w", "arguments": {}},
    {"type": "tool.result", "turn_id": 1, "call_id": "c", "result": 1},
]
POLICIES = [
    ContextConfig(),
    ContextConfig(policy="full"),
    ContextConfig(policy="recent", max_messages=9),
    ContextConfig(policy="window", max_tokens=9_999),
    ContextConfig(policy="summary", max_tokens=9_999),
    ContextConfig(policy="priority", max_messages=9),
    ContextConfig(policy="priority", max_tokens=9_999),
]


def body(read_model: ReadModel, policy: ContextConfig, **options: Any) -> JsonObject:
    """The context under a policy."""
    wanted = ContextOptions(memory=policy, **options)
    return render_body(select_from(read_model, Policies(), parse_config(validate_config({}).public), wanted), wanted)


@every_row("policy", POLICIES, ids=str)
def test_no_policy_sees_what_is_forgotten(policy: ContextConfig) -> None:
    """Neither messages nor tool calls; `left_out` tells of each message that it is forgotten, by its place."""
    read_model = of(*exchange(1), *TOOL, *exchange(2), *exchange(3))
    assert "tool" in [one["role"] for one in body(read_model, policy, tools=True)["messages"]]
    forget(read_model, ForgetRequest(keep_last=3))
    assert ["A2", "Q3", "A3"] == [one["content"] for one in body(read_model, policy, tools=True)["messages"]]
    choice = select_from(read_model, Policies(), parse_config({}), ContextOptions(memory=policy))
    assert [(0, 1, "forgotten"), (1, 1, "forgotten"), (2, 2, "forgotten")] == [
        (one.index, one.turn_id, one.reason) for one in left_out(choice)
    ]


@every_row("policy", POLICIES, ids=str)
def test_nothing_is_left_of_everything(policy: ContextConfig) -> None:
    """Every policy can choose from nothing, and no tool call is left alone."""
    read_model = of(*exchange(1), *TOOL)
    forget(read_model, ForgetRequest())
    assert [] == body(read_model, policy, tools=True)["messages"]
    assert [] == body(read_model, policy, tools=True, alternate=True)["messages"]


def test_a_turn_that_there_is_not_cannot_be_forgotten() -> None:
    """A call that has come to turn 2 has no turn 3."""
    with pytest.raises(Refused, match="unknown_turn"):
        forgotten_event(of(*exchange(2)), ForgetRequest(through_turn=3))
    with pytest.raises(Refused, match="unknown_turn"):
        forgotten_event(of(), ForgetRequest(through_turn=0))
