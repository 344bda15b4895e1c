"""Policies by name, with the parameters that settings give them; what holds for all of them."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.policies import memories, remembered, turn_of_tokens
from voicemem.config.context import ContextConfig
from voicemem.context.policies import Choice, FullPolicy, Remembered
from voicemem.context.policy_registry import Policies
from voicemem.errors import Refused
from voicemem.transcript.messages import Summary

ANY = [
    ContextConfig(policy="full"),
    ContextConfig(policy="recent", max_messages=3),
    ContextConfig(policy="window", max_tokens=20),
    ContextConfig(policy="summary", max_tokens=30),
    ContextConfig(policy="priority", max_messages=3),
    ContextConfig(policy="priority", max_tokens=20),
]


class EverySecond:
    """A policy as a user would write it."""

    def __init__(self, step: int = 2) -> None:
        if step < 1:
            raise ValueError("step")
        self.step = step

    def choose(self, remembered: Remembered) -> Choice:
        return Choice(range(0, len(remembered.messages), self.step), "skipped")


@given(st.sampled_from(ANY), memories(), st.none() | st.integers(0, 30))
def test_policies_choose_and_never_reorder(settings: ContextConfig, memory: Remembered, through: int | None) -> None:
    """Whatever is chosen is some of the messages, each once, in the order of the call, and always the same."""
    memory = remembered(memory.messages, memory.tools, None if through is None else Summary(through, "so", 1))
    policy = Policies().create_policy(settings)
    assert policy is not None
    kept = list(policy.choose(memory).kept)
    assert sorted(set(kept)) == kept
    assert set(kept) <= set(range(len(memory.messages)))
    assert kept == list(policy.choose(memory).kept)


def test_without_policy_there_is_none() -> None:
    """Nothing is chosen by default, so that `llm.max_history` counts."""
    assert None is Policies().create_policy(ContextConfig())


def test_a_services_default_is_for_sessions_without_policy() -> None:
    """A session that chooses a policy is not given the default's parameters."""
    default = ContextConfig(policy="window", max_tokens=5)
    policies = Policies(default)
    assert default == policies.resolve(ContextConfig())
    own = ContextConfig(policy="recent")
    assert own == policies.resolve(own)


def test_own_policies_are_made_with_their_parameters() -> None:
    """A policy of the operator's own is found by its name, and gets `memory.parameters`."""
    policies = Policies(custom_policies={"second": EverySecond})
    policy = policies.create_policy(ContextConfig(policy="second", parameters={"step": 3}))
    assert policy is not None
    assert [0, 3] == list(policy.choose(remembered([*turn_of_tokens(1, 1, 1), *turn_of_tokens(2, 1, 1)])).kept)


@pytest.mark.parametrize("parameters", [{"stride": 3}, {"step": 0}, {"step": "x"}])
def test_own_policies_refuse_what_they_do_not_take(parameters: dict[str, Any]) -> None:
    """What the class raises becomes a refusal that says nothing of the values."""
    with pytest.raises(Refused, match="The policy second does not take these parameters"):
        Policies(custom_policies={"second": EverySecond}).check({"policy": "second", "parameters": parameters})


def test_unknown_policies_are_refused_with_those_that_there_are() -> None:
    """Own ones are named too."""
    with pytest.raises(Refused, match=r"full, recent, window, summary, priority, second"):
        Policies(custom_policies={"second": EverySecond}).check({"policy": "thrid"})


def test_a_patch_without_policy_is_not_checked_for_one() -> None:
    """It changes a parameter of the policy that is there, or takes the section away."""
    policies = Policies()
    for given_memory in ({"max_tokens": 3}, {"policy": None}, None, {}):
        policies.check(given_memory)


def test_full_keeps_everything() -> None:
    """Whatever it takes."""
    assert [0, 1, 2, 3] == list(
        FullPolicy().choose(remembered([*turn_of_tokens(1, 900, 900), *turn_of_tokens(2, 900, 900)])).kept
    )
