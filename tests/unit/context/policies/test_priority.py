"""The most important messages."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.policies import memories, message_of_tokens, remembered, tool_use_of_tokens
from voicemem.context.policies import PriorityPolicy, Remembered, first_current


def call(*priorities: Any) -> Remembered:
    """A message of 3 tokens in each turn, with these priorities; None is without one."""
    return remembered(
        [
            message_of_tokens("user", number, 3, **({} if priority is None else {"priority": priority}))
            for number, priority in enumerate(priorities)
        ]
    )


def test_the_newest_message_is_always_kept() -> None:
    """It is what the LLM is to answer, whatever weight others have."""
    assert [3] == list(PriorityPolicy(max_messages=1).choose(call(5, 9, 1, None)).kept)
    assert [1, 3] == list(PriorityPolicy(max_messages=2).choose(call(5, 9, 1, None)).kept)


def test_priority_goes_before_recency() -> None:
    """An old message of weight stays, and the order of the call too."""
    assert [0, 3] == list(PriorityPolicy(max_messages=2).choose(call(5, 1, None, 1)).kept)
    assert [2, 3] == list(PriorityPolicy(max_messages=2).choose(call(None, None, None, None)).kept)


@pytest.mark.parametrize("strange", ["high", True, None, [9], {"a": 9}])
def test_what_is_no_number_counts_as_nothing(strange: Any) -> None:
    """A producer may write anything into its metadata."""
    assert [1, 2] == list(PriorityPolicy(max_messages=2).choose(call(strange, 0.5, None)).kept)
    assert [1, 2] == list(PriorityPolicy(max_messages=2).choose(call(strange, 0, None)).kept)
    assert [0, 2] == list(PriorityPolicy(max_messages=2).choose(call(strange, -0.5, None)).kept)


def test_what_does_not_fit_is_passed_over() -> None:
    """Smaller messages find room behind a large one."""
    memory = remembered(
        [
            message_of_tokens("user", 1, 2),
            message_of_tokens("user", 2, 9, priority=1),
            message_of_tokens("user", 3, 3, priority=2),
        ]
    )
    assert [0, 2] == list(PriorityPolicy(max_tokens=6).choose(memory).kept)


def test_the_newest_is_kept_whatever_it_takes() -> None:
    """One message that is larger than the budget is kept alone, and told."""
    choice = PriorityPolicy(max_tokens=2).choose(call(5, 1))
    assert ([1], True) == (list(choice.kept), choice.over_budget)


def test_tool_calls_count_once_for_their_turn() -> None:
    """With the first of its messages that is chosen."""
    memory = remembered(
        [message_of_tokens("user", 1, 3), message_of_tokens("assistant", 1, 3)], [tool_use_of_tokens(1, 4)]
    )
    assert [1] == list(PriorityPolicy(max_tokens=9).choose(memory).kept)
    assert [0, 1] == list(PriorityPolicy(max_tokens=10).choose(memory).kept)


def test_both_bounds_hold() -> None:
    """The one that is reached first counts."""
    assert 2 == len(PriorityPolicy(max_messages=2, max_tokens=99).choose(call(1, 1, 1)).kept)
    assert 1 == len(PriorityPolicy(max_messages=2, max_tokens=5).choose(call(1, 1, 1)).kept)


@given(memories(), st.integers(1, 60))
def test_it_never_exceeds_its_budget(memory: Remembered, budget: int) -> None:
    """By its own counter, with the tools of the turns that are shown, and of the turn under way."""
    choice = PriorityPolicy(max_tokens=budget).choose(memory)
    turns = {memory.messages[index].turn_id for index in choice.kept}
    first = first_current(memory)
    older = sum(memory.tool_tokens(use) for use in memory.tools[:first] if use.turn_id in turns)
    current = min(sum(map(memory.tool_tokens, memory.tools[first:])), budget)
    tokens = sum(map(memory.tokens, choice.kept)) + older + current
    assert choice.over_budget == (tokens > budget)
    assert not choice.over_budget or 1 >= len(choice.kept)
