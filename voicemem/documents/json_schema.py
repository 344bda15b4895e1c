"""JSON Schemas (draft 2020-12) for documents: which can be used, and whether a document fits one.

The validator is `jsonschema_rs`. Nothing is fetched for a schema, and its work is bounded before it begins
(`schema_cost`). No sentence holds a value of a document: from an error of the validator only its path, and what the
schema says, may be used; its message and its instance quote the document.
"""

from __future__ import annotations

import json
import re
from functools import lru_cache
from typing import Any, NamedTuple

import jsonschema_rs
import msgspec
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError, ValidationErrorKind

from voicemem.documents.schema_cost import MAPS, MAX_SCHEMAS, MAX_STEPS, Cost, SchemaGraph, TooManySchemas, sizes
from voicemem.documents.schema_patterns import bytes_of_each, fault_of_patterns
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_SCHEMA_BYTES = 64 * 1024
"""A longer one is refused before it is looked at."""
MAX_COPIES = 25_000
"""Values that the errors of one validation may copy: about 25 MB."""
MAX_NAME_CHARACTERS, MAX_BOUND_CHARACTERS = 64, 200
"""How much of a name or of a bound an error quotes."""
BOUNDS = frozenset(
    {"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength", "minLength", "maxItems"}
    | {"minItems", "maxProperties", "minProperties", "enum", "const", "pattern"}
)
"""Keywords that are quoted with their values, which then say what would have been right."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
NAMING_KEYWORDS = ("$anchor", "$dynamicAnchor")


class CompiledSchema(NamedTuple):
    """A schema ready for use, and what it costs at each depth of a document."""

    validator: Draft202012Validator
    costs: list[Cost]


def check_schema(schema: JsonObject) -> None:
    """Refuse what is not a schema of a JSON object, or cannot be used here. Raises `Refused` (`invalid_field`)."""
    compiled(schema)


def prepare_schema(schema: Any) -> None:
    """Compile what is given as a schema ahead of its check, which then costs little and says what is wrong."""
    text = msgspec.json.encode(schema) if isinstance(schema, dict) else b""
    if 0 < len(text) <= MAX_SCHEMA_BYTES:
        compile_schema(text)


def compiled(schema: JsonObject) -> CompiledSchema:
    """A schema ready for use. Raises `Refused`."""
    made = compile_schema(msgspec.json.encode(schema))
    if isinstance(made, Refused):
        raise Refused(made.code, made.detail)
    return made


def check_document(document: JsonObject, schema: JsonObject) -> None:
    """Refuse a document that breaks its schema, or an unusable schema. Raises `Refused` (`invalid_field`)."""
    # Compiled again, unless cached: patches of a configuration may have made another schema of it.
    validator, costs = compiled(schema)
    values = sizes(document)
    if len(values) > len(costs) and costs[-1].steps:
        raise too_slow()
    if sum(count * cost.steps for count, cost in zip(values, costs, strict=False)) > MAX_STEPS:
        raise too_slow()
    if validator.is_valid(document):
        return
    # An error of `anyOf` holds an error of each of its branches, each with a copy of the value at its place.
    copies = sum(cost.copies * sum(values[depth:]) for depth, cost in enumerate(costs[: len(values)]))
    if copies > MAX_COPIES:
        raise Refused("invalid_field", "The document breaks its schema, and both are too large to say where.")
    try:
        validator.validate(document)
    except ValidationError as error:
        path, fault = describe_fault(error, document)
        raise Refused("invalid_field", f"At `{path}` the document breaks its schema: {fault}.") from None


def invalid_schema(why: str) -> Refused:
    return Refused("invalid_field", f"The `schema` is not a JSON Schema that can be used: {why}.")


def too_slow() -> Refused:
    return Refused("invalid_field", "The document cannot be checked against its schema: it takes too long.")


@lru_cache(maxsize=8)  # patterns may take 4 MiB of each
def compile_schema(text: bytes) -> CompiledSchema | Refused:
    """The validator of a schema, given as JSON, and its costs; or why it is refused, which is found once as well."""
    try:
        return make_schema(text)
    except Refused as refused:
        return Refused(refused.code, refused.detail)


def make_schema(text: bytes) -> CompiledSchema:
    """The same. Raises `Refused`."""
    given: JsonObject = msgspec.json.decode(text)
    check_keywords(given)
    if str(given.get("$schema", DIALECT)).removesuffix("#") != DIALECT:
        raise invalid_schema("its `$schema` must be that of draft 2020-12")
    if given.get("type", "object") != "object" and "object" not in list(given["type"]):
        raise invalid_schema("a document is an object, so its `type` must allow one")
    # Without its own name, which nothing needs: references start at the top.
    schema = {name: value for name, value in given.items() if name not in ("$schema", "$id")}
    graph = build_graph(schema)
    if any("$schema" in node.schema or "$id" in node.schema for node in graph.nodes.values()):
        raise invalid_schema("only its top level may have a `$schema` or an `$id`")
    check_anchors(schema)
    patterns = graph.patterns()
    check_patterns(patterns)
    costs = graph.costs()
    if any(cost.steps == float("inf") for cost in costs):
        raise invalid_schema("it refers to itself without end, or applies too many schemas to one value")
    options = RegexOptions(size_limit=bytes_of_each(len(patterns)), dfa_size_limit=64 * 1024)
    try:
        validator = Draft202012Validator(schema, offline=True, validate_formats=False, pattern_options=options)
    except ValidationError as error:
        if isinstance(error.kind, ValidationErrorKind.Referencing):
            raise broken_reference() from None
        raise invalid_schema(f"a pattern is malformed, too large or not supported, at `{schema_path(error)}`") from None
    return CompiledSchema(validator, costs)


def check_keywords(schema: JsonObject) -> None:
    """Refuse what the draft's own schema for schemas does not allow. Raises `Refused`."""
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})
    except ValidationError as error:
        raise invalid_schema(f"a keyword has a value that it cannot have, at `{schema_path(error)}`") from None


