"""Checks that the types of events cannot express: limits, and fields that depend on each other.

docs/ingest.md and docs/limits.md state them. Every check raises `Refused`, whose sentence never quotes what was sent.
"""

import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from difflib import get_close_matches
from functools import lru_cache
from hashlib import sha256
from typing import Any, Literal, get_args, get_origin, get_type_hints

import msgspec
from msgspec import UNSET, Struct, UnsetType

from voicemem.errors import CODES, Refused
from voicemem.protocol.events import (
    Event,
    IncomingEvent,
    LlmCancel,
    MemoryAdded,
    MemoryEdited,
    MessageEvent,
    SessionEnd,
    Tts,
    kinds_by_type,
)
from voicemem.protocol.memories import MAX_MEMORY_BYTES, time_ms
from voicemem.protocol.types import MAX_TEXT_BYTES, PATTERN_SENTENCES, Integer, Name

SOURCES = {
    "user": frozenset({"asr", "message", "command"}),
    "assistant": frozenset({"llm", "greeting", "llm_failure", "silence", "command"}),
}
METADATA_ORDER = ("interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial")
"""Keys of `metadata` that voicemem itself writes, in their documented order; others follow as they came."""
RESERVED_METADATA = frozenset(METADATA_ORDER)
RESERVED_RULE = (
    f"The event's metadata uses a key that is reserved for voicemem; reserved are {', '.join(METADATA_ORDER)}."
)
TEXT_FIELDS = {
    kind: tuple(name for name in ("text", "heard_text", "synthesised_text", "reason") if name in kind.__struct_fields__)
    for kind in Event.__subclasses__()
}
"""The fields of each kind of event that hold a text."""
MAY_RESERVE = MessageEvent, MemoryAdded, MemoryEdited
"""Events whose metadata may have any keys: those of memories are only passed on."""
INTERRUPTION_KEYS = {"interrupted", "interrupt_timestamp", "original", "heard"}


class RestoredMetadata(msgspec.Struct, frozen=True):
    """The reserved keys, as a restored message may carry them."""

    interrupted: bool | UnsetType = UNSET
    interrupt_timestamp: Integer | UnsetType = UNSET
    original: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    heard: Literal["aligned", "estimated", "unmatched"] | UnsetType = UNSET
    partial: bool | UnsetType = UNSET


def check_event(event: Event, size: int) -> None:
    """Check what the types cannot express; `size` is the length of the event's JSON in bytes."""
    if size > MAX_TEXT_BYTES:  # no text in it is longer than the JSON itself
        for name in TEXT_FIELDS[type(event)]:
            check_text(getattr(event, name))
    if event.metadata and not isinstance(event, MAY_RESERVE) and not RESERVED_METADATA.isdisjoint(event.metadata):
        raise Refused("reserved_metadata", RESERVED_RULE)
    check = CHECKS.get(type(event))
    if check is not None:
        check(event)


def check_tts(event: Tts) -> None:
    fields = (event.audio_ms, event.heard_text, event.done, event.words, event.total_audio_ms)
    if fields == (None, None, None, None, None):
        raise Refused(
            "missing_field", "A tts event must have at least one of audio_ms, heard_text, done, words, total_audio_ms."
        )


def check_cancel(event: LlmCancel) -> None:
    if event.item is None and event.turn_id is None:
        raise Refused("missing_field", "An llm.cancel must have an item or a turn_id.")


def check_end(event: SessionEnd) -> None:
    if event.last_seq is not None and (event.seq is None or event.last_seq != event.seq - 1):
        raise Refused("last_seq_mismatch")


def check_text(text: str | UnsetType | None) -> None:
    """Raise `Refused` for a text that is too long."""
    # A character has at most 4 bytes, so shorter texts need not be encoded.
    if isinstance(text, str) and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise Refused("text_too_long")


def check_message(event: MessageEvent) -> None:
    """Check a `message`, the only event that may carry reserved metadata: that is how a memory is restored."""
    if event.source not in SOURCES[event.role]:
        sources = ", ".join(sorted(SOURCES[event.role]))
        raise Refused("invalid_field", f"The source of a message with the role {event.role} must be one of {sources}.")
    try:
        restored = msgspec.convert(event.metadata or {}, RestoredMetadata)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", f"In the metadata: {describe_error(error, RestoredMetadata)}") from None
    present = {key for key in RESERVED_METADATA if getattr(restored, key) is not UNSET}
    allowed = {"source", "user", "partial"} if event.role == "user" else {"source", "user"}
    if restored.interrupted is True and event.role == "assistant":
        allowed |= INTERRUPTION_KEYS
    if restored.interrupted is True and (restored.interrupt_timestamp is UNSET or restored.original is UNSET):
        raise Refused(
            "invalid_field", "The metadata of an interrupted message must have interrupt_timestamp and original too."
        )
    if present - allowed or restored.partial is False or restored.source not in (UNSET, event.source):
        raise Refused("invalid_field", "The metadata has a reserved key or value that does not fit this message.")


def check_memory(event: MemoryAdded | MemoryEdited) -> None:
    if isinstance(event.text, str):
        check_memory_text(event.text)
        if sha256(event.text.encode()).hexdigest() != event.text_sha256:
            raise Refused("invalid_field", "The text of a memory does not have the hash in text_sha256.")
    if isinstance(event.event_at, str):
        check_time("event_at", event.event_at)


def check_memory_text(text: str) -> None:
    """Raise `Refused` for a memory's text that is empty or too long."""
    if not text.strip():
        raise Refused("invalid_field", "The text of a memory must have a character that is no space: `text`")
    if len(text.encode()) > MAX_MEMORY_BYTES:
        limit = f"{MAX_MEMORY_BYTES:,} bytes of UTF-8"
        raise Refused("text_too_long", f"The text of a memory may have at most {limit}; give longer ones as several.")


