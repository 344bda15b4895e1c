"""The section `memory.extract` of a configuration."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest
from msgspec import convert

from tests.support.rows import every_row
from voicemem.config.context import ContextConfig, ExtractConfig, overlay
from voicemem.config.session import apply_patch, parse_config, validate_config
from voicemem.errors import Refused


@every_row(
    ("extract", "sentence"),
    [
        (
            {"strategy": "discreet"},
            "must be one of discrete, preferences, summary, custom, analysis, none: `memory.extract.strategy`",
        ),
        ({"strategie": "discrete"}, "no field `strategie` in `memory.extract` (did you mean `strategy`?); known: "),
        ({"strategy": "discrete", "prompt": "{messages}"}, "only `custom` has one"),
        ({"strategy": "custom", "prompt": "Write down pets."}, "lacks its placeholder {messages}"),
        ({"prompt": "Write down pets."}, "lacks its placeholder {messages}"),
        ({"instructions": "x" * 5_000}, "`memory.extract.instructions`"),
        ({"schema": []}, "Expected an object: `memory.extract.schema`"),
        ({"schema": {"type": "array"}}, "In `memory.extract` of the configuration: The `schema` is not a JSON Schema"),
        ({"schema": {"properties": {"a b": {}}}}, "a letter, then up to 63 of a-zA-Z0-9_-"),
        ({"schema": {"properties": {f"f{number}": {} for number in range(33)}}}, "at most 32 fields"),
        ({"schema": {"properties": {"outcome": {"enum": ["x" * 20_000]}}}}, "at most 32 fields and 16000 bytes"),
        (
            {"schema": {"properties": {"outcome": {"x-said-by": "me"}}}},
            "one of caller, agent, anyone: `memory.extract.sch",
        ),
        ({"model": ""}, "`memory.extract.model`"),
        ("discrete", "Expected an object: `memory.extract`"),
        (True, "Expected an object: `memory.extract`"),
    ],
)
def test_what_cannot_be_is_refused(extract: Any, sentence: str) -> None:
    """With the field, and without the value."""
    with pytest.raises(Refused) as refused:
        validate_config({"memory": {"extract": extract}})
    assert sentence in refused.value.detail


def test_a_prompt_comes_and_goes_with_its_strategy() -> None:
    """`custom` needs one; another strategy drops it."""
    with pytest.raises(Refused, match=r"needs `memory\.extract\.prompt`"):
        apply_patch({}, {"memory": {"extract": {"strategy": "custom"}}})
    custom = apply_patch({}, {"memory": {"extract": {"strategy": "custom", "prompt": "{messages}"}}})
    assert custom == apply_patch(custom, {"memory": {"policy": "full"}}) | {"memory": custom["memory"]}
    after = apply_patch(custom, {"memory": {"extract": {"strategy": "summary"}}})
    assert {"strategy": "summary"} == after["memory"]["extract"]
    assert "extract" not in apply_patch(custom, {"memory": {"extract": None}})["memory"]


def test_an_analysis_needs_its_schema() -> None:
    """With at least one field; a patch may change one of them, and another strategy keeps it."""
    schema = {"type": "object", "properties": {"outcome": {"enum": ["sold"]}}}
    for extract, sentence in (
        ({"strategy": "analysis"}, r"needs `memory\.extract\.schema`"),
        ({"strategy": "analysis", "schema": {}}, r"`memory\.extract\.schema` needs `properties`"),
        ({"schema": {"type": "object"}}, r"`memory\.extract\.schema` needs `properties`"),
    ):
        with pytest.raises(Refused, match=sentence):
            apply_patch({}, {"memory": {"extract": extract}})
    given = apply_patch({}, {"memory": {"extract": {"strategy": "analysis", "schema": schema}}})
    more = apply_patch(given, {"memory": {"extract": {"schema": {"properties": {"people": {"type": "integer"}}}}}})
    assert {"outcome", "people"} == more["memory"]["extract"]["schema"]["properties"].keys()
    both = apply_patch(given, {"memory": {"extract": {"strategy": "discrete"}}})
    assert schema == both["memory"]["extract"]["schema"]


def test_another_policy_keeps_it() -> None:
    """What is shown to the LLM and what is remembered are two things."""
    config = apply_patch({}, {"memory": {"policy": "window", "max_tokens": 9, "extract": {"strategy": "discrete"}}})
    changed = apply_patch(config, {"memory": {"policy": "full"}})
    assert {"policy": "full", "extract": {"strategy": "discrete"}} == changed["memory"]
    assert ExtractConfig(strategy="discrete") == parse_config(changed).memory.extract


@every_row(
    ("own", "given_over", "settled"),
    [
        (None, None, None),
        ({}, None, {}),
        (None, {"strategy": "none"}, {"strategy": "none"}),
        ({"strategy": "summary"}, {"instructions": "x"}, {"strategy": "summary", "instructions": "x"}),
        ({"strategy": "summary", "model": "m"}, {"strategy": "discrete"}, {"strategy": "discrete"}),
        ({"strategy": "summary", "model": "m"}, {"strategy": "none"}, {"strategy": "none"}),
    ],
)
def test_a_session_goes_over_the_service(own: Any, given_over: Any, settled: Any) -> None:
    """Whatever policies they choose; another strategy starts from its own defaults."""
    wanted = convert(settled, ExtractConfig | None)
    for policy, other in ((None, None), ("full", None), (None, "full"), ("full", "recent")):
        base = convert({"policy": policy, "extract": own}, ContextConfig)
        assert wanted == overlay(base, convert({"policy": other, "extract": given_over}, ContextConfig)).extract
        more = convert({"max_tokens": 5, "extract": given_over}, ContextConfig)
        assert wanted == overlay(base, more).extract
