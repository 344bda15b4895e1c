"""The records of a memory: chat messages, the tool calls between them, summaries (docs/memory.md).

The fold derives them from the journal; nothing edits them afterwards.
"""

from collections.abc import Iterable
from functools import lru_cache
from typing import Any, Literal

import msgspec
from msgspec import Struct

from voicemem.protocol.codec import METADATA_ORDER, RESERVED_METADATA
from voicemem.protocol.types import JsonObject

WANTED_BACK = "llm"
"""The key in a tool call's metadata: the fields that its LLM wants back, of the `message` and of the `call`; and
the `group`, the same for calls that the LLM made at once."""
Role = Literal["user", "assistant"]
OF_CLIENT = "agent_memory"
"""The key in the metadata of a message of a working memory: a client wrote it down, so it is said as it stands."""


class Message(Struct, frozen=True, gc=False):
    """One message of the history; its fields are in the order of the JSON output."""

    role: Role
    content: str
    """The text that was said; for an interrupted reply exactly what was heard."""
    turn_id: int
    timestamp: int
    """Unix ms when the message began; a producer's number is passed through unscaled."""
    metadata: dict[str, Any]


class ToolUse(Struct, frozen=True, gc=False):
    """One tool call and, once it has arrived, its result; both as the producer gave them."""

    turn_id: int
    timestamp: int
    """Unix ms of the tool call, which is before the messages of its turn that began later."""
    call_id: str
    name: str
    arguments_json: bytes
    """As JSON, which takes less memory; likewise the result."""
    result_json: bytes = b"null"
    answered: bool = False
    """True if the result has arrived; an unanswered tool call is not shown to an LLM."""
    answered_ms: int = 0
    """Unix ms of the result."""
    wanted_back: JsonObject | None = None
    """The fields that the LLM wants back with it (`WANTED_BACK`)."""

    @property
    def arguments(self) -> Any:
        return msgspec.json.decode(self.arguments_json)

    @property
    def result(self) -> Any:
        return msgspec.json.decode(self.result_json)


class Summary(Struct, frozen=True, gc=False):
    """A summary, written by an LLM, that stands for the first turns of a call."""

    through_turn: int
    """It stands for all messages up to and including this turn."""
    text: str
    messages: int
    """The number of these messages."""
    model: str | None = None


class Extracted(Struct, frozen=True, gc=False):
    """The part of a call that was read for memories that an LLM makes of it."""

    through: int = 0
    """The position of the journal up to which something began."""
    calls: int = 0
    """How many requests to the LLM that took."""


class Forgotten(Struct, frozen=True, gc=False):
    """The part that is left out of every context; the history still has it."""

    through_turn: int = -1
    """All messages up to and including this turn are forgotten."""
    turn: int | None = None
    """In this later turn, what began up to `position` is, except what began at the positions `kept`."""
    position: int = 0
    kept: tuple[int, ...] = ()

    def covers(self, turn_id: int, order: int) -> bool:
        """Return whether what began at the journal position `order` is forgotten."""
        if turn_id <= self.through_turn:
            return True
        return turn_id == self.turn and order <= self.position and order not in self.kept


KEPT_NAMES = 1_024
"""Names, and metadata of messages, that are one object wherever they are equal, in all calls: the newest ones."""


@lru_cache(KEPT_NAMES)
def shared_name(name: Any) -> Any:
    """The same name as one object, since most calls have the same ones, again and again."""
    return name


@lru_cache(KEPT_NAMES)
def shared_metadata(source: str, user: str | None) -> dict[str, Any]:
    return {"source": source} if user is None else {"source": source, "user": user}


def common_metadata(values: dict[str, Any]) -> dict[str, Any] | None:
    """The same metadata as one object, where they are nothing but a source and a user, as those of most are."""
    source, user = values.get("source"), values.get("user")
    if not isinstance(source, str) or len(values) != 1 + isinstance(user, str):
        return None
    return shared_metadata(source, user)


def order_metadata(values: dict[str, Any]) -> dict[str, Any]:
    """The same metadata, with the keys that voicemem writes first, in their documented order."""
    if (common := common_metadata(values)) is not None:
        return common
    own = {key: values[key] for key in METADATA_ORDER if key in values}
    return own | {key: value for key, value in values.items() if key not in RESERVED_METADATA}


# The metadata of several events that go into one message


MergedMetadata = dict[str, tuple[int, int, Any]]
"""By key: its place among all keys, the position of the last event that brought it, and the value in that.

The place is where the key first arrived: the position of the event, times `PLACES`, plus its place there.
"""
PLACES = 2**20


def merge_metadata(known: MergedMetadata | None, order: int, metadata: dict[str, Any]) -> MergedMetadata:
    """Return what is known, which is changed, with the metadata of one more event."""
    merged = known if known is not None else {}
    for place, (name, value) in enumerate(metadata.items(), order * PLACES):
        merged[name] = (merged[name][0] if name in merged else place), order, value
    return merged


def latest_metadata(several: Iterable[MergedMetadata]) -> MergedMetadata:
    """All of these by arrival: of each key the value that came last."""
    filled = [one for one in several if one]
    if len(filled) <= 1:
        return filled[0] if filled else {}
    latest: MergedMetadata = {}
    for one in filled:
        for name, (first, last, value) in one.items():
            known = latest.get(name)
            if known is None or last > known[1]:
                latest[name] = first if known is None else min(first, known[0]), last, value
            elif first < known[0]:
                latest[name] = first, *known[1:]
    return latest


def layered_metadata(*layers: MergedMetadata) -> dict[str, Any]:
    """The values of the last layer that has each key; the keys are in the order of their arrival."""
    filled = [one for one in layers if one]
    if len(filled) <= 1:
        return {
            name: value for one in filled for name, (_, _, value) in sorted(one.items(), key=lambda item: item[1][0])
        }
    values: dict[str, Any] = {}
    first: dict[str, int] = {}
    for one in filled:
        for name, (place, _, value) in one.items():
            values[name] = value
            first[name] = min(place, first.get(name, place))
    return {name: values[name] for name in sorted(values, key=first.__getitem__)}
