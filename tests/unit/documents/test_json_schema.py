"""Which schemas can be used for documents, and which are refused."""

from __future__ import annotations

import json
import time
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.documents.json_schema import (
    DIALECT,
    MAX_ALL_PATTERNS_LENGTH,
    MAX_PATTERN_LENGTH,
    MAX_PATTERNS,
    MAX_REFERENCES,
    check_schema,
)
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject
from voicemem.sessions.schema_worker import SCHEMA_WORKER

GOOD: list[JsonObject] = [
    {},
    {"$schema": DIALECT, "$id": "https://a.example/profile", "type": "object", "title": "Profile"},
    {"$defs": {"goal": {"type": "string"}}, "properties": {"goals": {"items": {"$ref": "#/$defs/goal"}}}},
    {"definitions": {"node": {"properties": {"next": {"$ref": "#/definitions/node"}}}}, "$ref": "#/definitions/node"},
    {"properties": {"self": {"$ref": "#"}, "named": {"$ref": "#here"}, "x": {"$anchor": "here"}}},
    {"properties": {"$ref": {"type": "string"}, "pattern": {"type": "string"}, "$id": {}}},
    {"patternProperties": {"^[a-z]+$": {"type": "integer", "minimum": 0.5}}, "additionalProperties": False},
    {"patternProperties": {"^.{1,500}$": {}}, "unevaluatedProperties": False},
    {"$defs": {"a b": {}}, "$ref": "#/$defs/a%20b", "anyOf": [{"$ref": "#/anyOf/1"}, {}]},
    {"type": ["object", "null"], "required": ["a"], "if": {}, "then": True, "else": {"not": {}}, "x-mine": 7},
    {"$ref": "#"},
    {"$defs": {"a": {"not": {"$ref": "#/$defs/b"}}, "b": {"if": {"$ref": "#/$defs/a"}}}, "$ref": "#/$defs/a"},
    {"properties": {"a": {"allOf": [{"$ref": "#/$defs/b"}] * MAX_REFERENCES}}, "$defs": {"b": {}}},
    {"enum": [{"$id": "x", "pattern": "(", "$ref": 1}], "properties": {"$id": {}, "pattern": {}}},
]


def chain(link: JsonObject, length: int) -> JsonObject:
    """Definitions n0, n1 … that each lead to the next one."""
    text = json.dumps(link)
    return {f"n{level}": json.loads(text.replace("NEXT", f"#/$defs/n{level + 1}")) for level in range(length)} | {
        f"n{length}": {}
    }


BAD: dict[str, JsonObject] = {
    "unknown type": {"type": "text"},
    "no schema in it": {"properties": {"a": "string"}},
    "deep": {"properties": {"a": {"items": {"anyOf": [{"minLength": -1}]}}}},
    "required": {"required": "name"},
    "another draft": {"$schema": "http://json-schema.org/draft-07/schema#"},
    "no name of a draft": {"$schema": {}},
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
    "a hidden number of names": {"x": {"required": 5}, "$ref": "#/x"},
    "a hidden number for a reference": {"x": {"allOf": [{"$ref": 5}]}, "$ref": "#/x"},
    "a map of schemas": {"properties": {"required": {}}, "$ref": "#/properties"},
    "no pattern": {"properties": {"a": {"pattern": "("}}},
    "a name's pattern": {"patternProperties": {"[": {}}},
    "a look ahead": {"properties": {"a": {"pattern": "(?=a)"}}},
    "a large pattern": {"properties": {"a": {"pattern": "((a{1000}){1000}){1000}"}}},
    "a look behind": {"properties": {"a": {"pattern": "(?<=a)b"}}},
    "a back reference": {"properties": {"a": {"pattern": r"(a)\1"}}},
    "a long pattern": {"properties": {"a": {"pattern": "a" * (MAX_PATTERN_LENGTH + 1)}}},
    "long patterns": {
        "allOf": [{"pattern": "a" * MAX_PATTERN_LENGTH}] * (MAX_ALL_PATTERNS_LENGTH // MAX_PATTERN_LENGTH + 1)
    },
    "many patterns": {"patternProperties": {f"a{number}": {} for number in range(MAX_PATTERNS + 1)}},
    "doubling": {"$ref": "#/$defs/n0", "$defs": chain({"allOf": [{"$ref": "NEXT"}] * 2}, 40)},
    "a long chain": {"$ref": "#/$defs/n0", "$defs": chain({"$ref": "NEXT"}, 400)},
    "very many references": {"properties": {f"p{number}": {"$ref": "#"} for number in range(2_500)}},
    "hidden patterns": {
        "x": [{"pattern": f"a{number}"} for number in range(MAX_PATTERNS + 1)],
        "anyOf": [{"$ref": f"#/x/{number}"} for number in range(MAX_PATTERNS + 1)],
    },
}


def check(schema: JsonObject) -> None:
    """Refuse what cannot be used, as it is at every door. Raises `Refused`."""
    check_schema(schema)
    if fault := SCHEMA_WORKER.find_fault(schema, None):
        raise Refused("invalid_field", fault)


@every_row("schema", GOOD, ids=range(len(GOOD)))
def test_schemas_are_accepted(schema: JsonObject) -> None:
    """Keywords of draft 2020-12, references within the schema, and keywords of one's own."""
    check(schema)
    jsonschema.Draft202012Validator.check_schema(schema)


@every_row("schema", BAD.values(), ids=BAD)
def test_what_cannot_be_used_is_refused(schema: JsonObject) -> None:
    """What is not a schema, refers to something outside, or could take too long; the sentence quotes nothing of it."""
    began = time.thread_time()
    with pytest.raises(Refused, match="invalid_field") as refused:
        check(schema)
    assert "example" not in refused.value.detail
    assert "passwd" not in refused.value.detail
    assert time.thread_time() - began < 2  # mostly below 0.2 s


WITHOUT_NAMES = [name for name in jsonschema.Draft202012Validator.VALIDATORS if name[0] != "$" and name != "format"]
ANYTHING = st.recursive(
    st.none() | st.booleans() | st.integers(-2, 2) | st.sampled_from(["object", "string", "a", 0.5]),
    lambda inner: (
        st.lists(inner, max_size=2) | st.dictionaries(st.sampled_from(["a", *WITHOUT_NAMES]), inner, max_size=3)
    ),
    max_leaves=6,
)


@given(st.dictionaries(st.sampled_from(WITHOUT_NAMES), ANYTHING, max_size=3))
def test_whatever_is_accepted_is_a_schema(schema: dict[str, Any]) -> None:
    """What passes here passes the draft's own schema for schemas, in another validator."""
    try:
        check(schema)
    except Refused:
        return
    jsonschema.Draft202012Validator.check_schema(schema)
