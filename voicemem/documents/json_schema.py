"""What is a JSON Schema (draft 2020-12) that documents can be held to: decided by types, in no time.

Beside the rules of the draft: nothing outside of the schema is referred to, and patterns are those of RE2, which
searches any text in time that grows with its length (https://github.com/google/re2/wiki/Syntax).
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from typing import Annotated, Any, Literal

import msgspec
import re2
from msgspec import UNSET, Meta, Struct, UnsetType, field
from referencing import Registry
from referencing.exceptions import NoSuchResource, Unresolvable
from referencing.jsonschema import DRAFT202012

from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_PATTERN_LENGTH = 1_000
"""Characters of a pattern."""
MAX_PATTERNS = 64
MAX_PATTERN_BYTES = 256 * 1024
"""Memory that one compiled pattern may take."""

TypeName = Literal["null", "boolean", "object", "array", "number", "integer", "string"]
Count = Annotated[int, Meta(ge=0)] | UnsetType
Number = float | UnsetType
Names = list[str] | UnsetType
Text = str | UnsetType


class Schema(Struct, frozen=True):
    """The keywords of the draft, each with what it can be; there may be others, which say nothing to a validator."""

    schema: Text = field(default=UNSET, name="$schema")
    id: Text = field(default=UNSET, name="$id")
    anchor: Text = field(default=UNSET, name="$anchor")
    dynamic_anchor: Text = field(default=UNSET, name="$dynamicAnchor")
    ref: Text = field(default=UNSET, name="$ref")
    dynamic_ref: Text = field(default=UNSET, name="$dynamicRef")
    defs: dict[str, bool | Schema] | UnsetType = field(default=UNSET, name="$defs")
    definitions: dict[str, bool | Schema] | UnsetType = UNSET
    type: TypeName | Annotated[list[TypeName], Meta(min_length=1)] | UnsetType = UNSET
    enum: list[Any] | UnsetType = UNSET
    multiple: Annotated[float, Meta(gt=0)] | UnsetType = field(default=UNSET, name="multipleOf")
    maximum: Number = UNSET
    exclusive_maximum: Number = field(default=UNSET, name="exclusiveMaximum")
    minimum: Number = UNSET
    exclusive_minimum: Number = field(default=UNSET, name="exclusiveMinimum")
    max_length: Count = field(default=UNSET, name="maxLength")
    min_length: Count = field(default=UNSET, name="minLength")
    pattern: Text = UNSET
    max_items: Count = field(default=UNSET, name="maxItems")
    min_items: Count = field(default=UNSET, name="minItems")
    unique_items: bool | UnsetType = field(default=UNSET, name="uniqueItems")
    max_contains: Count = field(default=UNSET, name="maxContains")
    min_contains: Count = field(default=UNSET, name="minContains")
    max_properties: Count = field(default=UNSET, name="maxProperties")
    min_properties: Count = field(default=UNSET, name="minProperties")
    required: Names = UNSET
    dependent_required: dict[str, list[str]] | UnsetType = field(default=UNSET, name="dependentRequired")
    all_of: SchemaList | UnsetType = field(default=UNSET, name="allOf")
    any_of: SchemaList | UnsetType = field(default=UNSET, name="anyOf")
    one_of: SchemaList | UnsetType = field(default=UNSET, name="oneOf")
    not_: bool | Schema | UnsetType = field(default=UNSET, name="not")
    if_: bool | Schema | UnsetType = field(default=UNSET, name="if")
    then: bool | Schema | UnsetType = UNSET
    else_: bool | Schema | UnsetType = field(default=UNSET, name="else")
    dependent_schemas: dict[str, bool | Schema] | UnsetType = field(default=UNSET, name="dependentSchemas")
    prefix_items: SchemaList | UnsetType = field(default=UNSET, name="prefixItems")
    items: bool | Schema | UnsetType = UNSET
    contains: bool | Schema | UnsetType = UNSET
    properties: dict[str, bool | Schema] | UnsetType = UNSET
    pattern_properties: dict[str, bool | Schema] | UnsetType = field(default=UNSET, name="patternProperties")
    additional_properties: bool | Schema | UnsetType = field(default=UNSET, name="additionalProperties")
    property_names: bool | Schema | UnsetType = field(default=UNSET, name="propertyNames")
    unevaluated_items: bool | Schema | UnsetType = field(default=UNSET, name="unevaluatedItems")
    unevaluated_properties: bool | Schema | UnsetType = field(default=UNSET, name="unevaluatedProperties")
    format: Text = UNSET
    title: Text = UNSET
    description: Text = UNSET


SchemaList = Annotated[list[bool | Schema], Meta(min_length=1)]


def check_schema(given: JsonObject) -> None:
    """Refuse what is no schema of a JSON object, or none that is taken. Raises `Refused` (`invalid_field`)."""
    root = parse_schema(given)
    if root.schema is not UNSET and str(root.schema).removesuffix("#") != DIALECT:
        raise invalid_schema("its `$schema` is not that of draft 2020-12")
    if root.type is not UNSET and "object" not in ([root.type] if isinstance(root.type, str) else root.type):
        raise invalid_schema("a document is an object, its `type` is not")
    nodes = list(all_nodes(given, root))
    if any(node is not root and (node.schema, node.id) != (UNSET, UNSET) for node in nodes):
        raise invalid_schema("there is a `$schema` or an `$id` inside of it")
    if any(len(set(names)) < len(names) for node in nodes for names in unique_lists(node)):
        raise invalid_schema("a name stands twice where each stands once")
    patterns = {pattern for node in nodes for pattern in patterns_of(node)}
    if len(patterns) > MAX_PATTERNS:
        raise invalid_schema(f"it has more than {MAX_PATTERNS} patterns")
    for pattern in patterns:
        compile_pattern(pattern)
    if any(node.pattern_properties and node.unevaluated_properties is not UNSET for node in nodes):
        raise invalid_schema("`patternProperties` and `unevaluatedProperties` do not go together here")


def invalid_schema(why: str) -> Refused:
    return Refused("invalid_field", f"The `schema` is no JSON Schema that can be used: {why}.")


def parse_schema(given: Any) -> Schema:
    """Raises `Refused`."""
    try:
        return msgspec.convert(given, Schema)
    except msgspec.ValidationError as error:
        _, at, path = str(error).rpartition(" - at `$")  # names of the sender's are not in it
        where = f" at `${path}" if at else ""
        raise invalid_schema(f"a keyword has a value that it cannot have{where}") from None


def all_nodes(given: JsonObject, root: Schema) -> Iterator[Schema]:
    """Every schema in a schema, and those that are referred to elsewhere in it."""
    resolver = Registry().with_resource("", DRAFT202012.create_resource(strip_identifiers(given))).resolver("")
    seen: set[str] = set()
    waiting = [root]
    while waiting:
        for node in nodes_in(waiting.pop()):
            yield node
            for ref in (node.ref, node.dynamic_ref):
                if isinstance(ref, str) and ref not in seen:
                    seen.add(ref)
                    waiting += resolve_reference(resolver, ref)


def resolve_reference(resolver: Any, ref: str) -> list[Schema]:
    """What a reference leads to. Raises `Refused`."""
    if not ref.startswith("#"):
        raise invalid_schema("it refers to something outside of itself, and nothing is fetched")
    try:
        found = resolver.lookup(ref).contents
    except (Unresolvable, NoSuchResource, ValueError, TypeError):
        raise invalid_schema("it refers to something that is not in it") from None
    return [] if isinstance(found, bool) else [parse_schema(found)]


def strip_identifiers(given: JsonObject) -> JsonObject:
    """A schema without what it calls itself, so that a validator takes its references from the top."""
    return {name: value for name, value in given.items() if name not in ("$schema", "$id")}


def nodes_in(schema: Schema) -> Iterator[Schema]:
    yield schema
    for name in schema.__struct_fields__:
        value = getattr(schema, name)
        for one in value.values() if isinstance(value, dict) else value if isinstance(value, list) else (value,):
            if isinstance(one, Schema):
                yield from nodes_in(one)


def unique_lists(schema: Schema) -> Iterator[list[Any]]:
    """Lists in which nothing may stand twice."""
    for names in (schema.type, schema.required):
        if isinstance(names, list):
            yield names
    if isinstance(schema.dependent_required, dict):
        yield from schema.dependent_required.values()


def patterns_of(schema: Schema) -> Iterator[str]:
    if isinstance(schema.pattern, str):
        yield schema.pattern
    if isinstance(schema.pattern_properties, dict):
        yield from schema.pattern_properties


@lru_cache(maxsize=1024)
def compile_pattern(pattern: str) -> Any:
    """Raises `Refused`."""
    options = re2.Options()
    options.log_errors = False
    options.max_mem = MAX_PATTERN_BYTES
    if len(pattern) <= MAX_PATTERN_LENGTH:
        try:
            return re2.compile(pattern, options)
        except re2.error:
            pass
    raise invalid_schema("a pattern is not one of RE2, or too large")
