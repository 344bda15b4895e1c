"""Help for `translate`: turns, tools, notes, transcripts that a stack sends again and again, and the clock rule.

The clock is for stacks that do not report playback: a reply's audio begins when its first audio comes, or when the
reply before it has ended, and stands still while nothing that has come is left to play. Of a reply without any audio
nothing was heard, where the one before it had some. What follows is marked as an estimate, and a stated position counts
more (docs/dialects.md).
"""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import structs

from voicemem.dialects.known import Known, KnownReply, Made, MadeEvent, Translate
from voicemem.protocol.events import (
    Asr,
    Interrupt,
    LlmDone,
    MessageEvent,
    Metric,
    SessionEnd,
    ToolCall,
    ToolResult,
    Tts,
    Word,
)
from voicemem.protocol.types import MAX_INTEGER, SPACELESS, JsonObject

MAX_QUEUE = 20
"""Replies that may wait for each other to be played."""

UNITS_A_SECOND = 15
"""How fast a voice speaks where nothing says so, as measured (fixtures/truth/README.md).

A character of a script without spaces counts three."""
SLOWEST_UNITS_A_SECOND = 10
"""How fast the slowest of the voices speaks that were measured: a text that takes longer is over for any."""


class Playing(NamedTuple):
    """The playback of a reply by the clock: when its audio began, and the position at a time."""

    began: int
    position_ms: int
    total_ms: int

    @property
    def is_over(self) -> bool:
        return 0 < self.total_ms <= self.position_ms


def playing_at(reply: KnownReply, ts: int, units_a_second: int | None = None) -> Playing | None:
    """Return where the audio of a reply stood at a time; None where no audio was seen.

    With a rate of speech, replies without audio take as long as their texts do.
    """
    # It and those before it, back to one whose end is known, the newest first: when the audio of each came, how long
    # it is, and when the one before it ended, where anything but the clock says so.
    queue: list[tuple[int, int, int]] = []
    at: KnownReply | None = reply
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
        has_audio = reply.before is not None and reply.before.total_audio_ms is not None
        return Playing(ts, 0, 0) if has_audio and reply.total_audio_ms is None else None
    free_at, start, length_ms = queue[-1][2], 0, 0
    for came, length_ms, _ in reversed(queue):
        start = max(came, free_at)
        free_at = start + length_ms
    return Playing(start, max(0, min(ts - start, length_ms)), length_ms)


Where = Callable[[KnownReply, int], Playing | None]
"""Says where the audio of a reply stood at a time."""


def interrupt_by_clock(
    known: Known, item: str, ts: int, cause: str | None = None, where: Where = playing_at
) -> Iterator[MadeEvent]:
    """An interruption of a reply, where the clock says that it was; it marks nothing if the audio was over by then."""
    reply = known.reply(item)
    is_timed = reply is not None and known.has_clock and not reply.has_playback
    playing = where(reply, ts) if reply is not None and is_timed else None
    if playing is None and reply is not None and is_timed and reply.complete:
        spoken = playing_at(reply, ts, SLOWEST_UNITS_A_SECOND)
        playing = spoken if spoken is not None and spoken.is_over else None
    if playing is None:
        yield Interrupt(item=item, cause=cause)
    elif reply is not None and reply.complete and playing.is_over:
        # An end that playback reported, since a position that is stated later takes that back.
        yield Tts(item=item, done=True, estimated=True, ts=playing.began + playing.total_ms)
        yield Interrupt(item=item, cause=cause)
    else:
        yield Interrupt(item=item, audio_end_ms=playing.position_ms, estimated=True, cause=cause)


