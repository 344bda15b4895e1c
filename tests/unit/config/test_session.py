"""The configuration of a session."""

from __future__ import annotations

import pytest

from tests.support.rows import every_row
from voicemem.config.session import MAX_LABELS, apply_patch, parse_config, validate_config
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

SYSTEM = {"role": "system", "content": "Be brief."}
FULL: JsonObject = {
    "name": "joker",
    "channel": "room",
    "user_id": "u1",
    "labels": {"tier": "vip"},
    "llm": {"vendor": "custom", "model": "m", "style": "gemini", "url": "https://llm.example/", "max_history": 1024},
    "interruptable": False,
    "webhook": {"url": "https://hook.example/", "contents": "standard"},
    "idle_timeout": 0,
    "reopen_window": 1.5,
    "max_duration": 60,
    "ttl_seconds": 86400,
}


# What a configuration may hold


def test_defaults_are_the_documented_ones() -> None:
    """A session that says nothing idles out after 60 s, may come back for 1 h, and lasts 72 h at most."""
    config = parse_config({})
    assert (config.idle_timeout, config.reopen_window, config.max_duration) == (60, 3600, 72 * 3600)
    assert (config.llm.max_history, config.llm.style, config.webhook.contents) == (32, "openai", "full")
    assert (config.interruptable, config.ttl_seconds) == (True, None)


def test_full_configuration_is_kept_as_given() -> None:
    """What was given is what is kept, with no default written into it."""
    settled = validate_config(FULL)
    assert (settled.public, settled.secrets) == (FULL, {})
    assert parse_config(settled.public).llm.style == "gemini"


@every_row(
    "given",
    [
        {"idle_timeot": 5},
        {"llm": {"temperature": 1}},
        {"webhook": {"headers": {}}},
        {"name": 5},
        {"user_id": ""},
        {"user_id": "x" * 129},
        {"labels": {"a": 1}},
        {"labels": ["a"]},
        {"labels": {"a": {}}},
        {"llm": 5},
        {"llm": []},
        {"llm": {"style": "cohere"}},
        {"llm": {"max_history": 0}},
        {"llm": {"max_history": 1025}},
        {"llm": {"max_history": True}},
        {"llm": {"params": []}},
        {"llm": {"api_key": 5}},
        {"llm": {"system_messages": [{"role": "system"}]}},
        {"llm": {"system_messages": ["Be brief."]}},
        {"system_messages": "Be brief."},
        {"system_messages": [{"role": "system", "content": 5}]},
        {"interruptable": 1},
        {"webhook": {"contents": "some"}},
        {"webhook": "https://hook.example/"},
        {"idle_timeout": -1},
        {"idle_timeout": "60"},
        {"idle_timeout": True},
        {"idle_timeout": float("nan")},
        {"idle_timeout": float("inf")},
        {"max_duration": 10**11},
    ],
    ids=str,
)
def test_what_no_configuration_can_hold_is_refused(given: JsonObject) -> None:
    """Unknown settings and values out of range are refused with one code."""
    with pytest.raises(Refused, match=r"In the configuration") as refused:
        validate_config(given)
    assert refused.value.code == "invalid_field"


@pytest.mark.parametrize(
    ("given", "said"),
    [
        ({"llm": {"url": "llm.example"}}, "An address is http:// or https://"),
        ({"webhook": {"url": "https://a:b@c/"}}, "An address is http:// or https://"),
        ({"llm": {"headers": {"a b": "c"}}}, "The name of a header must be"),
        ({"llm": {"headers": {"a": "\n"}}}, "The value of a header must be"),
        ({"memory": {"policy": "Mine"}}, "The name of a policy is"),
    ],
    ids=str,
)
def test_a_text_of_another_form_gets_a_sentence(given: JsonObject, said: str) -> None:
    """What a text must be like is said in words, and without the pattern that it is checked with."""
    with pytest.raises(Refused) as refused:
        validate_config(given)
    assert f"In the configuration: {said}" in refused.value.detail
    assert "regex" not in refused.value.detail


@pytest.mark.parametrize("given", [{"llm": 5, "system_messages": []}, {"llm": [], "system_messages": [SYSTEM]}])
def test_invalid_llm_is_refused_beside_system_messages(given: JsonObject) -> None:
    """The short form does not hide what is wrong with `llm`."""
    with pytest.raises(Refused):
        validate_config(given)


