"""Sentences about decoding errors, with the known names and the nearest of them.

No sentence quotes the input, except for texts that look like field names.
"""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from difflib import get_close_matches
from functools import lru_cache
from types import MappingProxyType
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import Struct

from voicemem.errors import CODES
from voicemem.protocol.events import Event, IncomingEvent, SessionUpdate, kinds_by_type
from voicemem.protocol.types import PATTERN_SENTENCES

Places = Mapping[str, Iterable[str]]
"""Field names by their place, such as "under `llm`"."""
NO_PLACES: Places = {}
LONGEST = 40
"""Longer texts are not names."""
CLOSE = 0.72
"""The least similarity, by `difflib`, of a name and the meant one; one wrong letter of five makes 0.8."""
SEPARATORS = str.maketrans("-/: .", "_____")
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def plain(name: str) -> str:
    """Return a name without letter case and separators, which people write differently."""
    return CAMEL_CASE.sub("_", name).lower().translate(SEPARATORS)


def did_you_mean(
    name: str, known: Iterable[str], close: float = CLOSE, meant: Mapping[str, str] = MappingProxyType({})
) -> str:
    """Return a question with the nearest known name, or its entry in `meant`, in brackets; empty if none is near."""
    if len(name) > LONGEST:
        return ""
    names = {plain(one): meant.get(one, one) for one in known}
    near = get_close_matches(plain(name), names, 1, close)
    return f" (did you mean `{names[near[0]]}`?)" if near else ""


def describe_error(error: msgspec.ValidationError, *kinds: Any, places: Places = NO_PLACES) -> str:
    """Return a validation error as a sentence. `kinds` are the types that were tried; they have the allowed values."""
    sentence, at, path = str(error).replace("- at `key` in `$", "- at `$").rpartition(" - at `$")
    if not at:
        sentence, path = path, ""
    if sentence.startswith(UNKNOWN):
        path = path.strip("`.")  # a name in the input may look like a path
        structs = filter(is_struct, types_at(kinds, path) if FIELD_PATH.match(path) or not path else ())
        known = next((one.__struct_encode_fields__ for one in structs), ())
        return unknown_field(sentence.removeprefix(UNKNOWN).strip("`"), known, path if known else "", places)
    if sentence.startswith(MISSING):
        name = sentence.removeprefix(MISSING).strip("`")
        place = path.strip("`").removeprefix(".")
        return f"A required field is missing: `{place}.{name}`" if place else f"A required field is missing: `{name}`"
    sentence = PATTERN_SENTENCES.get(sentence) or TYPE_MISMATCH.sub(expected_types, sentence)
    if sentence.startswith("Invalid"):  # "Invalid value …", "Invalid enum value …"
        values = allowed_values(kinds, path.strip("`.")) if path else ()
        allowed = f"must be one of {', '.join(map(str, values))}" if values else "is not one of the allowed values"
        sentence = f"The value {allowed}"
    return f"{sentence}: `{path.removeprefix('.')}" if path.strip("`") else sentence


@lru_cache(maxsize=256)
def allowed_values(kinds: tuple[Any, ...], path: str) -> tuple[str, ...]:
    """Return the allowed values of the field at a dotted path, from the first type with such a choice; else empty."""
    return next((get_args(kind) for kind in types_at(kinds, path) if is_literal(kind)), ())


def types_at(kinds: Iterable[Any], path: str) -> Iterator[Any]:
    """Yield the types of the field at a dotted path in each of these kinds."""
    if not path:
        yield from kinds
        return
    name, _, rest = path.partition(".")
    for kind in kinds:
        if is_struct(kind):
            yield from types_at(member_types(get_type_hints(kind).get(name.partition("[")[0])), rest)


def member_types(kind: Any) -> Iterator[Any]:
    """Yield a type and the types in it: the members of a union, the values of an array or object."""
    yield kind
    for part in () if is_literal(kind) else get_args(kind):
        yield from member_types(part)


def is_literal(kind: Any) -> bool:
    return get_origin(kind) is Literal


def is_struct(kind: Any) -> bool:
    return isinstance(kind, type) and issubclass(kind, Struct)


