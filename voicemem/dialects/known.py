"""The state that a dialect reads when it translates a frame (turns, notes, the clock), and shared ways to make events.

The clock is for stacks that do not report playback: a reply begins to play when its first audio arrives, or when the
previous reply has ended, and pauses while all audio so far has been played. A reply without audio counts as not heard
if the previous one had audio. The results are marked as estimates, and stated positions take precedence
(docs/dialects.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, Literal, NamedTuple, Protocol

from voicemem.protocol.events import Asr, Interrupt, LlmDone, MessageEvent, SessionEnd, TranscriptEvent, Tts
from voicemem.protocol.types import SPACELESS, JsonObject

MadeEvent = TranscriptEvent | SessionEnd
"""Events to which frames are translated."""
Made = Iterable[MadeEvent]
MAX_QUEUE = 20
"""The most replies that may wait to be played."""
UNITS_A_SECOND = 15
"""The assumed rate of speech, as measured (fixtures/truth/README.md). A character of a script without spaces counts
three."""
SLOWEST_UNITS_A_SECOND = 10
"""The rate of the slowest measured voice: after this long, a text is over for any voice."""
MAX_NOTED = 11_000
"""The most bytes of texts in a dialect's notes, which are small; older texts are dropped."""


def spoken_ms(text: str, units_a_second: int = UNITS_A_SECOND) -> int:
    """Estimate how long it takes to speak a text whose audio length is unknown."""
    return (len(text) + 2 * len(SPACELESS.findall(text))) * 1000 // units_a_second


def bounded(text: str, max_bytes: int) -> str:
    """Return the beginning of a text, at most `max_bytes` of UTF-8, because notes are small."""
    return text.encode()[:max_bytes].decode(errors="ignore")


class Playing(NamedTuple):
    """The playback of a reply by the clock: its start, its position at a time, and its length."""

    began: int
    position_ms: int
    total_ms: int

    @property
    def is_over(self) -> bool:
        return 0 < self.total_ms <= self.position_ms


class KnownSegment(NamedTuple):
    """The text of one of the user's items so far."""

    text: str
    final: bool
    begun: int
    """Its earliest `ts`."""
    has_end: bool
    """True if the time of its end is known."""


class KnownReply(Protocol):
    """A reply in the state of the fold. Values are computed on access; `text` costs its length."""

    item: str | None
    turn: int
    begun: int
    """Its earliest `ts`."""
    complete: bool
    """True if the LLM has finished it."""

    @property
    def text(self) -> str:
        """The text that the LLM has generated so far."""

    @property
    def length(self) -> int:
        """The number of its characters."""

    @property
    def total_audio_ms(self) -> int | None:
        """The length of its audio so far, if it was reported."""

    @property
    def audio_came(self) -> int | None:
        """The time at which its first audio arrived, if that had a length."""

    @property
    def audio_start(self) -> int | None:
        """The start of its audio, moved by the gaps in which all audio so far had been played; None without a `ts`."""

    @property
    def cut(self) -> Literal["no", "estimated", "exact"]:
        """The kind of interruption, if any; "exact" if one stated the heard text or position."""

    @property
    def heard(self) -> bool:
        """True if playback showed that it was heard to its end."""

    @property
    def ended(self) -> int | None:
        """The time at which it was heard to its end or interrupted, if it was."""

    @property
    def has_playback(self) -> bool:
        """True if playback reported a position or a heard text; estimates do not count."""

    @property
    def before(self) -> KnownReply | None:
        """The reply directly before it in the call."""

    def playing_at(self, ts: int, units_a_second: int | None = None) -> Playing | None:
        """Return its playback at a time; None without audio.

        With a rate of speech, the length of a reply without audio is estimated from its text.
        """
        # This reply and earlier ones, back to one whose predecessor has a known end, the newest first: for each, when
        # its audio arrived, its length, and the end of its predecessor, if reported.
        queue: list[tuple[int, int, int]] = []
        at: KnownReply | None = self
        while at is not None and len(queue) < MAX_QUEUE:
            came, total_ms, before = at.audio_start, at.total_audio_ms, at.before
            if (came is None or total_ms is None) and units_a_second is not None:
                came, total_ms = at.begun, spoken_ms(at.text, units_a_second)
            if came is None or total_ms is None:
                break
            ended = None if before is None else before.ended
            queue.append((came, total_ms, came if ended is None else ended))
            at = before if ended is None else None
        if not queue:
            has_audio = self.before is not None and self.before.total_audio_ms is not None
            return Playing(ts, 0, 0) if has_audio and self.total_audio_ms is None else None
        free_at, start, length_ms = queue[-1][2], 0, 0
        for came, length_ms, _ in reversed(queue):
            start = max(came, free_at)
            free_at = start + length_ms
        return Playing(start, max(0, min(ts - start, length_ms)), length_ms)

    def stopped_at(self, position_ms: int, ts: int) -> MadeEvent:
        """Return the event for its position when the caller hung up; at 0 or less nothing was heard."""
        if position_ms > 0:
            return Tts(item=self.item, audio_ms=position_ms, estimated=True, ts=ts)
        return Interrupt(item=self.item, heard_text="", estimated=True, ts=ts)


