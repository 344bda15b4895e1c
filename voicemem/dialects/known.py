"""The state that a dialect may read when it translates a frame, and the events that it makes."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from voicemem.protocol.events import SessionEnd, TranscriptEvent
from voicemem.protocol.types import JsonObject

MadeEvent = TranscriptEvent | SessionEnd
"""Events to which frames are translated."""
Made = Iterable[MadeEvent]


class KnownSegment(NamedTuple):
    """The text of one item of the user's so far."""

    text: str
    final: bool
    begun: int
    """Its earliest `ts`."""
    has_end: bool
    """True if it is known when they were said."""


class KnownReply(Protocol):
    """A reply as the fold knows it. What is asked is worked out then; `text` costs its length."""

    @property
    def item(self) -> str | None: ...

    @property
    def turn(self) -> int: ...

    @property
    def text(self) -> str:
        """The text that the LLM has generated so far."""

    @property
    def length(self) -> int:
        """The number of its characters."""

    @property
    def complete(self) -> bool:
        """True if the LLM has finished it."""

    @property
    def begun(self) -> int:
        """Its earliest `ts`."""

    @property
    def total_audio_ms(self) -> int | None:
        """The length of its audio so far, where that was reported."""

    @property
    def audio_came(self) -> int | None:
        """The time at which its first audio came, where that had a length."""

    @property
    def audio_start(self) -> int | None:
        """The time of its audio, moved on by the gaps in which all that had come was played; None without a `ts`."""

    @property
    def cut(self) -> Literal["no", "estimated", "exact"]:
        """The kind of interruption, if any; "exact" if one stated what was heard."""

    @property
    def heard(self) -> bool:
        """True if playback showed that it was heard to its end."""

    @property
    def ended(self) -> int | None:
        """The time at which it was heard to its end or interrupted, if it was."""

    @property
    def has_playback(self) -> bool:
        """True if a position or a heard text was stated by someone who knows; estimates do not count."""

    @property
    def before(self) -> KnownReply | None:
        """The reply directly before it in the call."""


class Known(Protocol):
    """The knowledge of `translate` and `closed`: the state before the frame, read only, and the dialect's own notes."""

    @property
    def here(self) -> int:
        """The turn of the newest utterance; 0 before any."""

    @property
    def next_turn(self) -> int:
        """The turn after the newest."""

    def is_answered(self, turn: int) -> bool:
        """Return whether a reply has begun in a turn, or a tool was called: what the user says then is another turn."""

    @property
    def has_clock(self) -> bool:
        """True if `ts` says when the frame was sent; without, no position may be estimated from it."""

    @property
    def notes(self) -> Mapping[str, Any]:
        """Values kept by `note`, the oldest first."""

    def note(self, key: str, value: Any) -> None:
        """Keep any JSON under a key, or with None forget it. Of more than 16 KiB the oldest keys go."""

    def turn_of(self, item: str) -> int | None:
        """The turn in which an item began."""

    def said_after(self, place: Sequence[int] | None, text: str) -> list[int] | None:
        """Return where the user has said a text after a place, as far as the newest turns show."""

    def segment(self, item: str | None) -> KnownSegment | None:
        """Return what an item of the user's says so far."""

    def reply(self, item: str | None) -> KnownReply | None:
        """The reply of an item, once it has begun."""

    @property
    def newest_reply(self) -> KnownReply | None:
        """The last reply of the call so far."""

    def open_replies(self) -> Iterator[KnownReply]:
        """The replies that were neither heard to their end nor interrupted, the newest first."""


Translate = Callable[[JsonObject, int, Known], Made]
"""A function that makes the events of a reduced frame, with its `ts`; also of frames of one type."""
