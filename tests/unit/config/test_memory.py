"""The section `memory` of a configuration."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import convert

from tests.support.rows import every_row
from voicemem.config.context import ContextConfig, fill_prompt, overlay
from voicemem.config.session import apply_patch, validate_config
from voicemem.errors import Refused


@every_row(
    ("memory", "sentence"),
    [
        ({"policy": "window", "max_messages": 3}, "The policy window has no parameter `max_messages`."),
        ({"policy": "full", "threshold": 0.5}, "The policy full has no parameter `threshold`."),
        ({"polcy": "full"}, "no field `polcy` in `memory` (did you mean `policy`?)"),
        ({"policy": "window", "max_tokens": 0}, "`memory.max_tokens`"),
        ({"policy": "summary", "threshold": 1.5}, "`memory.threshold`"),
        ({"policy": "summary", "threshold": 0}, "`memory.threshold`"),
        ({"policy": "summary", "prompt": "Sum up {messages_joined}"}, "lacks its placeholder {prev_summary}"),
        ({"policy": "summary", "prompt": "Sum up {prev_summary}"}, "lacks its placeholder {messages_joined}"),
        ({"max_tokens": "many"}, "`memory.max_tokens`"),
        ({"policy": ""}, "`memory.policy`"),
        ("window", "`memory`"),
    ],
)
def test_what_cannot_be_is_refused(memory: Any, sentence: str) -> None:
    """With the field, and without the value."""
    with pytest.raises(Refused) as refused:
        validate_config({"memory": memory})
    assert "invalid_field" == refused.value.code
    assert sentence in refused.value.detail


@pytest.mark.parametrize(
    ("config", "sentence"),
    [
        ({"policy": "window"}, "no field `policy`: it goes under `memory`; known: `channel`"),
        ({"url": "https://x"}, "no field `url`: it goes under `llm` or under `webhook`;"),
        ({"session_id": "s"}, "no field `session_id`: it goes beside `session` in `session.open`;"),
        ({"session": {"user_id": "ann"}}, "no field `session`: it goes at the top, field by field;"),
        ({"memory": {"userId": "ann"}}, "no field `userId` in `memory`: it goes at the top;"),
        ({"memory": {"strategy": "custom"}}, "no field `strategy` in `memory`: it goes under `memory.extract`;"),
        ({"memory": {"memories": {"sessions": 3}}}, "in `memory.memories`: it goes under `memory_from`;"),
    ],
)
def test_a_misplaced_setting_is_refused_with_its_place(config: Any, sentence: str) -> None:
    """A setting that there is elsewhere is not taken for a misspelt one."""
    with pytest.raises(Refused) as refused:
        validate_config(config)
    assert sentence in refused.value.detail


@pytest.mark.parametrize(
    "memory",
    [
        {"policy": "summary", "max_tokens": 9, "prompt": "{prev_summary}{messages_joined}", "model": "m"},
        {"max_tokens": 500},
        {"policy": None, "max_tokens": None},
        {"policy": "mine", "parameters": {"anything": [1]}},
        None,
    ],
)
def test_what_can_be_is_taken(memory: Any) -> None:
    """A patch may change a parameter alone; whether there is such a policy the service knows."""
    assert {"memory": memory} == validate_config({"memory": memory}).public


@given(st.text(), st.text())
def test_placeholders_are_replaced_once(summary: str, messages: str) -> None:
    """What stands in the texts is no placeholder, whatever was said on the call."""
    prompt = "a {prev_summary} b {messages_joined} c"
    assert f"a {summary} b {messages} c" == fill_prompt(prompt, summary, messages)
    said = fill_prompt(prompt, "{messages_joined}", "{prev_summary}")
    assert "a {messages_joined} b {prev_summary} c" == said


@every_row(
    ("own", "given_over", "settled"),
    [
        ({}, {}, {}),
        ({}, {"max_messages": 2}, {"policy": "recent", "max_messages": 2}),
        ({}, {"max_tokens": 9}, {"policy": "window", "max_tokens": 9}),
        ({}, {"keep_recent": 9, "max_tokens": 9}, {"policy": "window", "keep_recent": 9, "max_tokens": 9}),
        ({}, {"threshold": 0.5}, {"policy": "summary", "threshold": 0.5}),
        ({}, {"context_window": 9}, {"context_window": 9}),
        ({"policy": "summary"}, {"max_tokens": 9}, {"policy": "summary", "max_tokens": 9}),
        ({"policy": "summary"}, {"context_window": 9}, {"policy": "summary", "context_window": 9}),
        ({"policy": "recent", "max_messages": 3}, {"max_tokens": 9}, {"policy": "window", "max_tokens": 9}),
        ({"policy": "recent", "max_messages": 3}, {"policy": "full"}, {"policy": "full"}),
        ({"policy": "recent", "max_messages": 3}, {"policy": "recent"}, {"policy": "recent", "max_messages": 3}),
    ],
)
def test_settings_over_others(own: Any, given_over: Any, settled: Any) -> None:
    """Of another policy nothing stays; parameters alone are for the policy that is there, or say which is meant."""
    kinds = [convert(one, ContextConfig) for one in (own, given_over, settled)]
    assert kinds[2] == overlay(kinds[0], kinds[1])


def test_a_patch_that_chooses_another_policy() -> None:
    """What only the old one has goes; what neither has is refused."""
    window = {"memory": {"policy": "window", "max_tokens": 9, "context_window": 99}}
    patch = {"memory": {"policy": "recent", "max_messages": 2}}
    assert {"policy": "recent", "max_messages": 2, "context_window": 99} == apply_patch(window, patch)["memory"]
    with pytest.raises(Refused, match="The policy window has no parameter `max_messages`"):
        apply_patch(window, {"memory": {"max_messages": 2}})
    with pytest.raises(Refused, match="less than"):
        apply_patch({"memory": {"policy": "summary", "target_ratio": 0.6}}, {"memory": {"threshold": 0.5}})
