"""What the types of events cannot say: limits, and fields that depend on each other (design, sections 2, 3 and 10).

Every check raises `Refused`, whose sentence never holds what was sent.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

import msgspec
from msgspec import UNSET, UnsetType

from voicemem.errors import Refused
from voicemem.protocol.events import Event, Interrupt, MessageEvent, SessionEnd, Tts
from voicemem.protocol.explain import describe_error
from voicemem.protocol.types import MAX_TEXT_BYTES, Integer, Name

SOURCES = {
    "user": frozenset({"asr", "message", "command"}),
    "assistant": frozenset({"llm", "greeting", "llm_failure", "silence", "command"}),
}


def check_event(event: Event, size: int) -> None:
    """What the types cannot say of an event of so many bytes: limits and fields that depend on each other."""
    if size > MAX_TEXT_BYTES:  # no text is longer than the JSON that it stands in
        check_texts(event)
    if event.metadata and not isinstance(event, MessageEvent) and not RESERVED_METADATA.isdisjoint(event.metadata):
        raise Refused("reserved_metadata")
    check = CHECKS.get(type(event))
    if check is not None:
        check(event)


def check_tts(event: Tts) -> None:
    fields = (event.audio_ms, event.heard_text, event.done, event.words, event.total_audio_ms)
    if fields == (None, None, None, None, None):
        raise Refused("missing_field", "A tts event has at least one of its fields.")


def check_interrupt(event: Interrupt) -> None:
    given = (event.heard_text, event.heard_chars, event.audio_end_ms)
    if sum(value is not None for value in given) > 1:
        raise Refused("invalid_field", "An interrupt has at most one of heard_text, heard_chars, audio_end_ms.")


def check_end(event: SessionEnd) -> None:
    if event.last_seq is not None and (event.seq is None or event.last_seq != event.seq - 1):
        raise Refused("last_seq_mismatch")


def check_texts(event: Event) -> None:
    texts = [getattr(event, "text", None), getattr(event, "heard_text", None), getattr(event, "reason", None)]
    for text in texts:
        check_text(text)


def check_text(text: str | None) -> None:
    """Raise `Refused` for a text that is too long."""
    # Only a text of so many characters can have so many bytes.
    if text is not None and len(text) * 4 > MAX_TEXT_BYTES and len(text.encode()) > MAX_TEXT_BYTES:
        raise Refused("text_too_long")


def check_message(event: MessageEvent) -> None:
    """A `message` may carry the reserved keys whole, which is how a memory is restored."""
    if event.source not in SOURCES[event.role]:
        raise Refused("invalid_field", f"A message of this source does not have the role {event.role}.")
    try:
        restored = msgspec.convert(event.metadata or {}, RestoredMetadata)
    except msgspec.ValidationError as error:
        raise Refused("invalid_field", f"In the metadata: {describe_error(error, RestoredMetadata)}") from None
    given = {key for key in RESERVED_METADATA if getattr(restored, key) is not UNSET}
    allowed = {"source", "user", "partial"} if event.role == "user" else {"source", "user"}
    if restored.interrupted is True and event.role == "assistant":
        allowed |= INTERRUPTION_KEYS
    if restored.interrupted is True and (restored.interrupt_timestamp is UNSET or restored.original is UNSET):
        raise Refused("invalid_field", "An interrupted message says interrupt_timestamp and original too.")
    if given - allowed or restored.partial is False or restored.source not in (UNSET, event.source):
        raise Refused("invalid_field", "The metadata says what a message of this kind cannot say.")


CHECKS: dict[type, Callable[[Any], None]] = {
    Tts: check_tts,
    Interrupt: check_interrupt,
    SessionEnd: check_end,
    MessageEvent: check_message,
}
INTERRUPTION_KEYS = {"interrupted", "interrupt_timestamp", "original", "heard"}


class RestoredMetadata(msgspec.Struct, frozen=True):
    """The reserved keys, as a restored message may carry them."""

    interrupted: bool | UnsetType = UNSET
    interrupt_timestamp: Integer | UnsetType = UNSET
    original: str | UnsetType = UNSET
    source: str | UnsetType = UNSET
    user: Name | UnsetType = UNSET
    heard: Literal["aligned", "estimated"] | UnsetType = UNSET
    partial: bool | UnsetType = UNSET


METADATA_ORDER = ("interrupted", "interrupt_timestamp", "original", "source", "user", "heard", "partial")
"""Keys of `metadata` that voicemem writes itself, in the order in which they stand; others follow as they came."""
RESERVED_METADATA = frozenset(METADATA_ORDER)
