"""Arguments, results and system messages in the forms that vendors take."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from tests.support.samples.formats import values
from voicemem.context.formats import arguments_object, as_object, json_text, system_text


def test_text_stays_as_it_is() -> None:
    """What is text already is not encoded again."""
    assert json_text('{"city":') == '{"city":'


@given(values.filter(lambda value: not isinstance(value, str)))
def test_other_values_become_json(value: Any) -> None:
    """Every other value comes back from its text."""
    assert json.loads(json_text(value)) == value


@given(values | st.text())
def test_any_value_becomes_an_object(value: Any) -> None:
    """Every value is made an object, without an error."""
    assert isinstance(arguments_object(value), dict)


@pytest.mark.parametrize("value", [{"a": 1}, '{"a":1}', ' {"a": 1} '])
def test_objects_stay_objects(value: Any) -> None:
    """An object is used as it is, also when its JSON comes as text."""
    assert as_object(value, "output") == {"a": 1}


@every_row("value", [None, 7, [1], "sunny", "[1]", "{", "", "\ud800"])
def test_other_values_are_wrapped(value: Any) -> None:
    """What is no object stands in one, unchanged."""
    assert as_object(value, "output") == {"output": value}


def test_json_too_deep_to_be_written_stays_text() -> None:
    """Text that hides a deeper nesting than an event may have is not opened."""
    text = '{"a":' * 33 + "1" + "}" * 33
    assert as_object(text, "output") == {"output": text}


@pytest.mark.parametrize("value", [None, "", " "])
def test_no_arguments_are_an_empty_object(value: Any) -> None:
    """A call without arguments has none, not one that is null."""
    assert arguments_object(value) == {}


def test_system_text_joins_what_is_text() -> None:
    """Strings, OpenAI's text parts and Gemini's parts are joined by newlines; all else is passed over."""
    parts = [{"type": "text", "text": "Two."}, {"type": "image_url"}, {"type": "text", "text": 7}]
    messages: list[dict[str, Any]] = [
        {"content": "One."},
        {"content": parts},
        {"content": " "},
        {"parts": [{"text": "Three."}]},
        {"content": 7},
        {},
    ]
    assert system_text(messages) == "One.\n\nTwo.\n\nThree."
