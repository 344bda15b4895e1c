"""Documents checked against schemas: which faults are found and where, and that none takes long to find."""

from __future__ import annotations

import os
import signal
import socket
import sys
import time

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from tests.unit.documents.test_json_schema import chain
from voicemem.errors import StoreUnavailable
from voicemem.protocol.types import JsonObject
from voicemem.sessions.schema_worker import CPU_S, SCHEMA_WORKER, SchemaWorker

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
    return SCHEMA_WORKER.find_fault(schema, document)


@every_row(
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
def test_the_path_to_the_fault_is_given(document: JsonObject, place: str, what: str) -> None:
    """The sentence says where and what, and quotes no value of the document."""
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


@given(st.dictionaries(st.sampled_from(["a", "b", "ab"]), VALUES), SCHEMAS)
def test_another_validator_agrees(document: JsonObject, schema: JsonObject) -> None:
    """What is valid here is valid for another validator, and the other way round."""
    schema = {name: value for name, value in schema.items() if name != "type"}
    assert jsonschema.Draft202012Validator(schema).is_valid(document) == (fault(document, schema) == "")


def nested(depth: int) -> JsonObject:
    """An object in an object, so many levels deep."""
    return {"a": nested(depth - 1)} if depth else {}


def items(schema: JsonObject) -> JsonObject:
    """A schema for each item of the array `l`."""
    return {"properties": {"l": {"items": schema}}}


DOUBLING = {f"n{level}": {"allOf": [{"$ref": f"#/$defs/n{level + 1}"}] * 2} for level in range(10)}
SLOW: dict[str, tuple[JsonObject, JsonObject]] = {
    "a large choice of objects": (items({"enum": [{"a": n} for n in range(3000)]}), {"l": [{"a": 1}] * 5000}),
    "a large choice of floats": (items({"enum": [n + 0.5 for n in range(3000)]}), {"l": [0.5] * 5000}),
    "floats among integers": (items({"enum": [*range(7000)]}), {"l": [0.5] * 5000}),
    "many branches": (items({"anyOf": [{"const": n} for n in range(900)]}), {"l": [-1] * 16_000}),
    "fractions": (items({"multipleOf": 1e-300}), {"l": [1e308] * 9000}),
    "one pattern often": ({"properties": {"t": {"allOf": [{"pattern": "^(a+)+$"}] * 60}}}, {"t": "a" * 60_000}),
    "a pattern of many states": ({"properties": {"t": {"pattern": "[ab]*a[ab]{900}c"}}}, {"t": "ab" * 30_000}),
    "nested repetitions": ({"properties": {"t": {"pattern": "([ab]{9}a[ab]{9}){9}c"}}}, {"t": "ab" * 30_000}),
    "a pattern for a long name": ({"patternProperties": {"[ab]*a[ab]{900}c": {}}}, {"ab" * 30_000: 1}),
    "unique again and again": (
        {
            "properties": {"l": {"$ref": "#/$defs/n0"}},
            "$defs": DOUBLING | {"n10": {"allOf": [{"uniqueItems": True}] * 8}},
        },
        {"l": [*range(12_000)]},
    ),
    "recursive twice": ({"properties": {"a": {"$ref": "#"}}, "patternProperties": {"a": {"$ref": "#"}}}, nested(30)),
}
QUICK: dict[str, tuple[JsonObject, JsonObject]] = {
    "a pattern with backtracking": ({"properties": {"t": {"pattern": "^(a+)+$"}}}, {"t": "a" * 60_000 + "!"}),
    "unique objects": ({"properties": {"l": {"uniqueItems": True}}}, {"l": [{"a": n} for n in [*range(5000), 0]]}),
    "errors of many branches": ({"anyOf": [{"type": "string"}] * 500}, {"l": [{"a": n} for n in range(5000)]}),
}


@every_row(("schema", "document"), SLOW.values(), ids=SLOW)
def test_what_takes_too_long_is_ended(schema: JsonObject, document: JsonObject) -> None:
    """What is answered, if it is, comes within the time of a check, and the next document is checked as ever."""
    before = os.times()
    fault(document, schema)
    took = os.times()
    spent = took.children_user + took.children_system - before.children_user - before.children_system
    assert spent < CPU_S + 2  # the start of the process that was ended counts as well
    assert "lacks `name`" in fault({}, PROFILE)


ENDLESS: dict[str, tuple[JsonObject, JsonObject | None]] = {
    "unique again and again": (*SLOW["unique again and again"],),
    "doubling": ({"$ref": "#/$defs/n0", "$defs": chain({"allOf": [{"$ref": "NEXT"}] * 2}, 40)}, None),
}


@pytest.mark.parametrize(("schema", "document"), ENDLESS.values(), ids=ENDLESS)
def test_what_was_ended_is_refused(schema: JsonObject, document: JsonObject | None) -> None:
    """A schema or a document that cannot be checked in time is not accepted."""
    assert "takes too long" in SCHEMA_WORKER.find_fault(schema, document)


def test_a_process_that_has_ended_is_started_again() -> None:
    """Whoever ends it, the next document is checked."""
    fault({}, PROFILE)
    assert SCHEMA_WORKER.process is not None
    SCHEMA_WORKER.process.kill()
    SCHEMA_WORKER.process.wait()
    assert "lacks `name`" in fault({}, PROFILE)


def test_a_process_stays_when_the_service_is_told_to_stop() -> None:
    """What is checked meanwhile is not refused for it: the process ends with the service."""
    fault({}, PROFILE)
    process = SCHEMA_WORKER.process
    assert process is not None
    process.send_signal(signal.SIGINT)
    process.send_signal(signal.SIGTERM)
    assert "lacks `name`" in fault({}, PROFILE)
    assert process is SCHEMA_WORKER.process


@pytest.mark.parametrize("program", ["/nowhere/python", "/bin/false", "/usr/bin/false"])
async def test_without_its_process_nothing_is_refused_for_good(monkeypatch: pytest.MonkeyPatch, program: str) -> None:
    """Where the process cannot be started the caller may try again, and it is started as soon as it can be."""
    worker = SchemaWorker()
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", program)
        with pytest.raises(StoreUnavailable, match="No JSON Schema can be checked at the moment"):
            await worker.check(PROFILE)
    await worker.check(PROFILE)
    worker.end()
    worker.thread.shutdown()


@pytest.mark.parametrize(("schema", "document"), QUICK.values(), ids=QUICK)
def test_what_is_slow_elsewhere_is_quick_here(schema: JsonObject, document: JsonObject) -> None:
    """Patterns, comparisons and errors take time that grows with the document, and come to an end."""
    began = time.thread_time()
    assert "breaks its schema" in fault(document, schema)
    assert time.thread_time() - began < 2


@every_row(
    ("document", "schema", "sentence"),
    [
        (
            {"a": 1},
            {"additionalProperties": False},
            "At `$.a` the document breaks its schema: `additionalProperties` is",
        ),
        (
            {"a": 1},
            {"unevaluatedProperties": False},
            "At `$.a` the document breaks its schema: `unevaluatedProperties`",
        ),
        ({"a": 1}, {"dependentRequired": {"a": ["b"]}}, "At `$` the document breaks its schema: it lacks `b`."),
        ({"secret": 1}, {"propertyNames": {"maxLength": 1}}, "At `$` the document breaks its schema: `propertyNames`."),
        (
            {"additionalProperties": 1},
            {"properties": {"additionalProperties": False}},
            "At `$.additionalProperties` the document breaks its schema: it may not be there.",
        ),
        (
            {"l": [{"a": n} for n in range(5000)]},
            {"anyOf": [{"type": "string"}] * 500},
            "The document breaks its schema, and both are too large to say where.",
        ),
    ],
)
def test_the_sentence_names_the_place(document: JsonObject, schema: JsonObject, sentence: str) -> None:
    """Properties that may not be there are named; the branches of a choice are not."""
    assert fault(document, schema).startswith(sentence)


def test_nothing_is_fetched() -> None:
    """A reference to elsewhere opens no connection."""
    with socket.create_server(("127.0.0.1", 0)) as server:
        server.settimeout(0.2)
        assert "nothing is fetched" in fault({}, {"$ref": f"http://127.0.0.1:{server.getsockname()[1]}/schema"})
        with pytest.raises(TimeoutError):
            server.accept()
