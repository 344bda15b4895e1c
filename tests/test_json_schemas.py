"""What is a schema that documents can be held to, and what is none."""

from __future__ import annotations

from typing import Any

import jsonschema
import pytest
from calls import JsonObject
from hypothesis import given, settings
from hypothesis import strategies as st

from voicemem.documents.json_schema import DIALECT, MAX_PATTERN_LENGTH, MAX_PATTERNS, check_schema
from voicemem.errors import Refused

GOOD: list[JsonObject] = [
    {},
    {"$schema": DIALECT, "$id": "https://a.example/profile", "type": "object", "title": "Profile"},
    {"$defs": {"goal": {"type": "string"}}, "properties": {"goals": {"items": {"$ref": "#/$defs/goal"}}}},
    {"definitions": {"node": {"properties": {"next": {"$ref": "#/definitions/node"}}}}, "$ref": "#/definitions/node"},
    {"properties": {"self": {"$ref": "#"}, "named": {"$ref": "#here"}, "x": {"$anchor": "here"}}},
    {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}, "$id": {}}},
    {"patternProperties": {"^[a-z]+$": {"type": "integer", "minimum": 0.5}}, "additionalProperties": False},
    {"type": ["object", "null"], "required": ["a"], "if": {}, "then": True, "else": {"not": {}}, "x-mine": 7},
]
BAD: dict[str, JsonObject] = {
    "unknown type": {"type": "text"},
    "no schema in it": {"properties": {"a": "string"}},
    "deep": {"properties": {"a": {"items": {"anyOf": [{"minLength": -1}]}}}},
    "required": {"required": "name"},
    "another draft": {"$schema": "http://json-schema.org/draft-07/schema#"},
    "another draft inside": {"properties": {"a": {"$schema": DIALECT}}},
    "another name inside": {"properties": {"a": {"$id": "x"}}},
    "no object": {"type": "array"},
    "neither": {"type": ["string", "null"]},
    "from elsewhere": {"$ref": "https://a.example/schema.json"},
    "a file": {"properties": {"a": {"$ref": "file:///etc/passwd"}}},
    "relative": {"$dynamicRef": "other.json#/x"},
    "not there": {"$ref": "#/$defs/x"},
    "an anchor that is not there": {"$ref": "#x"},
    "to what is no schema": {"title": "x", "properties": {"a": {"$ref": "#/title"}}},
    "hidden": {"x": {"type": 7}, "properties": {"a": {"$ref": "#/x"}}},
    "no pattern": {"properties": {"a": {"pattern": "("}}},
    "a name's pattern": {"patternProperties": {"[": {}}},
    "a look ahead": {"properties": {"a": {"pattern": "(?=a)"}}},
    "a large pattern": {"properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}},
    "a long pattern": {"properties": {"a": {"pattern": "a" * (MAX_PATTERN_LENGTH + 1)}}},
    "many patterns": {"patternProperties": {f"a{number}": {} for number in range(MAX_PATTERNS + 1)}},
    "both": {"patternProperties": {"a": {}}, "unevaluatedProperties": False},
}


@pytest.mark.parametrize("schema", GOOD, ids=range(len(GOOD)))
def test_schemas_are_taken(schema: JsonObject) -> None:
    """What draft 2020-12 says, references inside and keywords of one's own."""
    check_schema(schema)
    jsonschema.Draft202012Validator.check_schema(schema)


@pytest.mark.parametrize("schema", BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_refused(schema: JsonObject) -> None:
    """What is no schema, looks outside, or could take for ever; nothing of it stands in the sentence."""
    with pytest.raises(Refused, match="invalid_field") as refused:
        check_schema(schema)
    assert "example" not in refused.value.detail
    assert "passwd" not in refused.value.detail


WITHOUT_NAMES = [name for name in jsonschema.Draft202012Validator.VALIDATORS if name[0] != "$" and name != "format"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["object", "string", "a", 0.5]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", *WITHOUT_NAMES]), inner, max_size=3)
    ),
    max_leaves=6,
)


@settings(max_examples=400, deadline=None)
@given(st.dictionaries(st.sampled_from(WITHOUT_NAMES), ANYTHING, max_size=3))
def test_whatever_is_taken_is_a_schema(schema: dict[str, Any]) -> None:
    """What passes here passes the draft's own schema for schemas."""
    try:
        check_schema(schema)
    except Refused:
        return
    jsonschema.Draft202012Validator.check_schema(schema)