class Known(Protocol):
    """The state that `translate` and `closed` see: the fold before the frame, read only, and the dialect's own notes.

    Notes are a dialect's only state between frames. Methods that return events are shared by the dialects.
    """

    here: int
    """The turn of the newest utterance; 0 before any."""
    next_turn: int
    """The turn after the newest."""
    has_clock: bool
    """True if `ts` is when the frame was sent; otherwise no position may be estimated from it."""
    notes: Mapping[str, Any]
    """Values kept by `note`, the oldest first."""

    def is_answered(self, turn: int) -> bool:
        """Return whether a turn has a reply or a tool call: the user's next words are then another turn."""

    def note(self, key: str, value: Any) -> None:
        """Keep any JSON under a key; None removes it. Beyond 16 KiB the oldest keys are dropped."""

    def turn_of(self, item: str) -> int | None:
        """The turn in which an item began."""

    def said_after(self, place: Sequence[int] | None, text: str) -> list[int] | None:
        """Return where the user said a text after a place; only the newest turns are searched."""

    def segment(self, item: str | None) -> KnownSegment | None:
        """Return the text so far of one of the user's items."""

    def reply(self, item: str | None) -> KnownReply | None:
        """The reply of an item, once it has begun."""

    @property
    def newest_reply(self) -> KnownReply | None:
        """The last reply of the call so far."""

    def open_replies(self) -> Iterator[KnownReply]:
        """The replies that were neither heard to their end nor interrupted, the newest first."""

    def text_of(self, item: str) -> str:
        """Return the text of the user's item, or of a reply; empty before it has begun."""
        one = self.segment(item) or self.reply(item)
        return "" if one is None else one.text

    # Notes

    def note_all(self, **values: Any) -> None:
        """Keep or forget several values, by their keys."""
        for key, value in values.items():
            self.note(key, value)

    def forget(self, *keys: str) -> None:
        for key in keys:
            self.note(key, None)

    def note_newest(self, key: str, value: Any, most: int) -> None:
        """Keep a value under a key such as `c:NAME`; only the newest `most` keys with the same prefix stay."""
        self.note(key, value)
        self.keep_newest(key[: key.index(":") + 1], most)

    def keep_newest(self, prefix: str, most: int) -> None:
        """Keep only the newest of the notes whose keys have this prefix."""
        self.forget(*[key for key in self.notes if key.startswith(prefix)][:-most])

    # Turns, and the user's speech

    def utterance_turn(self) -> int:
        """Return the turn of a new utterance: the same turn until a reply to the previous one has begun."""
        return self.here if self.here and not self.is_answered(self.here) else self.next_turn

    def turn_of_speech(self, item: str | None, new_turn: int | None = None) -> int | None:
        """Return the turn for a new utterance, `new_turn` or the usual one; None if it already has a turn."""
        if item is not None and self.turn_of(item) is not None:
            return None
        return self.utterance_turn() if new_turn is None else new_turn

    def turn_of_answer(self, item: str) -> int | None:
        """Return the turn for the first event of a reply; None once it has begun."""
        return self.here if self.turn_of(item) is None else None

    def end_speech(self, item: str, ts: int) -> Made:
        """Record when the user stopped speaking, whenever the words arrive."""
        segment = self.segment(item)
        if segment is not None and not segment.final and segment.begun <= ts:
            yield Asr(item=item, text=segment.text, start_ms=0, end_ms=ts - segment.begun, ts=ts)

    def note_voice(self, speaks: bool, ts: int) -> None:
        """Note when the caller stopped speaking, if a stack reports that; forget it when they begin again."""
        if self.has_clock:
            self.note("silent", None if speaks else ts)

    def said_by(self, at: int | None = None) -> int | None:
        """Return the time of a text that arrived whole at `at`: when the caller stopped speaking, if known."""
        silent: int | None = self.notes.get("silent")
        return at if silent is None or (at is not None and at < silent) else silent

    # Texts that an app gives to a new connection: the history in order, and perhaps a new text

    def connect(self) -> Made:
        """Handle a new connection: until someone speaks, texts that the app adds may be history."""
        yield from self.settle_given()
        self.forget("spoken")

    def give(self, text: str, item: str | None, ts: int) -> int | None:
        """Note a text of the user's that may be history. Return its turn in the memory, if it is there.

        Notes: `given` (the newest unanswered text), `found` (the place in the memory of the previous one).
        """
        place = self.said_after(self.notes.get("found"), text)
        self.note("found", place or self.notes.get("found"))
        self.note("given", None if place else [bounded(text, MAX_NOTED), item, ts if self.has_clock else None])
        return place[0] if place else None

    def settle_given(self) -> Made:
        """Handle the first speech or response of a connection: an unanswered last text was new, so record it."""
        if "spoken" not in self.notes:
            newest = self.notes.get("given")
            self.note_all(spoken=True, found=None, given=None)
            if newest is not None:
                text, item, ts = newest
                yield MessageEvent(role="user", text=text, source="message", item=item, ts=ts, turn_id=self.next_turn)

    # Replies

    def complete(self, item: str | None) -> Made:
        """Mark a reply as complete, if it has begun."""
        reply = self.reply(item)
        if reply is not None and not reply.complete:
            yield LlmDone(item=item)

    def interrupt_by_clock(self, item: str, ts: int, cause: str | None = None, where: Where | None = None) -> Made:
        """Interrupt a reply at its position by the clock; if its audio was over, nothing is marked."""
        reply = self.reply(item)
        is_timed = reply is not None and self.has_clock and not reply.has_playback
        playing = self.where(reply, ts, where) if reply is not None and is_timed else None
        if playing is None and reply is not None and is_timed and reply.complete:
            spoken = reply.playing_at(ts, SLOWEST_UNITS_A_SECOND)
            playing = spoken if spoken is not None and spoken.is_over else None
        if playing is None:
            yield Interrupt(item=item, cause=cause)
        elif reply is not None and reply.complete and playing.is_over:
            # As if playback had reported the end, because a position that is stated later overrides that.
            yield Tts(item=item, done=True, estimated=True, ts=playing.began + playing.total_ms)
            yield Interrupt(item=item, cause=cause)
        else:
            yield Interrupt(item=item, audio_end_ms=playing.position_ms, estimated=True, cause=cause)

    def close_by_clock(self, ts: int, is_own: Callable[[str], bool], where: Where | None = None) -> Made:
        """Return the events for the positions, by the clock, of the dialect's own replies when the caller hung up."""
        for reply in self.open_replies():
            if reply.item is None or reply.has_playback or not is_own(reply.item):
                continue
            playing = self.where(reply, ts, where)
            if playing is None or (not playing.total_ms and reply.turn < self.here):
                continue
            if (reply.complete or reply.total_audio_ms is None) and playing.is_over:
                yield Tts(item=reply.item, done=True, estimated=True, ts=playing.began + playing.total_ms)
            else:
                yield reply.stopped_at(playing.position_ms, ts)

    def where(self, reply: KnownReply, ts: int, where: Where | None) -> Playing | None:
        return reply.playing_at(ts) if where is None else where(self, reply, ts)


Where = Callable[[Known, KnownReply, int], Playing | None]
"""Returns the playback of a reply at a time, for a dialect that knows more than the clock."""
Translate = Callable[[JsonObject, int, Known], Made]
"""Translates a reduced frame with its `ts` into events."""