def close_by_clock(
    known: Known, ts: int, is_own: Callable[[str], bool], where: Where = playing_at
) -> Iterator[MadeEvent]:
    """Return where the clock says that the dialect's own replies stood when the caller hung up."""
    for reply in known.open_replies():
        if reply.item is None or reply.has_playback or not is_own(reply.item):
            continue
        playing = where(reply, ts)
        if playing is None or (not playing.total_ms and reply.turn < known.here):
            continue
        if (reply.complete or reply.total_audio_ms is None) and playing.is_over:
            yield Tts(item=reply.item, done=True, estimated=True, ts=playing.began + playing.total_ms)
        else:
            yield stopped_at(reply.item, playing.position_ms, ts)


def spoken_ms(text: str, units_a_second: int = UNITS_A_SECOND) -> int:
    """Return how long it takes to say a text, where nothing says how long its audio is."""
    return (len(text) + 2 * len(SPACELESS.findall(text))) * 1000 // units_a_second


def stopped_at(item: str | None, position_ms: int, ts: int) -> MadeEvent:
    """The position of a reply by the clock when the caller hung up; at 0 or less nothing was heard."""
    if position_ms > 0:
        return Tts(item=item, audio_ms=position_ms, estimated=True, ts=ts)
    return Interrupt(item=item, heard_text="", estimated=True, ts=ts)


MAX_NOTED = 11_000
"""Bytes of texts that a dialect keeps in its notes, which are small: the older ones go."""


def utterance_turn(known: Known) -> int:
    """The turn of a new utterance: the same while no reply to the one before has begun."""
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def turn_of_speech(item: str | None, known: Known, new_turn: Callable[[Known], int] = utterance_turn) -> int | None:
    """The turn for an utterance, for a new one that of `new_turn`; None for one that has its turn already."""
    return None if item is not None and known.turn_of(item) is not None else new_turn(known)


def end_speech(item: str, ts: int, known: Known) -> Made:
    """The user stopped speaking at a time, whenever the words come."""
    segment = known.segment(item)
    if segment is not None and not segment.final and segment.begun <= ts:
        yield Asr(item=item, text=segment.text, start_ms=0, end_ms=ts - segment.begun, ts=ts)


def note_voice(speaks: bool, ts: int, known: Known) -> None:
    """Note when the caller stopped speaking, by a stack that says so whatever they say; forget it when they begin."""
    if known.has_clock:
        known.note("silent", None if speaks else ts)


def said_by(known: Known, at: int | None = None) -> int | None:
    """Return when the caller had said what came whole at a time: when they stopped, if that is known."""
    silent: int | None = known.notes.get("silent")
    return at if silent is None or (at is not None and at < silent) else silent


def said_until(said: Asr, end: int | None) -> Iterator[Asr]:
    """The events of speech from the stated time of `said` until another: the words, and the same when they end.

    The words come first: a request that brought them may have them already, and no turn begins for them then. Where no
    end is stated, it is as late as it takes to say them.
    """
    yield said
    if said.ts is not None and end is None and said.final:
        end = said.ts + spoken_ms(said.text)
    if said.ts is not None and end is not None and end > said.ts:
        yield structs.replace(said, ts=end, turn_id=None)


def begin_voice(item: str, ts: int | None) -> Iterator[Tts]:
    """The audio of a reply begins at a time, if one is stated; how long it is comes later, or never."""
    if ts is not None:
        yield Tts(item=item, total_audio_ms=0, ts=ts)


def turn_of_answer(item: str, known: Known) -> int | None:
    """The turn for the first event of a reply; None once it has begun."""
    return known.here if known.turn_of(item) is None else None


def complete(item: str | None, known: Known) -> Made:
    """A reply has all its words, if it has begun."""
    reply = known.reply(item)
    if reply is not None and not reply.complete:
        yield LlmDone(item=item)


def space_between(before: str, text: str) -> str:
    """Return the text between two texts, neither of which says so; nothing in a script without spaces."""
    if not before or before[-1].isspace() or text[:1].isspace():
        return ""
    return "" if SPACELESS.match(before[-1]) and SPACELESS.match(text) else " "


FEW_LETTERS = 6
"""So many of a script without spaces are more than a word, which may well be said twice."""


