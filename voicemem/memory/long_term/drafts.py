"""What somebody wants remembered: memories as they are given, checked and redacted, and changes of them."""

from __future__ import annotations

import base64
import re
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from hashlib import blake2b
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.errors import Refused
from voicemem.protocol.checks import check_memory_text, check_time
from voicemem.protocol.memories import Confidence, EventTime, Evidences, GivenKind, MemoryIds, MemorySource, Topics
from voicemem.protocol.strict_json import check_integers
from voicemem.protocol.types import Integer, JsonObject, Name, Natural, SessionId
from voicemem.redaction.rules import Rules
from voicemem.redaction.texts import redact_value

MAX_GIVEN = 100
"""Memories that are given at once."""
MAX_FREE_BYTES = 16 * 1024
"""Of a memory's `metadata` as JSON."""
CONTROLS = re.compile("[\x00-\x1f\x7f-\x9f]")
Namespace = Annotated[str, Meta(max_length=256)]


class GivenMemory(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A memory to keep: one statement, with names written out and dates in full. Times are Unix ms.

    With the `session_id` of a session of this user it belongs to that session, and is erased with it; otherwise to its
    user, or without one to the project. `event_at` is when it happened, `said_at` when it was said. `supersedes` names
    memories that are out of date now.
    """

    text: str
    kind: GivenKind = "fact"
    id: Name | None = None
    user_id: Name | None = None
    namespace: Namespace | None = None
    session_id: SessionId | None = None
    topics: Topics = ()
    entities: Topics = ()
    event_at: EventTime | None = None
    said_at: Integer | None = None
    expires_at: Natural | None = None
    confidence: Confidence = 1.0
    pinned: bool = False
    supersedes: MemoryIds = ()
    metadata: JsonObject | None = None
    source: Literal["api", "tool"] = "api"


class MemoryDraft(Struct, frozen=True, kw_only=True):
    """A memory to keep, whoever found it worth that: besides what callers give, where it is from.

    With `evidence` in a session, that session must be its `session_id`. `created_ms` is for one that was made
    elsewhere before.
    """

    text: str
    kind: GivenKind = "fact"
    id: str | None = None
    user_id: str | None = None
    namespace: str | None = None
    session_id: str | None = None
    topics: tuple[str, ...] = ()
    entities: tuple[str, ...] = ()
    event_at: str | None = None
    said_at: int | None = None
    expires_at: int | None = None
    confidence: float = 1.0
    pinned: bool = False
    supersedes: tuple[str, ...] = ()
    metadata: JsonObject | None = None
    source: MemorySource = "api"
    evidence: Evidences = ()
    strategy: str | None = None
    model: str | None = None
    version: str | None = None
    created_ms: int | None = None


class MemoryPatch(Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What to change of a memory; null takes a value away. `metadata` is replaced as a whole."""

    text: str | UnsetType = UNSET
    kind: GivenKind | UnsetType = UNSET
    user_id: Name | UnsetType | None = UNSET
    namespace: Namespace | UnsetType | None = UNSET
    session_id: SessionId | UnsetType | None = UNSET
    topics: Topics | UnsetType = UNSET
    entities: Topics | UnsetType = UNSET
    event_at: EventTime | UnsetType | None = UNSET
    said_at: Integer | UnsetType = UNSET
    expires_at: Natural | UnsetType | None = UNSET
    confidence: Confidence | UnsetType = UNSET
    pinned: bool | UnsetType = UNSET
    supersedes: MemoryIds | UnsetType = UNSET
    metadata: JsonObject | UnsetType | None = UNSET


def draft_of(given: GivenMemory) -> MemoryDraft:
    return MemoryDraft(**structs.asdict(given))


def prepare_draft(draft: MemoryDraft, rules: Rules | None) -> MemoryDraft:
    """The draft as it is kept: redacted, with tidy lists. Raises `Refused`.

    The text is redacted before it is measured, since what stands in for a word may be longer.
    """
    checked: MemoryDraft = msgspec.convert(msgspec.structs.asdict(draft), MemoryDraft)
    return structs.replace(checked, **prepare_fields(given_fields(checked), rules))


def prepare_patch(patch: MemoryPatch, rules: Rules | None) -> dict[str, Any]:
    """The fields that a patch changes, as they are kept. Raises `Refused`."""
    return prepare_fields(given_fields(patch), rules)


def given_fields(values: Struct) -> dict[str, Any]:
    return {name: value for name, value in structs.asdict(values).items() if value is not UNSET}


def prepare_fields(fields: dict[str, Any], rules: Rules | None) -> dict[str, Any]:
    """The values of these fields as they are kept. Raises `Refused`."""
    for name in ("id", "user_id", "namespace"):
        if isinstance(value := fields.get(name), str) and CONTROLS.search(value):
            raise Refused("invalid_field", f"There must be no control characters: `{name}`")
    if fields.get("event_at") is not None:
        check_time("event_at", fields["event_at"])
    if fields.get("metadata") is not None:
        check_integers(fields["metadata"])
        if len(msgspec.json.encode(fields["metadata"])) > MAX_FREE_BYTES:
            raise Refused("too_big", "The metadata of a memory may have at most 16 KiB of JSON: `metadata`")
    for name in ("topics", "entities"):
        if name in fields:
            fields[name] = tuple(dict.fromkeys(redacted([*fields[name]], rules)))
    for name in ("text", "metadata"):
        if name in fields:
            fields[name] = redacted(fields[name], rules)
    if "text" in fields:
        fields["text"] = fields["text"].strip()
        if "\0" in fields["text"]:
            raise Refused("invalid_field", "There must be no NUL character (U+0000): `text`")
        check_memory_text(fields["text"])
    return fields


@contextmanager
def naming(place: int | None) -> Iterator[None]:
    """Errors say which of several memories they are about: `memories[1].text`."""
    try:
        yield
    except Refused as refused:
        if place is None or type(refused) is not Refused:
            raise
        sentence, _, field = refused.detail.rstrip("`").partition(": `")
        where = f"memories[{place}].{field}" if field else f"memories[{place}]"
        raise Refused(refused.code, f"{sentence.rstrip('.')}: `{where}`") from None


def redacted(value: Any, rules: Rules | None) -> Any:
    return value if rules is None else redact_value(value, rules)


def normalised(text: str) -> str:
    """What two texts have in common that say the same in the same words."""
    return " ".join(text.casefold().split()).rstrip(" .!。！")


def memory_id(*parts: object) -> str:
    """The same for the same parts."""
    digest = blake2b(msgspec.json.encode(parts), digest_size=17).digest()
    return f"mem_{base64.b32encode(digest).decode().lower()[:26]}"


def merged(first: Sequence[Any], second: Sequence[Any], most: int) -> tuple[Any, ...]:
    """The values of both, each once; of too many the last."""
    return tuple(dict.fromkeys((*first, *second)))[-most:]
