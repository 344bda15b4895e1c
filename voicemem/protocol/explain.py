"""Errors of typed decoding as plain sentences that never quote the value that was sent."""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import lru_cache
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from voicemem.errors import CODES
from voicemem.protocol.events import IncomingEvent
from voicemem.protocol.types import PATTERN_SENTENCES


def describe_error(error: msgspec.ValidationError, *kinds: Any) -> str:
    """A validation error as a sentence. `kinds` are the types that were tried; they give the allowed values."""
    sentence, at, path = str(error).replace("- at `key` in `$", "- at `$").rpartition(" - at `$")
    if not at:
        sentence, path = path, ""
    sentence = reword(sentence)
    if sentence.startswith("Invalid"):  # "Invalid value …", "Invalid enum value …"
        values = allowed_values(kinds, path.strip("`.")) if path else ()
        allowed = f"must be one of {', '.join(map(str, values))}" if values else "is not one of the allowed values"
        sentence = f"The value {allowed}"
    return f"{sentence}: `{path.removeprefix('.')}" if path.strip("`") else sentence


@lru_cache(maxsize=256)
def allowed_values(kinds: tuple[Any, ...], path: str) -> tuple[str, ...]:
    """The allowed values of the field at a dotted path in the first struct that has such a choice; else empty."""
    name, _, rest = path.partition(".")
    for kind in kinds:
        fields = get_type_hints(kind) if isinstance(kind, type) and issubclass(kind, Struct) else {}
        members = tuple(member_types(fields.get(name.partition("[")[0])))
        found = (
            allowed_values(members, rest)
            if rest
            else next((get_args(member) for member in members if is_literal(member)), ())
        )
        if found:
            return found
    return ()


def member_types(kind: Any) -> Iterator[Any]:
    """A type and the types in it: the members of a union, the values of an array or object."""
    yield kind
    for part in () if is_literal(kind) else get_args(kind):
        yield from member_types(part)


def is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


TYPE_MISMATCH = re.compile(r"Expected `(int \| float|int|float|bool)(?: \| null)?`(?:, got `\w+`)?")
TYPE_WORDS = {"int": "a whole number", "float": "a number", "int | float": "a number", "bool": "true or false"}


def reword(sentence: str) -> str:
    """One of msgspec's sentences in plain words, or as it is when we have none for it."""
    return PATTERN_SENTENCES.get(sentence) or TYPE_MISMATCH.sub(
        lambda found: f"Expected {TYPE_WORDS[found[1]]}", sentence
    )


def explain(error: msgspec.ValidationError, *kinds: Any) -> tuple[str, str]:
    """The code and the sentence of a validation error; `kinds` as in `describe_error`, else the incoming events."""
    message = str(error)
    if message.endswith("`$.type`") and message.startswith("Invalid value"):
        return "unknown_type", CODES["unknown_type"].sentence
    if message.startswith("Object missing required field"):
        return "missing_field", describe_error(error)
    return "invalid_field", describe_error(error, *(kinds or get_args(IncomingEvent)))