def grown(before: str, text: str) -> str | None:
    """A text that has come again, as it was or with more; None if this piece only continues what came before."""
    said, again = before.strip(), text.lstrip()
    has_words = len(said.split()) > 1 or len(SPACELESS.findall(said)) >= FEW_LETTERS
    return again if again.startswith(said) and has_words else None


# What an app gives a new connection: what was said before, in the order in which it was, and perhaps what is new


def give(text: str, item: str | None, ts: int, known: Known) -> int | None:
    """Note a text of the user's, of which it is not known yet whether it is history; return its turn in the memory.

    Notes: `given` (the newest that nothing has answered), `found` (the place in the memory of the one before).
    """
    place = known.said_after(known.notes.get("found"), text)
    known.note("found", place or known.notes.get("found"))
    known.note("given", None if place else [bounded(text, MAX_NOTED), item, ts if known.has_clock else None])
    return place[0] if place else None


def settle_given(known: Known) -> Made:
    """The first speech or response over a connection: what was given last was said, if nothing has answered it."""
    if "spoken" not in known.notes:
        known.note("spoken", True)
        known.note("found", None)
        newest = known.notes.get("given")
        known.note("given", None)
        if newest is not None:
            text, item, ts = newest
            yield MessageEvent(role="user", text=text, source="message", item=item, ts=ts, turn_id=known.next_turn)


def connect(known: Known) -> Made:
    """Another connection: until someone speaks, texts that the app adds may be history."""
    yield from settle_given(known)
    known.note("spoken", None)


def pressed(keys: str, turn: int, **about: Any) -> MessageEvent:
    """Keys of a telephone that the user has pressed; those of a turn may come one by one."""
    return MessageEvent(role="user", text=keys, source="message", metadata={"dtmf": True}, turn_id=turn, **about)


def end_with(field: str, usual: str) -> Translate:
    """The session ends, for a reason that the frame says or a usual one."""
    return lambda frame, ts, known: (SessionEnd(reason=frame.get(field, usual)),)


def tool_call(
    id: str | None, name: str, arguments: Any, turn_id: int | None, ts: int | None = None, item: str | None = None
) -> ToolCall:
    """A call of a tool, which counts once however often it is reported; without an id its name stands for it."""
    own, call_id = f"call:{id}" if id else None, id or f"~{name}"
    return ToolCall(id=own, call_id=call_id, name=name, arguments=arguments, turn_id=turn_id, ts=ts, item=item)


def tool_result(
    id: str | None,
    result: Any,
    turn_id: int | None,
    name: str | None = None,
    ts: int | None = None,
    item: str | None = None,
) -> ToolResult:
    """The result of a call, likewise."""
    own, call_id = f"result:{id}" if id else None, id or f"~{name}"
    return ToolResult(id=own, call_id=call_id, result=result, name=name, turn_id=turn_id, ts=ts, item=item)


def latencies(
    measured: JsonObject, names: Mapping[str, str], turn_id: int | None, ts: int | None, unit_ms: int = 1
) -> Iterator[Metric]:
    """The latencies of a turn that a stack measured, by its names of them and ours."""
    for field, name in names.items():
        value = measured.get(field)
        if value is not None and 0 <= value * unit_ms <= MAX_INTEGER:
            yield Metric(name=name, latency_ms=round(value * unit_ms), turn_id=turn_id, ts=ts)


def timed_words(text: str, times: Sequence[tuple[int, int]]) -> tuple[Word, ...] | None:
    """The words of a text with their starts and ends, from the first one's start on; None unless all are timed."""
    texts = text.split()
    if not times or len(times) != len(texts):
        return None
    return words_since(times[0][0], ((text, *span) for text, span in zip(texts, times, strict=True)))


def words_since(zero: int, timed: Iterable[tuple[str, int, int]]) -> tuple[Word, ...]:
    """Words with their starts and ends, which count from a given time."""
    return tuple(Word(text, max(0, begin - zero), max(0, begin - zero, end - zero)) for text, begin, end in timed)


