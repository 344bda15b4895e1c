"""The state that a dialect may read when it translates a frame, and the events that it makes: turns, notes, the clock.

The clock is for stacks that do not report playback: a reply's audio begins when its first audio comes, or when the
reply before it has ended, and stands still while nothing that has come is left to play. Of a reply without any audio
nothing was heard, where the one before it had some. What follows is marked as an estimate, and a stated position counts
more (docs/dialects.md).
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
"""Replies that may wait for each other to be played."""
UNITS_A_SECOND = 15
"""How fast a voice speaks where nothing says so, as measured (fixtures/truth/README.md).

A character of a script without spaces counts three."""
SLOWEST_UNITS_A_SECOND = 10
"""How fast the slowest of the voices speaks that were measured: a text that takes longer is over for any."""
MAX_NOTED = 11_000
"""Bytes of texts that a dialect keeps in its notes, which are small: the older ones go."""


def spoken_ms(text: str, units_a_second: int = UNITS_A_SECOND) -> int:
    """Return how long it takes to say a text, where nothing says how long its audio is."""
    return (len(text) + 2 * len(SPACELESS.findall(text))) * 1000 // units_a_second


def bounded(text: str, max_bytes: int) -> str:
    """The beginning of a text, at most that many bytes of UTF-8: notes are small."""
    return text.encode()[:max_bytes].decode(errors="ignore")


class Playing(NamedTuple):
    """The playback of a reply by the clock: when its audio began, and the position at a time."""

    began: int
    position_ms: int
    total_ms: int

    @property
    def is_over(self) -> bool:
        return 0 < self.total_ms <= self.position_ms


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

    def playing_at(self, ts: int, units_a_second: int | None = None) -> Playing | None:
        """Return where its audio stood at a time; None where no audio was seen.

        With a rate of speech, replies without audio take as long as their texts do.
        """
        # It and those before it, back to one whose end is known, the newest first: when the audio of each came, how
        # long it is, and when the one before it ended, where anything but the clock says so.
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
        """Its position by the clock when the caller hung up; at 0 or less nothing was heard."""
        if position_ms > 0:
            return Tts(item=self.item, audio_ms=position_ms, estimated=True, ts=ts)
        return Interrupt(item=self.item, heard_text="", estimated=True, ts=ts)


class Known(Protocol):
    """The knowledge of `translate` and `closed`: the state before the frame, read only, and the dialect's own notes.

    Methods that return events make what every dialect does alike.
    """

    here: int
    """The turn of the newest utterance; 0 before any."""
    next_turn: int
    """The turn after the newest."""
    has_clock: bool
    """True if `ts` says when the frame was sent; without, no position may be estimated from it."""
    notes: Mapping[str, Any]
    """Values kept by `note`, the oldest first."""

    def is_answered(self, turn: int) -> bool:
        """Return whether a reply has begun in a turn, or a tool was called: what the user says then is another turn."""

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

    def text_of(self, item: str) -> str:
        """Return what the user has said in an item, or a reply says; nothing before it has begun."""
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
        """Note something under a key such as `c:NAME`; of those with the same prefix, the newest `most` are kept."""
        self.note(key, value)
        self.keep_newest(key[: key.index(":") + 1], most)

    def keep_newest(self, prefix: str, most: int) -> None:
        """Keep only the newest of the notes whose keys have this prefix."""
        self.forget(*[key for key in self.notes if key.startswith(prefix)][:-most])

    # Turns, and what the user says

    def utterance_turn(self) -> int:
        """The turn of a new utterance: the same while no reply to the one before has begun."""
        return self.here if self.here and not self.is_answered(self.here) else self.next_turn

    def turn_of_speech(self, item: str | None, new_turn: int | None = None) -> int | None:
        """The turn for an utterance, for a new one `new_turn` or the usual; None for one that has its turn already."""
        if item is not None and self.turn_of(item) is not None:
            return None
        return self.utterance_turn() if new_turn is None else new_turn

    def turn_of_answer(self, item: str) -> int | None:
        """The turn for the first event of a reply; None once it has begun."""
        return self.here if self.turn_of(item) is None else None

    def end_speech(self, item: str, ts: int) -> Made:
        """The user stopped speaking at a time, whenever the words come."""
        segment = self.segment(item)
        if segment is not None and not segment.final and segment.begun <= ts:
            yield Asr(item=item, text=segment.text, start_ms=0, end_ms=ts - segment.begun, ts=ts)

    def note_voice(self, speaks: bool, ts: int) -> None:
        """Note when the caller stopped speaking, by a stack that says so; forget it when they begin."""
        if self.has_clock:
            self.note("silent", None if speaks else ts)

    def said_by(self, at: int | None = None) -> int | None:
        """Return when the caller had said what came whole at a time: when they stopped, if that is known."""
        silent: int | None = self.notes.get("silent")
        return at if silent is None or (at is not None and at < silent) else silent

    # What an app gives a new connection: what was said before, in its order, and perhaps what is new

    def connect(self) -> Made:
        """Another connection: until someone speaks, texts that the app adds may be history."""
        yield from self.settle_given()
        self.forget("spoken")

    def give(self, text: str, item: str | None, ts: int) -> int | None:
        """Note a text of the user's, of which it is not known yet whether it is history; return its turn in the memory.

        Notes: `given` (the newest that nothing has answered), `found` (the place in the memory of the one before).
        """
        place = self.said_after(self.notes.get("found"), text)
        self.note("found", place or self.notes.get("found"))
        self.note("given", None if place else [bounded(text, MAX_NOTED), item, ts if self.has_clock else None])
        return place[0] if place else None

    def settle_given(self) -> Made:
        """The first speech or response over a connection: what was given last was said, if nothing has answered it."""
        if "spoken" not in self.notes:
            newest = self.notes.get("given")
            self.note_all(spoken=True, found=None, given=None)
            if newest is not None:
                text, item, ts = newest
                yield MessageEvent(role="user", text=text, source="message", item=item, ts=ts, turn_id=self.next_turn)

    # Replies

    def complete(self, item: str | None) -> Made:
        """A reply has all its words, if it has begun."""
        reply = self.reply(item)
        if reply is not None and not reply.complete:
            yield LlmDone(item=item)

    def interrupt_by_clock(self, item: str, ts: int, cause: str | None = None, where: Where | None = None) -> Made:
        """An interruption of a reply, where the clock says that it was; it marks nothing if the audio was over."""
        reply = self.reply(item)
        is_timed = reply is not None and self.has_clock and not reply.has_playback
        playing = self.where(reply, ts, where) if reply is not None and is_timed else None
        if playing is None and reply is not None and is_timed and reply.complete:
            spoken = reply.playing_at(ts, SLOWEST_UNITS_A_SECOND)
            playing = spoken if spoken is not None and spoken.is_over else None
        if playing is None:
            yield Interrupt(item=item, cause=cause)
        elif reply is not None and reply.complete and playing.is_over:
            # An end that playback reported, since a position that is stated later takes that back.
            yield Tts(item=item, done=True, estimated=True, ts=playing.began + playing.total_ms)
            yield Interrupt(item=item, cause=cause)
        else:
            yield Interrupt(item=item, audio_end_ms=playing.position_ms, estimated=True, cause=cause)

    def close_by_clock(self, ts: int, is_own: Callable[[str], bool], where: Where | None = None) -> Made:
        """Return where the clock says that the dialect's own replies stood when the caller hung up."""
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
"""Says where the audio of a reply stood at a time, for a dialect that knows more than the clock."""
Translate = Callable[[JsonObject, int, Known], Made]
"""A function that makes the events of a reduced frame, with its `ts`; also of frames of one type."""
