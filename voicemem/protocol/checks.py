"""Checks that the types of events cannot express: limits, and fields that depend on each other.

docs/ingest.md and docs/limits.md state them. Every check raises `Refused`, whose sentence never quotes what was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from voicemem.errors import Refused
from voicemem.protocol.events import Event, LlmCancel, MemoryAdded, MemoryEdited, MessageEvent, SessionEnd, Tts
from voicemem.protocol.explain import describe_error
from voicemem.protocol.memories import MAX_MEMORY_BYTES, time_ms
from voicemem.protocol.types import MAX_TEXT_BYTES, Integer, Name

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
        check_texts(event)
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


def check_texts(event: Event) -> None:
    for name in TEXT_FIELDS[type(event)]:
        check_text(getattr(event, name))


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
