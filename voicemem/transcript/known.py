"""What a dialect may know of a call when it translates a frame: the fold's state, read only, and its own notes."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping
from typing import Any, Literal

import msgspec

from voicemem.dialects.dialect import Known, KnownReply, KnownSegment
from voicemem.transcript.replies.evidence import KINDS, Source
from voicemem.transcript.replies.interruptions import largest_total, timelines
from voicemem.transcript.replies.playing import settle
from voicemem.transcript.replies.sources import sources_of, standing_keys
from voicemem.transcript.speech import speech_index
from voicemem.transcript.state import Notes, Reply, State

MAX_NOTES_BYTES = 16 * 1024
"""Of one dialect in one session, as JSON."""
NO_NOTES = Notes()


class FoldReply(KnownReply):
    """A reply of the fold, as a dialect sees it."""

    def __init__(self, state: State, reply: Reply) -> None:
        self.state = state
        self.reply = reply

    @property
    def item(self) -> str | None:
        return self.reply.item

    @property
    def turn(self) -> int:
        return self.reply.turn

    @property
    def text(self) -> str:
        return self.reply.generation.text()

    @property
    def complete(self) -> bool:
        return self.reply.generation.complete

    @property
    def begun(self) -> int:
        return self.reply.begin

    @property
    def sources(self) -> list[Source]:
        return sources_of(self.state, self.reply)

    @property
    def total_audio_ms(self) -> int | None:
        total = largest_total(self.sources)
        return None if total is None else total[0].value

    @property
    def audio_began(self) -> int | None:
        found = []
        for source in self.sources:
            for series in timelines(source, "totals"):
                first = series.first(source.until, source.since)
                playback = source.evidence.playback
                assert playback is not None
                if first is not None and first.order not in (playback.undated or ()):
                    found.append(first.ts)
        return min(found, default=None)

    @property
    def cut(self) -> Literal["no", "estimated", "exact"]:
        settle(self.state)
        if self.reply.cut_ts is None:
            return "no"
        return "exact" if any(source.stating(kind) for source in self.sources for kind in KINDS) else "estimated"

    @property
    def heard(self) -> bool:
        settle(self.state)
        return self.reply.heard_ts is not None

    @property
    def ended(self) -> int | None:
        settle(self.state)
        known = [ts for ts in (self.reply.cut_ts, self.reply.heard_ts) if ts is not None]
        return min(known, default=None)

    @property
    def has_playback(self) -> bool:
        sources = self.sources
        return any(series.last(one.until, one.since) for one in sources for series in timelines(one, "audio", "texts"))

    @property
    def before(self) -> FoldReply | None:
        keys = standing_keys(self.state)
        place = bisect_left(keys, self.reply.key)
        return FoldReply(self.state, self.state.replies[keys[place - 1][2]]) if place else None


class NotesView(Mapping[str, Any]):
    """What was noted before, with what this frame notes: None for what it forgets."""

    def __init__(self, before: Mapping[str, Any], noted: Mapping[str, Any]) -> None:
        self.before = before
        self.noted = noted

    def __getitem__(self, key: str) -> Any:
        if key not in self.noted:
            return self.before[key]
        value = self.noted[key]
        if value is None:
            raise KeyError(key)
        return value

    def __iter__(self) -> Iterator[str]:
        yield from (key for key in self.before if key not in self.noted)
        yield from (key for key, value in self.noted.items() if value is not None)

    def __len__(self) -> int:
        return sum(1 for _ in self)


class FoldKnown(Known):
    """The state of the fold before a frame. What is noted is kept only by `keep_notes`."""

    def __init__(self, state: State, dialect: str, has_clock: bool) -> None:
        self.state = state
        self.dialect = dialect
        self.clock = has_clock
        self.known_notes: Notes = state.notes.get(dialect, NO_NOTES)
        self.noted: dict[str, Any] = {}
        """What this frame notes: None for what it forgets."""

    @property
    def here(self) -> int:
        return self.state.utterance_turn

    @property
    def next_turn(self) -> int:
        return self.state.newest_turn + 1

    def is_answered(self, turn: int) -> bool:
        known = self.state.turns.get(turn)
        return known is not None and known.standing > 0

    @property
    def has_clock(self) -> bool:
        return self.clock

    @property
    def notes(self) -> Mapping[str, Any]:
        return NotesView(self.known_notes.values, self.noted) if self.noted else self.known_notes.values

    def note(self, key: str, value: Any) -> None:
        self.noted.pop(key, None)
        self.noted[key] = value

    def keep_notes(self) -> None:
        """Put what was noted into the state; of too much, the oldest goes."""
        if not self.noted:
            return
        notes = self.state.notes.get(self.dialect)
        if notes is None:
            notes = self.state.notes[self.dialect] = Notes()
        for key, value in self.noted.items():
            if key in notes.values:
                notes.size -= size_of(key, notes.values.pop(key))
            if value is not None:
                notes.values[key] = value
                notes.size += size_of(key, value)
        while notes.size > MAX_NOTES_BYTES:
            oldest = next(iter(notes.values))
            notes.size -= size_of(oldest, notes.values.pop(oldest))

    def turn_of(self, item: str) -> int | None:
        return self.state.items.get(item)

    def segment(self, item: str) -> KnownSegment | None:
        number = self.state.items.get(item)
        turn = None if number is None else self.state.turns.get(number)
        if turn is None or not turn.segments:
            return None
        found = speech_index(self.state, turn).find((item, 0), None)
        return None if found is None else KnownSegment(found.text, found.final)

    def reply(self, item: str) -> FoldReply | None:
        id = self.state.item_replies.get(item)
        return None if id is None else FoldReply(self.state, self.state.replies[id])

    def open_replies(self) -> Iterator[FoldReply]:
        settle(self.state)
        for key in reversed(self.state.unheard.copy()):
            yield FoldReply(self.state, self.state.replies[key[2]])


def size_of(key: str, value: Any) -> int:
    """The bytes of one note as JSON."""
    return len(msgspec.json.encode((key, value)))
