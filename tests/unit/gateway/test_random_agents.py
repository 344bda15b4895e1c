"""What a memory has after random agents, however they send their conversations."""

from __future__ import annotations

from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.random_calls.gateway import RandomAgent, Way


@pytest.mark.parametrize(
    ("way", "few_words"),
    [("whole", False), ("whole", True), ("since the last request", False), ("new messages", False)],
)
@given(st.randoms(use_true_random=False))
def test_a_memory_has_each_thing_once_and_in_order(way: Way, few_words: bool, chance: Random) -> None:
    """With retries, tools, fillers, instructions, interruptions, speech of a recogniser, and all of it forgotten."""
    agent = RandomAgent(chance, way, few_words)
    agent.talk()
    assert agent.heard == [(role, text) for role, text in agent.call.said if text]