TYPE_MISMATCH = re.compile(r"Expected `(\w+(?: \| \w+)*)`(?:, got `(\w+)`)?")
TYPE_WORDS = {
    "array": "a list",
    "bool": "true or false",
    "float": "a number",
    "int": "a whole number",
    "null": "null",
    "object": "an object",
    "str": "a text",
}
MISSING = "Object missing required field "
UNKNOWN = "Object contains unknown field "
CODE_OF = ((MISSING, "missing_field"), (UNKNOWN, "unknown_field"))
"""The beginnings of msgspec's sentences, with our codes; all others are `invalid_field`."""
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
"""The form of a field name. Nothing else of the input is quoted."""
FIELD_PATH = re.compile(r"[a-z_]+(\[(\d+|\.\.\.)\])?(\.[a-z_]+(\[(\d+|\.\.\.)\])?)*\Z")


def expected_types(mismatch: re.Match[str]) -> str:
    names = [name for name in mismatch[1].split(" | ") if name != "null"] or ["null"]
    if "float" in names and "int" in names:
        names.remove("int")
    sent = ", not null" if mismatch[2] == "null" else ""
    return "Expected " + " or ".join(TYPE_WORDS.get(name, f"`{name}`") for name in names) + sent


def unknown_field(name: str, known: Sequence[str], path: str, places: Places = NO_PLACES) -> str:
    """Return the sentence about an unknown field at `path`, with the known fields.

    A field that exists elsewhere is not taken for a misspelling: the sentence says where it belongs.
    """
    where = f" in `{path}`" if path else ""
    right = " or ".join(place for place, names in places.items() if plain(name) in map(plain, names))
    return unknown_name("field", name, known, where, f": it goes {right}" if right else "")


def unknown_name(what: str, name: str, known: Iterable[str], where: str = "", hint: str = "") -> str:
    """Return the sentence about an unknown name of a kind of thing, with the known names and the nearest of them."""
    quoted = f"no {what} `{name}`" if FIELD_NAME.match(name) else f"an unknown {what}"
    return f"There is {quoted}{where}{hint or did_you_mean(name, known)}{known_names(known)}"


def known_names(names: Iterable[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    return f"; known: {listed}" if listed else ""


EVENT_KINDS = kinds_by_type(IncomingEvent)
EVENT_TYPES = tuple(sorted(EVENT_KINDS))
KNOWN_TYPES = known_names(EVENT_TYPES)
SETTINGS = tuple(set(SessionUpdate.__struct_encode_fields__) - set(Event.__struct_encode_fields__))
WRAPPERS = ("session", "config", "settings")
"""Names under which people nest settings that belong at the top level."""
PLACES_OF: dict[str, Places] = {
    "session.open": {"under `session`": (*SETTINGS, "config", "settings")},
    "session.update": {"beside `type`, field by field": WRAPPERS},
}
"""The right places of fields that are easily misplaced, by the type of the event."""
UNKNOWN_TYPE = re.compile(r"Invalid value '(.*)' - at `\$\.type`\Z", re.DOTALL)


def explain_event(error: msgspec.ValidationError, event_type: Any) -> tuple[str, str]:
    """Return the code and the sentence for an event that cannot be decoded; `event_type` is its `type` as sent."""
    kind = EVENT_KINDS.get(event_type) if isinstance(event_type, str) else None
    if kind is None:
        return explain(error, *EVENT_KINDS.values())
    return explain(error, kind, places=PLACES_OF.get(event_type, NO_PLACES))


def explain(error: msgspec.ValidationError, *kinds: Any, places: Places = NO_PLACES) -> tuple[str, str]:
    """Return the code and the sentence of a validation error; `kinds` as in `describe_error`."""
    message = str(error)
    if message.endswith("`$.type`") and message.startswith("Invalid value"):
        sent = UNKNOWN_TYPE.match(message)
        near = did_you_mean(sent[1], EVENT_TYPES) if sent else ""
        return "unknown_type", f"{CODES['unknown_type'].sentence[:-1]}{near}{KNOWN_TYPES}."
    code = next((code for start, code in CODE_OF if message.startswith(start)), "invalid_field")
    return code, describe_error(error, *kinds, places=places)
