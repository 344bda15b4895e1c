"""JSON Schemas (draft 2020-12) for documents: checks of schemas, and validation of documents.

The validator is `jsonschema_rs`. Nothing is fetched for a schema. The validator holds the GIL from start to end and has
no deadline, so all but `check_schema` runs in a process of its own (`sessions/schema_worker`).
No sentence quotes a value of a document: only the path of a validator's error and the schema's own values are used,
because its message and its instance quote the document.
"""

import json
import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any

import jsonschema_rs
import msgspec
from jsonschema_rs import Draft202012Validator, RegexOptions, ValidationError, ValidationErrorKind

from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

DIALECT = "https://json-schema.org/draft/2020-12/schema"
MAX_REFERENCES = 256
MAX_PATTERNS = 64
"""The most uses of patterns; the validator compiles each one again."""
MAX_PATTERN_LENGTH, MAX_ALL_PATTERNS_LENGTH = 1_000, 8_000
"""The characters of one pattern, and of all together."""
MAX_NAME_CHARACTERS, MAX_BOUND_CHARACTERS = 64, 200
"""How much of a name, or of a schema's value, an error quotes."""
MAPS = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose value maps names to schemas."""
DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose value is not a schema."""
BOUNDS = frozenset(
    {"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength", "minLength", "maxItems"}
    | {"minItems", "maxProperties", "minProperties", "enum", "const", "pattern"}
)
"""Keywords that are quoted with their values, to show what would have been right."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
BREAKS = "The document breaks its schema, and both are too large to say where."
TOO_SLOW = "The document cannot be checked against its schema: it takes too long."


def invalid_schema(why: str) -> Refused:
    return Refused("invalid_field", f"The `schema` is not a JSON Schema that can be used: {why}.")


def check_schema(schema: JsonObject) -> None:
    """Check that this is a schema of a JSON object, within the limits. Raises `Refused` (`invalid_field`).

    The check is quick. Whether the validator can use the schema is known only once it has compiled it.
    """
    try:
        jsonschema_rs.meta.validate({**schema, "$schema": DIALECT})
    except ValidationError as error:
        raise invalid_schema(f"a keyword has a value that it cannot have, at `{schema_path(error)}`") from None
    if str(schema.get("$schema", DIALECT)).removesuffix("#") != DIALECT:
        raise invalid_schema("its `$schema` must be that of draft 2020-12")
    if schema.get("type", "object") != "object" and "object" not in list(schema["type"]):
        raise invalid_schema("a document is an object, so its `type` must allow one")
    patterns: list[str] = []
    references = 0
    waiting: list[Any] = [{name: value for name, value in schema.items() if name not in ("$schema", "$id")}]
    while waiting:
        value = waiting.pop()
        if isinstance(value, list):
            waiting += value
        elif isinstance(value, dict):
            if isinstance(value.get("$schema"), str) or isinstance(value.get("$id"), str):
                raise invalid_schema("only its top level may have a `$schema` or an `$id`")
            references += isinstance(value.get("$ref"), str)
            patterns += [value["pattern"]] if isinstance(value.get("pattern"), str) else []
            patterns += value["patternProperties"] if isinstance(value.get("patternProperties"), dict) else ()
            waiting += (inner for keyword, inner in value.items() if keyword not in DATA)
    if references > MAX_REFERENCES:
        raise invalid_schema(f"it may have at most {MAX_REFERENCES} references")
    if len(patterns) > MAX_PATTERNS:
        raise invalid_schema(f"it may have at most {MAX_PATTERNS} patterns")
    if any(len(pattern) > MAX_PATTERN_LENGTH for pattern in patterns):
        raise invalid_schema(f"a pattern may have at most {MAX_PATTERN_LENGTH} characters")
    if sum(map(len, patterns)) > MAX_ALL_PATTERNS_LENGTH:
        raise invalid_schema(f"its patterns may have at most {MAX_ALL_PATTERNS_LENGTH} characters together")


@lru_cache(maxsize=8)  # patterns may take 4 MiB of each
def compile_schema(text: bytes) -> Draft202012Validator | str:
    """Return the validator of a schema in JSON, or the sentence that refuses it."""
    # Without `$id`, so that references start at the top.
    schema = {name: value for name, value in msgspec.json.decode(text).items() if name not in ("$schema", "$id")}
    options = RegexOptions(size_limit=512 * 1024, dfa_size_limit=64 * 1024)
    try:
        return Draft202012Validator(schema, offline=True, validate_formats=False, pattern_options=options)
    except ValidationError as error:
        if isinstance(error.kind, ValidationErrorKind.Referencing):
            why = "it refers to something that is not in it, and nothing is fetched"
        elif isinstance(error.kind, ValidationErrorKind.Format):
            why = f"a pattern is malformed, too large or not supported, at `{schema_path(error)}`"
        else:
            why = f"a keyword has a value that it cannot have, at `{schema_path(error)}`"
        return invalid_schema(why).detail


def validation_errors(schema: bytes, document: JsonObject | None) -> Iterator[str]:
    """Yield sentences about the error of a document or of its schema, the best one last; "" if it is valid.

    It may crash with `MemoryError` or worse, and may take any time.
    """
    validator = compile_schema(schema)
    if isinstance(validator, str):
        yield validator
    elif document is None:
        validator.is_valid({})  # an endless schema is detected before any document comes
        yield ""
    elif validator.is_valid(document):
        yield ""
    else:
        # If the next lines run out of memory: an error of `anyOf` has a copy of the value for each branch.
        yield BREAKS
        try:
            validator.validate(document)
        except ValidationError as error:
            path, fault = describe_fault(error, document)
            yield f"At `{path}` the document breaks its schema: {fault}."


def schema_path(error: ValidationError) -> str:
    """Return the path of an error in a schema, without names that its author chose."""
    path, is_name = ["$"], False
    for step in error.instance_path:
        path.append("[…]" if is_name or isinstance(step, int) else f".{step}")
        is_name = not is_name and step in MAPS
    return "".join(path)


def describe_fault(error: ValidationError, document: JsonObject) -> tuple[str, str]:
    """Return the path of an error in the document, and the rule that it breaks, without the document's values."""
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
            value: Any = document
            for step in path:
                value = value[step]
            if ends_with_additional_properties(error.schema_path) and isinstance(value, dict) and value:
                path.append(next(iter(value)))
                fault = "`additionalProperties` is false: it may not be there"
        case _ if kind.name in BOUNDS:
            fault = f"`{kind.name}` {shortened(kind.value)}"
    return "$" + "".join(map(path_step, path)), fault


def ends_with_additional_properties(path: list[str | int]) -> bool:
    """Return whether a path in a schema ends at the keyword, not at a property with that name.

    For the keyword without `properties` the validator reports the object, and does not name the property.
    """
    is_name = False
    for step in path[:-1]:
        is_name = not is_name and step in MAPS
    return not is_name and path[-1:] == ["additionalProperties"]


def path_step(step: str | int) -> str:
    """Return a step of a path: a plain name after a dot, any other as JSON."""
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if PLAIN_NAME.match(step) else f"[{quoted(step)}]"


def quoted(name: str) -> str:
    """Return a name as JSON, shortened if it is long."""
    short = name if len(name) <= MAX_NAME_CHARACTERS else name[:MAX_NAME_CHARACTERS] + "…"
    return json.dumps(short, ensure_ascii=False)


def shortened(bound: Any) -> str:
    """Return a schema's value as JSON, shortened if it is long."""
    text = json.dumps(bound, ensure_ascii=False)
    return text if len(text) <= MAX_BOUND_CHARACTERS else text[:MAX_BOUND_CHARACTERS] + "…"
