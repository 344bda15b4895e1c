"""JSON Schemas (2020-12) of the types that decode and encode, as components of an OpenAPI document."""

from __future__ import annotations

from collections.abc import Mapping
from types import UnionType
from typing import Any, get_args

import msgspec
from msgspec import Struct

from voicemem.config.session import SessionConfig, SystemMessage
from voicemem.protocol.checks import RestoredMetadata
from voicemem.protocol.events import JournaledEvent, ProducedEvent
from voicemem.protocol.types import JsonObject
from voicemem.server.http.routes import MergePatch

COMPONENTS = "#/components/schemas/"


def reference(name: str) -> JsonObject:
    """Return a reference to a component; for `Meta.extra_json_schema` too, of types that msgspec cannot look into."""
    return {"$ref": COMPONENTS + name}


class Metadata(RestoredMetadata, frozen=True):
    """What voicemem itself says about a message; any other key is the producer's."""


NAMED_UNIONS = {"ProducedEvent": ProducedEvent, "JournaledEvent": JournaledEvent}
REFERRED_TO = (Metadata, SystemMessage, SessionConfig)
REFINEMENTS: dict[tuple[str, str], JsonObject] = {
    ("Message", "metadata"): reference("Metadata"),
    ("LlmConfig", "system_messages"): {"items": reference("SystemMessage")},
    ("LlmConfig", "api_key"): {"writeOnly": True},
    ("WebhookConfig", "secret"): {"writeOnly": True},
    ("LlmConfig", "headers"): {"writeOnly": True},
}
"""More about fields than their types say, since their content is passed on as it came, or never shown."""


class Schemas:
    """Makes schemas of types, and collects the components; a struct becomes one under its own name."""

    def __init__(self, unions: Mapping[str, Any] = NAMED_UNIONS) -> None:
        self.components: JsonObject = {}
        for name, union in unions.items():
            self.components[name] = self.register(union)
        for kind in REFERRED_TO:
            self.register(kind)

    def of(self, kind: Any) -> JsonObject:
        """Return the schema of a type, a union of structs, or a `MergePatch`; by reference if it has a name."""
        if isinstance(kind, MergePatch):
            return self.patch(kind.of)
        if isinstance(kind, UnionType) and all(is_untagged(member) for member in get_args(kind)):
            return {"anyOf": [self.register(member) for member in get_args(kind)]}
        return self.register(kind)

    def inline(self, kind: type[Struct]) -> JsonObject:
        """Return the schema of a struct without making it a component."""
        _, components = components_of(kind)
        schema: JsonObject = components[kind.__name__]
        return schema

    def register(self, kind: Any) -> JsonObject:
        """Return the schema of a type; the components that it needs are added."""
        schema, components = components_of(kind)
        self.components |= {name: with_optional_fields(component) for name, component in components.items()}
        return schema

    def patch(self, kind: type[Struct]) -> JsonObject:
        """Return the schema of a merge patch; the structs in it become patches too."""
        _, components = components_of(kind)
        names = {COMPONENTS + name for name in components}
        self.components |= {f"{name}Patch": patched(schema, names) for name, schema in components.items()}
        return reference(f"{kind.__name__}Patch")


def is_untagged(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct) and kind.__struct_config__.tag is None


def components_of(kind: Any) -> tuple[JsonObject, dict[str, JsonObject]]:
    """Return the schema of a type, and the components that it refers to."""
    (schema,), components = msgspec.json.schema_components([kind], ref_template=COMPONENTS + "{name}")
    for (name, field), closer in REFINEMENTS.items():
        if name in components:
            components[name]["properties"][field] |= closer
    return portable(schema), {name: portable(component) for name, component in components.items()}


def portable(schema: Any) -> Any:
    """Make a schema readable for every tool: `$` for Python's `\\Z`, and `items` for every array."""
    match schema:
        case list():
            return [portable(item) for item in schema]
        case dict():
            filled: JsonObject = {"items": {}} if schema.get("type") == "array" and "prefixItems" not in schema else {}
            return filled | {key: portable(value) for key, value in schema.items()}
        case str():
            return schema.removesuffix(r"\Z") + "$" if schema.endswith(r"\Z") else schema
    return schema


def with_optional_fields(component: JsonObject) -> JsonObject:
    """Say the defaults of fields in words: for generators of TypeScript a field with a `default` is a required one.

    A default of null says nothing more than that the field may be left out.
    """
    if "properties" not in component:
        return component
    return component | {"properties": {name: in_words(value) for name, value in component["properties"].items()}}


def in_words(field: JsonObject) -> JsonObject:
    described = {key: value for key, value in field.items() if key != "default"}
    default = field.get("default")
    if default in (None, [], {}) or "$ref" in field:
        return described
    return {"description": f"Default: {msgspec.json.encode(default).decode()}."} | described


def patched(schema: JsonObject, names: set[str]) -> JsonObject:
    """Turn the schema of a struct into that of a patch; `names` are references to structs that become patches too."""
    properties = {name: nullable(value, names) for name, value in schema["properties"].items()}
    return schema | {"title": f"{schema['title']}Patch", "properties": properties}


def nullable(value: JsonObject, names: set[str]) -> JsonObject:
    """Turn the schema of a field into that of a patch: null removes the field, and there is no default."""
    value = {key: item for key, item in value.items() if key != "default"}
    if value.get("$ref") in names:
        value["$ref"] += "Patch"
    inner = value.get("additionalProperties")
    if isinstance(inner, dict):
        value["additionalProperties"] = nullable(inner, names)
    return value if {"type": "null"} in value.get("anyOf", ()) else {"anyOf": [value, {"type": "null"}]}


def without_null(value: JsonObject) -> JsonObject:
    """Turn the schema of a field into that of a query parameter, which is left out instead of null."""
    value = {key: item for key, item in value.items() if key != "default" or item is not None}
    choices: list[JsonObject] = [choice for choice in value.pop("anyOf", ()) if choice != {"type": "null"}]
    if len(choices) == 1:
        return choices[0] | value
    return value | {"anyOf": choices} if choices else value