def note_newest(key: str, value: Any, most: int, known: Known) -> None:
    """Note something under a key such as `c:NAME`; of those with the same prefix, the newest `most` are kept."""
    known.note(key, value)
    keep_newest(key[: key.index(":") + 1], most, known)


def keep_newest(prefix: str, most: int, known: Known) -> None:
    """Keep only the newest of the notes whose keys have this prefix."""
    for old in [key for key in known.notes if key.startswith(prefix)][:-most]:
        known.note(old, None)


# Transcripts that are sent whole, again and again


class Flow:
    """The place of a frame's parts in the call, and what it has begun: one utterance and one reply at most.

    The fold sees the events of a frame only afterwards, and may know the words from elsewhere, in another turn. Notes:
    `at`, the turn that the transcript has reached; `begun`, the turn and the item of its newest utterance.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.here: int = known.notes.get("at", 0)
        turn, item = known.notes.get("begun", (0, ""))
        if turn == self.here and known.turn_of(item) not in (None, turn):
            self.here = known.turn_of(item) or 0
            known.note("at", self.here)
        self.newest = known.next_turn - 1
        self.answered: set[int] = set()
        self.has_utterance = False
        self.has_reply = False

    def utterance(self, item: str, new_turn: Callable[[], int] | None = None) -> int | None:
        """The turn of an utterance, for a new one that of `new_turn`; None if the frame may begin no other."""
        turn = self.known.turn_of(item)
        if turn is None:
            if self.has_utterance:
                return None
            self.has_utterance = True
            turn = (new_turn or self.next_turn)()
            self.known.note("begun", [turn, item])
        self.reach(turn)
        return turn

    def next_turn(self) -> int:
        """A new turn, if the one before has an answer."""
        return self.here if self.here and not self.is_answered(self.here) else self.newest + 1

    def reach(self, turn: int) -> None:
        self.newest = max(self.newest, turn)
        if turn > self.here:
            self.here = turn
            self.known.note("at", turn)

    def is_answered(self, turn: int) -> bool:
        return turn in self.answered or self.known.is_answered(turn)

    def reply(self, item: str) -> int | None:
        """The turn of a reply; None if the frame may begin no other."""
        reply = self.known.reply(item)
        if reply is None:
            if self.has_reply:
                return None
            self.has_reply = True
        turn = self.here if reply is None else reply.turn
        self.answered.add(turn)
        return turn


WORDS, NOT_SPACE = re.compile(r"\S+"), re.compile(r"\S")


def plain(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


def end_of_beginning(text: str, beginning: str) -> int | None:
    """Return where a text continues after its beginning; None where it begins otherwise. White space counts as runs.

    It costs what the shorter of the two does: small frames come again and again about a long text.
    """
    if text.startswith(beginning):
        return len(beginning)
    place, least = 0, 0
    for word in WORDS.finditer(beginning):
        next_word = NOT_SPACE.search(text, place)
        if next_word is None or next_word.start() < place + least or not text.startswith(word[0], next_word.start()):
            return None
        place, least = next_word.start() + len(word[0]), 1
    return place


def begins(text: str, beginning: str) -> bool:
    return end_of_beginning(text, beginning) is not None


def completed(heard: str, full: str) -> str:
    """A text as it was heard, and what of the full text comes after it; only the first, where the full one is other."""
    end = end_of_beginning(full, heard)
    return heard if end is None else heard + full[end:].rstrip()


def bounded(text: str, max_bytes: int) -> str:
    """The beginning of a text, at most that many bytes of UTF-8: notes are small."""
    return text.encode()[:max_bytes].decode(errors="ignore")


def newest_noted(noted: list[Any], count: int) -> list[Any]:
    """The newest few of what is noted, as far as they fit; always the newest."""
    kept = noted[-count:]
    while len(kept) > 1 and len(msgspec.json.encode(kept)) > MAX_NOTED:
        del kept[0]
    return kept
