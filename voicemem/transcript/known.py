"""The fold's state as dialects may read it when they translate frames, and each dialect's own notes."""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence
from typing import Any, Literal

import msgspec

from voicemem.dialects.known import Known, KnownReply, KnownSegment
from voicemem.transcript.replies.evidence import KINDS, Source, first_entries, largest_total, last_entries
from voicemem.transcript.replies.playing import settle, sources_of, standing_keys
from voicemem.transcript.speech import speech_index
from voicemem.transcript.state import Notes, Reply, Segment, State, TypedMessage

MAX_NOTES_BYTES = 16 * 1024
"""The most bytes of one dialect's notes in one session, as JSON."""
NO_NOTES = Notes()
RECENT_TURNS = 200
"""The newest turns, which are searched for a text that an app gives as history."""
RECENT_CHARACTERS, FEWEST = 64 * 1024, 100
"""The most characters of them that are searched, and the least that a text counts."""


class FoldReply(KnownReply):
    """A reply of the fold, as a dialect sees it."""

    def __init__(self, known: FoldKnown, reply: Reply) -> None:
        self.known = known
        self.state = known.state
        self.reply = reply
        self.item, self.turn, self.begun = known.state.other_items.get(reply.id, reply.item), reply.turn, reply.begin
        self.complete = reply.generation.complete
        self.generated: str | None = None
        self.known_sources: list[Source] | None = None

    @property
    def text(self) -> str:
        if self.generated is None:
            self.generated = self.reply.generation.text()
        return self.generated

    @property
    def length(self) -> int:
        return self.reply.generation.length()

    @property
    def sources(self) -> list[Source]:
        if self.known_sources is None:
            self.known_sources = sources_of(self.state, self.reply)
        return self.known_sources

    @property
    def total_audio_ms(self) -> int | None:
        total = largest_total(self.sources)
        return None if total is None else total[0].value

    @property
    def audio_came(self) -> int | None:
        return min((first.ts for first in first_entries(self.sources, "totals")), default=None)

    @property
    def audio_start(self) -> int | None:
        playbacks = (source.evidence.playback for source in self.sources)
        starts = (one.audio_start for one in playbacks if one is not None and one.audio_start is not None)
        return max(starts, default=None)

    @property
    def cut(self) -> Literal["no", "estimated", "exact"]:
        if not any(source.evidence.interruptions for source in self.sources):  # as for most replies
            return "no"
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
        cut_ts, heard_ts = self.reply.cut_ts, self.reply.heard_ts
        return cut_ts if heard_ts is None or (cut_ts is not None and cut_ts < heard_ts) else heard_ts

    @property
    def has_playback(self) -> bool:
        return any(last_entries(self.sources, "audio", "texts"))

    @property
    def before(self) -> FoldReply | None:
        keys = standing_keys(self.state)
        place = bisect_left(keys, self.reply.key)
        return self.known.reply_of(keys[place - 1][2]) if place else None


