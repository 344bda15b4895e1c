"""JSON Schemas (draft 2020-12) for documents: which can be used, and whether a document fits one.

The validator is `jsonschema_rs`. Nothing is fetched for a schema. The validator holds the interpreter's lock from start
to end and has no deadline, so all but `check_schema` runs in a process of its own (`sessions/schema_worker`).
No sentence holds a value of a document: from an error of the validator only its path, and what the schema says, may be
used; its message and its instance quote the document.
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
"""Places with a pattern: the validator compiles it again at each of them."""
MAX_PATTERN_LENGTH, MAX_ALL_PATTERNS_LENGTH = 1_000, 8_000
"""Characters of one pattern, and of all together."""
MAX_NAME_CHARACTERS, MAX_BOUND_CHARACTERS = 64, 200
"""How much of a name or of a bound an error quotes."""
MAPS = frozenset({"$defs", "definitions", "properties", "patternProperties", "dependentSchemas", "dependencies"})
"""Keywords whose value holds a schema for each name."""
DATA = frozenset({"enum", "const", "default", "examples"})
"""Keywords whose value is not a schema."""
BOUNDS = frozenset(
    {"maximum", "minimum", "exclusiveMaximum", "exclusiveMinimum", "multipleOf", "maxLength", "minLength", "maxItems"}
    | {"minItems", "maxProperties", "minProperties", "enum", "const", "pattern"}
)
"""Keywords that are quoted with their values, which then say what would have been right."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
BREAKS = "The document breaks its schema, and both are too large to say where."
TOO_SLOW = "The document cannot be checked against its schema: it takes too long."


def invalid_schema(why: str) -> Refused:
    return Refused("invalid_field", f"The `schema` is not a JSON Schema that can be used: {why}.")


def check_schema(schema: JsonObject) -> None:
    """Refuse what is not a schema of a JSON object, or has too much in it. Raises `Refused` (`invalid_field`).

    It takes little time. Whether the validator can use the schema is known only when that has compiled it.
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
    """The validator of a schema, given as JSON; or the sentence with which it is refused."""
    # Without its own name, which nothing needs: references start at the top.
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
    """Yield the faults of a document, or of its schema, as sentences, the last one the best; "" where all is well.

    Raises `MemoryError` and worse things, and may take any time.
    """
    validator = compile_schema(schema)
    if isinstance(validator, str):
        yield validator
    elif document is None:
        validator.is_valid({})  # what is endless in itself is seen before any document comes
        yield ""
    elif validator.is_valid(document):
        yield ""
    else:
        # An error of `anyOf` holds an error of each of its branches, each with a copy of the value at its place.
        yield BREAKS
        try:
            validator.validate(document)
        except ValidationError as error:
            path, fault = describe_fault(error, document)
            yield f"At `{path}` the document breaks its schema: {fault}."


def schema_path(error: ValidationError) -> str:
    """Return the path of an error in a schema; names that its author chose are left out."""
    path, is_name = ["$"], False
    for step in error.instance_path:
        path.append("[…]" if is_name or isinstance(step, int) else f".{step}")
        is_name = not is_name and step in MAPS
    return "".join(path)


def describe_fault(error: ValidationError, document: JsonObject) -> tuple[str, str]:
    """Return the place of a fault in the document, and what of the schema it breaks; without the document's values."""
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
    """Return whether a path in a schema ends at the keyword, not at a property of that name.

    The validator reports it at the object when it stands without `properties`, and does not name the property.
    """
    is_name = False
    for step in path[:-1]:
        is_name = not is_name and step in MAPS
    return not is_name and path[-1:] == ["additionalProperties"]


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
    """Return what the schema says, as JSON; of a long text the beginning."""
    text = json.dumps(bound, ensure_ascii=False)
    return text if len(text) <= MAX_BOUND_CHARACTERS else text[:MAX_BOUND_CHARACTERS] + "…"