def check_time(field: str, text: str) -> None:
    """Raise `Refused` for a day or an instant that does not exist."""
    try:
        time_ms(text)
    except ValueError:
        raise Refused("invalid_field", f"There is no such day or time: `{field}`") from None


CHECKS: dict[type, Callable[[Any], None]] = {
    Tts: check_tts,
    LlmCancel: check_cancel,
    SessionEnd: check_end,
    MessageEvent: check_message,
    MemoryAdded: check_memory,
    MemoryEdited: check_memory,
}


LONGEST = 40
"""Longer texts are not names."""
CLOSE = 0.72
"""How alike two names are of which one is meant, by `difflib`; one wrong letter of five makes 0.8."""
SEPARATORS = str.maketrans("-/: .", "_____")
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def plain(name: str) -> str:
    """A name without what people write differently: letter case, and the signs between words."""
    return CAMEL_CASE.sub("_", name).lower().translate(SEPARATORS)


def did_you_mean(name: str, known: Iterable[str], close: float = CLOSE) -> str:
    """A question that names the nearest known name, in brackets; empty if none is near."""
    if len(name) > LONGEST:
        return ""
    names = {plain(one): one for one in known}
    near = get_close_matches(plain(name), names, 1, close)
    return f" (did you mean `{names[near[0]]}`?)" if near else ""


def describe_error(error: msgspec.ValidationError, *kinds: Any) -> str:
    """A validation error as a sentence. `kinds` are the types that were tried; they give the allowed values."""
    sentence, at, path = str(error).replace("- at `key` in `$", "- at `$").rpartition(" - at `$")
    if not at:
        sentence, path = path, ""
    if sentence.startswith(UNKNOWN):
        path = path.strip("`.")  # a name that was sent may look like a path
        known = fields_at(kinds, path) if FIELD_PATH.match(path) or not path else ()
        return unknown_field(sentence.removeprefix(UNKNOWN).strip("`"), known, path if known else "")
    if sentence.startswith(MISSING):
        sentence = f"A required field is missing: {sentence.removeprefix(MISSING)}"
    else:
        sentence = PATTERN_SENTENCES.get(sentence) or TYPE_MISMATCH.sub(expected_types, sentence)
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


TYPE_MISMATCH = re.compile(r"Expected `(\w+(?: \| \w+)*)`(?:, got `\w+`)?")
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
"""How msgspec's sentences begin, with our codes; all others are `invalid_field`."""
FIELD_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9_.-]{0,63}\Z")
"""The form of a field's name. Nothing else of what was sent is quoted."""
FIELD_PATH = re.compile(r"[a-z_]+(\[(\d+|\.\.\.)\])?(\.[a-z_]+(\[(\d+|\.\.\.)\])?)*\Z")


def expected_types(mismatch: re.Match[str]) -> str:
    names = [name for name in mismatch[1].split(" | ") if name != "null"] or ["null"]
    if "float" in names and "int" in names:
        names.remove("int")
    return "Expected " + " or ".join(TYPE_WORDS.get(name, f"`{name}`") for name in names)


def unknown_field(name: str, known: Sequence[str], path: str) -> str:
    """The sentence about a field that does not exist, with the fields that do; `path` leads to where it is."""
    quoted = f"no field `{name}`" if FIELD_NAME.match(name) else "an unknown field"
    where = f" in `{path}`" if path else ""
    return f"There is {quoted}{where}{did_you_mean(name, known)}{known_names(known)}"


def known_names(names: Iterable[str]) -> str:
    listed = ", ".join(f"`{name}`" for name in sorted(names))
    return f"; known: {listed}" if listed else ""


def fields_at(kinds: Sequence[Any], path: str) -> tuple[str, ...]:
    name, _, rest = path.partition(".")
    for kind in kinds:
        if not (isinstance(kind, type) and issubclass(kind, Struct)):
            continue
        if not path:
            return kind.__struct_encode_fields__
        members = tuple(member_types(get_type_hints(kind).get(name.partition("[")[0])))
        found = fields_at(members, rest)
        if found:
            return found
    return ()


EVENT_KINDS = kinds_by_type(IncomingEvent)
EVENT_TYPES = tuple(sorted(EVENT_KINDS))
KNOWN_TYPES = known_names(EVENT_TYPES)
UNKNOWN_TYPE = re.compile(r"Invalid value '(.*)' - at `\$\.type`\Z", re.DOTALL)


def explain_event(error: msgspec.ValidationError, event_type: Any) -> tuple[str, str]:
    """The code and the sentence of why an event of this type, as it was sent, cannot be decoded."""
    kind = EVENT_KINDS.get(event_type) if isinstance(event_type, str) else None
    return explain(error, *((kind,) if kind is not None else EVENT_KINDS.values()))


def explain(error: msgspec.ValidationError, *kinds: Any) -> tuple[str, str]:
    """The code and the sentence of a validation error; `kinds` as in `describe_error`."""
    message = str(error)
    if message.endswith("`$.type`") and message.startswith("Invalid value"):
        sent = UNKNOWN_TYPE.match(message)
        near = did_you_mean(sent[1], EVENT_TYPES) if sent else ""
        return "unknown_type", f"{CODES['unknown_type'].sentence[:-1]}{near}{KNOWN_TYPES}."
    code = next((code for start, code in CODE_OF if message.startswith(start)), "invalid_field")
    return code, describe_error(error, *kinds)
