"""Documents held to schemas: what is a fault and where, and that nothing takes for ever."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import socket
import time
from typing import Any

import jsonschema_rs
import pytest
from calls import JsonObject
from hypothesis import given, settings
from hypothesis import strategies as st

from voicemem.errors import Refused
from voicemem.memory.schema_validation import MAX_CPU_S, check_document

PROFILE: JsonObject = {
    "type": "object",
    "properties": {
        "name": {"type": "string", "pattern": "^[A-Z]"},
        "goals": {"type": "array", "items": {"$ref": "#/$defs/goal"}, "uniqueItems": True},
        "visits": {"enum": [1, 2, "many"]},
    },
    "patternProperties": {"^x-": {"const": 1}},
    "required": ["name"],
    "additionalProperties": False,
    "$defs": {"goal": {"type": "object", "required": ["title", "by"], "properties": {"title": {"maxLength": 9}}}},
}


def fault(document: JsonObject, schema: JsonObject) -> str:
    """What is said of a document; "" when all is well."""
    try:
        check_document(document, schema)
    except Refused as refused:
        return refused.detail
    return ""


@pytest.mark.parametrize(
    ("document", "place", "what"),
    [
        ({"name": "Ann", "goals": [{"title": "sleep", "by": 1}], "visits": 1.0, "x-a": 1}, "", ""),
        ({}, "`$`", "lacks `name`"),
        ({"name": 7}, "`$.name`", "not of the type string"),
        ({"name": "ann"}, "`$.name`", '`pattern` "'),
        ({"name": "Ann", "visits": True}, "`$.visits`", "`enum` ["),
        ({"name": "Ann", "x-a": True}, "`$.x-a`", "`const` "),
        ({"name": "Ann", "goals": [{"title": "sleep", "by": 1}, {"title": "secret"}]}, "`$.goals[1]`", "lacks `by`"),
        ({"name": "Ann", "goals": [{"title": "secret long", "by": 1}]}, "`$.goals[0].title`", "`maxLength` 9"),
        ({"name": "Ann", "goals": [{"title": "a", "by": 1}, {"by": 1.0, "title": "a"}]}, "`$.goals`", "`uniqueItems`"),
        ({"name": "Ann", "other": 1}, "`$.other`", "`additionalProperties`"),
        ({"name": "Ann", "größe in cm": "secret"}, '`$["größe in cm"]`', "may not be there"),
        ({"name": "Ann", "k" * 99: "secret"}, f'`$["{"k" * 64}…"]`', "may not be there"),
    ],
)
def test_the_path_to_the_fault_is_told(document: JsonObject, place: str, what: str) -> None:
    """The sentence says where and what, and nothing of the document itself."""
    said = fault(document, PROFILE)
    assert place in said
    assert what in said
    assert "secret" not in said


VALUES = st.recursive(
    st.booleans() | st.integers(-2, 2) | st.sampled_from([1.0, "a", "ab", ""]),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["a", "b", "ab"]), inner, max_size=2),
    max_leaves=5,
)
SCHEMAS = st.recursive(
    st.sampled_from([
        {"type": "string", "pattern": "^a"}, {"type": "integer"}, {"enum": [1, "a", [True]]}, {"const": {"a": 1}},
        {"uniqueItems": True}, {"minItems": 1}, {"minProperties": 1}, {"required": ["a"]}, {},
    ]),
    lambda inner: st.one_of(
        st.dictionaries(st.sampled_from(["a", "b"]), inner, max_size=2).map(lambda found: {"properties": found}),
        inner.map(lambda one: {"patternProperties": {"b$": one}, "additionalProperties": {"type": "integer"}}),
        inner.map(lambda one: {"properties": {"a": one}, "additionalProperties": False}),
        inner.map(lambda one: {"items": one}),
        st.lists(inner, min_size=1, max_size=2).map(lambda several: {"anyOf": several}),
        inner.map(lambda one: {"not": one}),
    ),
    max_leaves=4,
)  # fmt: skip


@settings(max_examples=500, deadline=None)
@given(st.dictionaries(st.sampled_from(["a", "b", "ab"]), VALUES), SCHEMAS)
def test_another_validator_agrees(document: JsonObject, schema: JsonObject) -> None:
    """What is valid is so for a validator of other people's, too."""
    schema = {name: value for name, value in schema.items() if name != "type"}
    assert jsonschema_rs.Draft202012Validator(schema).is_valid(document) == (fault(document, schema) == "")


WIDE = 40
DOUBLING = {f"n{level}": {"allOf": [{"$ref": f"#/$defs/n{level + 1}"}] * 2} for level in range(WIDE)} | {f"n{WIDE}": {}}
ENDLESS: dict[str, tuple[JsonObject, JsonObject]] = {
    "itself": ({"$ref": "#"}, {}),
    "doubling": ({"$ref": "#/$defs/n0", "$defs": DOUBLING}, {}),
    "a large choice": (
        {"properties": {"l": {"items": {"enum": [{"a": number} for number in range(3000)]}}}},
        {"l": [{"a": number} for number in range(5000)]},
    ),
}
QUICK: dict[str, tuple[JsonObject, JsonObject]] = {
    "a pattern with backtracking": ({"properties": {"t": {"pattern": "^(a+)+$"}}}, {"t": "a" * 60_000 + "!"}),
    "unique objects": ({"properties": {"l": {"uniqueItems": True}}}, {"l": [{"a": n} for n in [*range(5000), 0]]}),
}


@pytest.mark.parametrize(("schema", "document"), ENDLESS.values(), ids=ENDLESS)
def test_what_takes_too_long_is_given_up(schema: JsonObject, document: JsonObject) -> None:
    """A schema cannot keep the service busy."""
    began = time.thread_time()
    assert "takes too long" in fault(document, schema)
    assert time.thread_time() - began < 20 * MAX_CPU_S


@pytest.mark.parametrize(("schema", "document"), QUICK.values(), ids=QUICK)
def test_what_is_slow_elsewhere_is_not_here(schema: JsonObject, document: JsonObject) -> None:
    """Patterns and comparisons take time that grows with the document, and come to an end."""
    assert "breaks its schema" in fault(document, schema)


def test_nothing_is_fetched(monkeypatch: pytest.MonkeyPatch) -> None:
    """A reference to elsewhere is no reason to call anybody."""
    called: list[Any] = []
    monkeypatch.setattr(socket, "create_connection", lambda *given, **_: called.append(given))
    with pytest.raises(Refused, match="invalid_field"):
        check_document({}, {"$ref": "http://127.0.0.1:9/schema"})
    assert [] == called