def build_graph(schema: JsonObject) -> SchemaGraph:
    try:
        return SchemaGraph(schema, check_keywords)
    except LookupError:
        raise broken_reference() from None
    except TooManySchemas:
        raise invalid_schema(f"it may consist of at most {MAX_SCHEMAS:,} schemas") from None


def broken_reference() -> Refused:
    return invalid_schema("it refers to something that is not in it, and nothing is fetched")


def check_anchors(schema: JsonObject) -> None:
    """Refuse two anchors of one name: the validator might follow another than the one that the costs are of."""
    seen: set[str] = set()
    waiting: list[Any] = [schema]
    while waiting:
        value = waiting.pop()
        if isinstance(value, dict):
            names = [value[keyword] for keyword in NAMING_KEYWORDS if isinstance(value.get(keyword), str)]
            if len({*names}) < len(names) or not seen.isdisjoint(names):
                raise invalid_schema("two of its anchors have the same name")
            seen.update(names)
            waiting += value.values()
        elif isinstance(value, list):
            waiting += value


def check_patterns(patterns: list[str]) -> None:
    fault = fault_of_patterns(patterns)
    if fault is not None:
        raise invalid_schema(fault)


def schema_path(error: ValidationError) -> str:
    """Where the error is in a schema; names that its author chose are left out."""
    path, is_name = ["$"], False
    for step in error.instance_path:
        path.append("[…]" if is_name or isinstance(step, int) else f".{step}")
        is_name = not is_name and step in MAPS
    return "".join(path)


def describe_fault(error: ValidationError, document: JsonObject) -> tuple[str, str]:
    """Where the fault is in the document, and what of the schema it breaks; without any value of the document."""
    path, kind = [*error.instance_path], error.kind
    fault = f"`{kind.name}`"
    match kind:
        case ValidationErrorKind.Type(types):
            fault = f"it is not of the type {' or '.join(types)}"
        case ValidationErrorKind.Required(name):
            fault = f"it lacks `{name if PLAIN_NAME.match(name) else quoted(name)}`"
        case ValidationErrorKind.AdditionalProperties(names) | ValidationErrorKind.UnevaluatedProperties(names):
            path.append(names[0])
            fault = f"`{kind.name}` is false: it may not be there"
        case ValidationErrorKind.FalseSchema():
            fault = "it may not be there"
            value = value_at(document, path)
            if ends_with_additional_properties(error.schema_path) and isinstance(value, dict) and value:
                path.append(next(iter(value)))
                fault = "`additionalProperties` is false: it may not be there"
        case _ if kind.name in BOUNDS:
            fault = f"`{kind.name}` {shortened(kind.value)}"
    return "$" + "".join(map(path_step, path)), fault


def ends_with_additional_properties(path: list[str | int]) -> bool:
    """Whether a path in a schema ends at the keyword, not at a property of that name.

    The validator reports it at the object when it stands without `properties`, and does not name the property.
    """
    is_name = False
    for step in path[:-1]:
        is_name = not is_name and step in MAPS
    return not is_name and path[-1:] == ["additionalProperties"]


def value_at(document: Any, path: list[str | int]) -> Any:
    for step in path:
        document = document[step]
    return document


def path_step(step: str | int) -> str:
    """A step of a path: plain names after a dot, others as JSON."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if PLAIN_NAME.match(step) else f"[{quoted(step)}]"


def quoted(name: str) -> str:
    """A name as JSON; of a long one the beginning."""
    short = name if len(name) <= MAX_NAME_CHARACTERS else name[:MAX_NAME_CHARACTERS] + "…"
    return json.dumps(short, ensure_ascii=False)


def shortened(bound: Any) -> str:
    """What the schema says, as JSON; of a long text the beginning."""
    text = json.dumps(bound, ensure_ascii=False)
    return text if len(text) <= MAX_BOUND_CHARACTERS else text[:MAX_BOUND_CHARACTERS] + "…"