class FoldKnown(Known):
    """The state of the fold before a frame. Only `keep_notes` writes notes to it."""

    def __init__(self, state: State, dialect: str, has_clock: bool) -> None:
        self.state = state
        self.dialect = dialect
        self.has_clock = has_clock
        self.here, self.next_turn = state.utterance_turn, state.newest_turn + 1
        self.noted: dict[str, None] = {}
        """The keys of the notes that this frame has changed."""
        self.notes: dict[str, Any] = state.notes.get(dialect, NO_NOTES).values
        """The dialect's notes with these changes: a copy, once there are any."""
        self.seen: dict[int, FoldReply] = {}
        """The replies requested so far, since the state does not change while a frame is translated."""
        self.said: dict[int, dict[str, list[int]]] | None = None
        """What the user said in the newest turns (`said_recently`), once requested."""

    def is_answered(self, turn: int) -> bool:
        known = self.state.turns.get(turn)
        return known is not None and (known.standing > 0 or bool(known.tool_calls))

    def note(self, key: str, value: Any) -> None:
        if value is None and key not in self.notes:
            return
        if not self.noted:
            self.notes = self.notes.copy()
        self.noted[key] = None
        self.notes.pop(key, None)
        if value is not None:
            self.notes[key] = value

    def keep_notes(self) -> None:
        """Write the notes to the state; if they are too large, the oldest are dropped."""
        if not self.noted:
            return
        notes = self.state.notes.setdefault(self.dialect, Notes())
        notes.values = self.notes
        for key in self.noted:
            notes.size -= notes.sizes.pop(key, 0)
            if key in notes.values:
                notes.sizes[key] = len(msgspec.json.encode((key, notes.values[key])))
                notes.size += notes.sizes[key]
        while notes.size > MAX_NOTES_BYTES:
            oldest = next(iter(notes.values))
            del notes.values[oldest]
            notes.size -= notes.sizes.pop(oldest)

    def turn_of(self, item: str) -> int | None:
        return self.state.items.get(item)

    def said_after(self, place: Sequence[int] | None, text: str) -> list[int] | None:
        if self.said is None:
            self.said = said_recently(self.state)
        plain, (turn, order) = " ".join(text.split()), (-1, 0) if place is None else (place[0], place[1])
        for number, texts in sorted(self.said.items()):
            orders = texts.get(plain, [])
            index = bisect_right(orders, order) if number == turn else 0
            if number >= turn and index < len(orders):
                return [number, orders[index]]
        return None

    def segment(self, item: str | None) -> KnownSegment | None:
        number = None if item is None else self.state.items.get(item)
        turn = None if number is None else self.state.turns.get(number)
        if item is None or turn is None or not turn.segments:
            return None
        segment = speech_index(self.state, turn).find((item, 0), None)
        return (
            None
            if segment is None
            else KnownSegment(segment.text, segment.final, segment.begin, segment.end_ms is not None)
        )

    def reply(self, item: str | None) -> FoldReply | None:
        id = None if item is None else self.state.item_replies.get(item, self.state.counterparts.get(item))
        return None if id is None else self.reply_of(id)

    def reply_of(self, id: int) -> FoldReply:
        reply = self.seen.get(id)
        if reply is None:
            reply = self.seen[id] = FoldReply(self, self.state.replies[id])
        return reply

    @property
    def newest_reply(self) -> FoldReply | None:
        keys = standing_keys(self.state)
        return self.reply_of(keys[-1][2]) if keys else None

    def open_replies(self) -> Iterator[FoldReply]:
        settle(self.state)
        for key in reversed(self.state.unheard):
            yield self.reply_of(key[2])


def said_recently(state: State) -> dict[int, dict[str, list[int]]]:
    """Return the user's texts by turn, and each turn's speech as one text, with the positions at which each began.

    Only the newest `RECENT_CHARACTERS` are included, since each text that an app gives is searched for in all of them.
    """
    recent, room = dict[int, dict[str, list[int]]](), RECENT_CHARACTERS
    for number in reversed(state.turn_numbers[-RECENT_TURNS:]):
        turn, positions = state.turns[number], dict[str, list[int]]()
        typed, room = newest_texts(turn.typed or (), room)
        spoken, room = newest_texts(turn.segments or (), room)
        whole = [(spoken[-1][0], " ".join(text for _, text in spoken))] if len(spoken) > 1 else []
        for order, text in sorted(spoken + whole + typed):
            positions.setdefault(" ".join(text.split()), []).append(order)
        recent[number] = positions
        if room < 0:
            break
    return recent


def newest_texts(parts: Sequence[Segment | TypedMessage], room: int) -> tuple[list[tuple[int, str]], int]:
    """Return the newest texts that fit, the oldest first, with their positions; and the remaining room."""
    texts = list[tuple[int, str]]()
    for one in reversed(parts):
        room -= max(FEWEST, len(one.text))
        if room < 0:
            break
        if one.text:
            texts.append((one.order, one.text))
    return texts[::-1], room
