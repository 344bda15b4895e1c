"""JSON documents held to their JSON Schemas by the library `jsonschema`, within bounds.

A schema may come from anybody: nothing is fetched for it, and what takes too long is given up.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterator
from contextvars import ContextVar
from typing import Any

from jsonschema import Draft202012Validator
from jsonschema.exceptions import ValidationError
from jsonschema.validators import extend
from referencing import Registry

from voicemem.documents.document import equality_key
from voicemem.documents.json_schema import check_schema, compile_pattern, strip_identifiers
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject

MAX_CPU_S = 0.5
"""Of the processor's time, for one document."""
MAX_NAME_CHARACTERS, MAX_BOUND_CHARACTERS = 64, 200
"""Characters of them that are told."""
BOUNDS = frozenset(
    [
        "maximum",
        "minimum",
        "exclusiveMaximum",
        "exclusiveMinimum",
        "multipleOf",
        "maxLength",
        "minLength",
        "maxItems",
        "minItems",
        "maxProperties",
        "minProperties",
        "maxContains",
        "minContains",
        "enum",
        "const",
        "pattern",
    ]
)
"""Keywords that say by themselves what may be."""
PLAIN_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_-]{0,63}\Z")
DEADLINE: ContextVar[float] = ContextVar("until")
"""When the validation that is under way is given up, by the processor time of its thread."""
Faults = Iterator[ValidationError]
Keyword = Callable[[Any, Any, Any, Any], Faults | None]


class ValidationTimeout(Exception):
    """A validation has taken too long."""


def with_deadline(keyword: Keyword) -> Keyword:
    """The same keyword, which is not looked at any more when the time is over."""

    def check(validator: Any, value: Any, instance: Any, schema: Any) -> Faults:
        if time.thread_time() > DEADLINE.get():
            raise ValidationTimeout
        yield from keyword(validator, value, instance, schema) or ()

    return check


# Keywords whose own versions search in time without bounds, or compare everything with everything


def pattern_keyword(_: Any, pattern: str, instance: Any, __: Any) -> Faults:
    if isinstance(instance, str) and not compile_pattern(pattern).search(instance):
        yield ValidationError("does not match")


def pattern_properties(validator: Any, patterns: JsonObject, instance: Any, _: Any) -> Faults:
    if isinstance(instance, dict):
        for pattern, schema in patterns.items():
            for name, value in instance.items():
                if compile_pattern(pattern).search(name):
                    yield from validator.descend(value, schema, path=name, schema_path=pattern)


def additional_properties(validator: Any, wanted: Any, instance: Any, schema: JsonObject) -> Faults:
    if isinstance(instance, dict):
        known, patterns = schema.get("properties", {}), schema.get("patternProperties", {})
        for name, value in instance.items():
            if name in known or any(compile_pattern(pattern).search(name) for pattern in patterns):
                continue
            if wanted is False:
                yield ValidationError("is not allowed", path=(name,))
            else:
                yield from validator.descend(value, wanted, path=name)


def unique_items(_: Any, wanted: bool, instance: Any, __: Any) -> Faults:
    if wanted and isinstance(instance, list) and len(set(map(equality_key, instance))) < len(instance):
        yield ValidationError("has equal items")


def enum(_: Any, values: list[Any], instance: Any, __: Any) -> Faults:
    if equality_key(instance) not in set(map(equality_key, values)):
        yield ValidationError("is none of the values")


def const(_: Any, value: Any, instance: Any, __: Any) -> Faults:
    if equality_key(instance) != equality_key(value):
        yield ValidationError("is not the value")


OVERRIDES: dict[str, Keyword] = {
    "pattern": pattern_keyword,
    "patternProperties": pattern_properties,
    "additionalProperties": additional_properties,
    "uniqueItems": unique_items,
    "enum": enum,
    "const": const,
}
KEYWORDS = {**Draft202012Validator.VALIDATORS, **OVERRIDES}
DocumentValidator: Any = extend(  # type: ignore[no-untyped-call]
    Draft202012Validator, {name: with_deadline(keyword) for name, keyword in KEYWORDS.items()}
)


def check_document(document: JsonObject, schema: JsonObject) -> None:
    """Refuse a document that breaks its schema, or a schema that is none. Raises `Refused` (`invalid_field`)."""
    check_schema(schema)  # patches of a configuration may have made another of it
    began = DEADLINE.set(time.thread_time() + MAX_CPU_S)
    try:
        validator = DocumentValidator(strip_identifiers(schema), registry=Registry())
        fault = next(validator.iter_errors(document), None)
    except (ValidationTimeout, RecursionError):
        raise Refused("invalid_field", "The document cannot be held to its schema: it takes too long.") from None
    finally:
        DEADLINE.reset(began)
    if fault is not None:
        raise Refused(
            "invalid_field", f"At `{fault_path(fault)}` the document breaks its schema: {describe_fault(fault)}."
        )


def fault_path(fault: ValidationError) -> str:
    """Where it is in the document: plain names after a dot, others as JSON; its values are not told."""
    return "$" + "".join(map(path_step, fault.absolute_path))


def path_step(step: str | int) -> str:
    if isinstance(step, int):
        return f"[{step}]"
    return f".{step}" if PLAIN_NAME.match(step) else f"[{quoted(step)}]"


def quoted(name: str) -> str:
    """A name as JSON, of a long one the beginning."""
    return json.dumps(
        name if len(name) <= MAX_NAME_CHARACTERS else name[:MAX_NAME_CHARACTERS] + "…", ensure_ascii=False
    )


def shown_name(name: Any) -> str:
    return name if isinstance(name, str) and PLAIN_NAME.match(name) else quoted(str(name))


def describe_fault(fault: ValidationError) -> str:
    """What of the schema is broken, without anything of the document."""
    keyword: Any = fault.validator
    value: Any = fault.validator_value
    document: Any = fault.instance
    match keyword:
        case "type":
            return f"it is not of the type {' or '.join([value] if isinstance(value, str) else value)}"
        case "required":
            missing = [name for name in value if name not in document]
            return f"it lacks {', '.join(f'`{shown_name(name)}`' for name in missing)}"
        case None:
            return "it may not be there"
        case "additionalProperties" if value is False:
            return "`additionalProperties` is false: it may not be there"
    return f"`{keyword}` {bound_of(value)}" if keyword in BOUNDS else f"`{keyword}`"


def bound_of(value: Any) -> str:
    """What the schema says, which is its author's; of a long one the beginning."""
    text = json.dumps(value, ensure_ascii=False)
    return text if len(text) <= MAX_BOUND_CHARACTERS else text[:MAX_BOUND_CHARACTERS] + "…"