@every_row("value", ["s3cret", "it's s3cret", "'s3cret", 's3"cret', "s3'c'ret"])
@every_row("place", [("llm", "style"), ("webhook", "contents")])
def test_refusal_does_not_hold_the_value(place: tuple[str, str], value: str) -> None:
    """The sentence of a refusal names the field and never says what was sent."""
    section, key = place
    with pytest.raises(Refused) as refused:
        validate_config({section: {key: value}})
    assert f"{section}.{key}" in refused.value.detail
    assert not any(part in refused.value.detail for part in ("s3", "cret"))


@pytest.mark.parametrize(
    ("given", "named"),
    [
        ({"idle_timeot": 5}, "no field `idle_timeot` (did you mean `idle_timeout`?); known: `channel`,"),
        ({"llm": {"temperature": None}}, "no field `temperature` in `llm`"),
        ({"webhook": {"it's s3cret": 1}}, "an unknown field in `webhook`"),
        ({"it's s3cret": 1}, "There is an unknown field; known: `channel`,"),
    ],
    ids=str,
)
def test_refusal_names_the_setting_that_is_not_known(given: JsonObject, named: str) -> None:
    """A name that is a plain word is said; other text of the sender's is not."""
    with pytest.raises(Refused) as refused:
        validate_config(given)
    assert (named in refused.value.detail, "s3cret" in refused.value.detail) == (True, False)


@pytest.mark.parametrize(
    ("given", "values"),
    [
        ({"llm": {"style": "cohere"}}, "openai, anthropic, gemini: `llm.style`"),
        ({"webhook": {"contents": "some"}}, "full, standard, vcon: `webhook.contents`"),
        ({"webhook": {"event_types": [103, 104]}}, "101, 102, 103, 111, 112, 1001, 1002: `webhook.event_types[1]`"),
    ],
    ids=str,
)
def test_refusal_lists_the_values_that_can_be(given: JsonObject, values: str) -> None:
    """Where a setting is a choice, the choice is shown."""
    with pytest.raises(Refused) as refused:
        validate_config(given)
    assert refused.value.detail.endswith(f"The value must be one of {values}")


def test_labels_are_limited() -> None:
    """A session has at most 64 labels, given at once or one after the other."""
    labels = {str(number): "x" for number in range(MAX_LABELS)}
    assert MAX_LABELS == 64
    assert len(parse_config(validate_config({"labels": labels}).public).labels) == 64
    with pytest.raises(Refused):
        validate_config({"labels": labels | {"more": "x"}})
    with pytest.raises(Refused, match="at most 64 labels"):
        apply_patch({"labels": labels}, {"labels": {"more": "x"}})


def test_label_may_take_the_place_of_another() -> None:
    """Labels that a patch takes away do not count."""
    labels = {str(number): "x" for number in range(MAX_LABELS)}
    patch = {"labels": {"0": None, "more": "x"}}
    assert len(apply_patch({"labels": labels}, validate_config(patch).public)["labels"]) == 64


# System messages


def test_system_messages_at_the_top_are_those_of_the_llm() -> None:
    """The short form is kept as the long one."""
    assert validate_config({"system_messages": [SYSTEM]}) == validate_config({"llm": {"system_messages": [SYSTEM]}})


def test_system_messages_at_the_top_join_the_llm() -> None:
    """The short form stands beside other settings of the LLM, and wins over the long form."""
    given: JsonObject = {"llm": {"model": "m", "system_messages": []}, "system_messages": [SYSTEM]}
    assert validate_config(given).public == {"llm": {"model": "m", "system_messages": [SYSTEM]}}


def test_system_messages_keep_fields_beside_role_and_content() -> None:
    """What else a system message says passes through."""
    rich = {"role": "developer", "content": [{"type": "text", "text": "Hi."}], "name": "n"}
    assert parse_config(validate_config({"system_messages": [rich]}).public).llm.system_messages == (rich,)


def test_system_messages_can_be_taken_away() -> None:
    """Null in the short form is null in the long one."""
    assert validate_config({"system_messages": None}).public == {"llm": {"system_messages": None}}


# Merge patches


@pytest.mark.parametrize(
    "given", [{"idle_timeout": None}, {"labels": {"a": None}}, {"llm": None}, {"llm": {"style": None}}], ids=str
)
def test_null_in_a_configuration_is_the_default(given: JsonObject) -> None:
    """A setting given as null is kept as one that was left out."""
    assert parse_config(apply_patch({}, validate_config(given).public)) == parse_config({})


def test_merged_configuration_can_be_read() -> None:
    """A patch changes what it names and takes away what it says is null."""
    config = apply_patch(FULL, validate_config({"labels": {"tier": None, "lang": "de"}, "llm": {"style": None}}).public)
    assert parse_config(config).labels == {"lang": "de"}
    assert (parse_config(config).llm.style, parse_config(config).llm.vendor) == ("openai", "custom")
