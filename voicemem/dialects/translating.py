"""Helpers for `translate` besides `Known`: tools, words, latencies, and transcripts that are sent repeatedly."""

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec
from msgspec import structs

from voicemem.dialects.known import MAX_NOTED, Known, Translate, spoken_ms
from voicemem.protocol.events import Asr, MessageEvent, Metric, SessionEnd, ToolCall, ToolResult, Tts, Word
from voicemem.protocol.types import MAX_INTEGER, SPACELESS, JsonObject


def said_until(said: Asr, end: int | None) -> Iterator[Asr]:
    """Yield the events of speech from the time of `said` until `end`: the words, and again at their end.

    The words come first: if a request has already brought them, they begin no turn. Without an end, it is estimated
    from the length of the words.
    """
    yield said
    if said.ts is not None and end is None and said.final:
        end = said.ts + spoken_ms(said.text)
    if said.ts is not None and end is not None and end > said.ts:
        yield structs.replace(said, ts=end, turn_id=None)


def begin_voice(item: str, ts: int | None) -> Iterator[Tts]:
    """Yield the start of a reply's audio, if its time is known; the length comes later, or never."""
    if ts is not None:
        yield Tts(item=item, total_audio_ms=0, ts=ts)


def space_between(before: str, text: str) -> str:
    """Return the space between two texts without one of their own; empty in a script without spaces."""
    if not before or before[-1].isspace() or text[:1].isspace():
        return ""
    return "" if SPACELESS.match(before[-1]) and SPACELESS.match(text) else " "


FEW_LETTERS = 6
"""This many letters of a script without spaces are more than one word, which may well be said twice."""


def grown(before: str, text: str) -> str | None:
    """Return a text that repeats `before`, perhaps with more; None if it only continues it."""
    said, again = before.strip(), text.lstrip()
    has_words = len(said.split()) > 1 or len(SPACELESS.findall(said)) >= FEW_LETTERS
    return again if again.startswith(said) and has_words else None


def pressed(keys: str, turn: int, **about: Any) -> MessageEvent:
    """Return the message of telephone keys that the user pressed; a turn's keys may come one by one."""
    return MessageEvent(role="user", text=keys, source="message", metadata={"dtmf": True}, turn_id=turn, **about)


def end_with(field: str, usual: str) -> Translate:
    """Return a rule that ends the session, with the frame's reason or the usual one."""
    return lambda frame, ts, known: (SessionEnd(reason=frame.get(field, usual)),)


def tool_call(
    id: str | None, name: str, arguments: Any, turn_id: int | None, ts: int | None = None, item: str | None = None
) -> ToolCall:
    """Return a tool call, which counts once however often it is reported; without an id, its name is its id."""
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
    """Return the result of a tool call, likewise."""
    own, call_id = f"result:{id}" if id else None, id or f"~{name}"
    return ToolResult(id=own, call_id=call_id, result=result, name=name, turn_id=turn_id, ts=ts, item=item)


def latencies(
    measured: JsonObject, names: Mapping[str, str], turn_id: int | None, ts: int | None, unit_ms: int = 1
) -> Iterator[Metric]:
    """Yield the latencies of a turn that a stack measured; `names` has its names and ours."""
    for field, name in names.items():
        value = measured.get(field)
        if value is not None and 0 <= value * unit_ms <= MAX_INTEGER:
            yield Metric(name=name, latency_ms=round(value * unit_ms), turn_id=turn_id, ts=ts)


def timed_words(text: str, times: Sequence[tuple[int, int]]) -> tuple[Word, ...] | None:
    """Return the words of a text with their times from the first one's start; None unless all are timed."""
    texts = text.split()
    if not times or len(times) != len(texts):
        return None
    return words_since(times[0][0], ((text, *span) for text, span in zip(texts, times, strict=True)))


def words_since(zero: int, timed: Iterable[tuple[str, int, int]]) -> tuple[Word, ...]:
    """Return words with their times counted from `zero`."""
    return tuple(Word(text, max(0, begin - zero), max(0, begin - zero, end - zero)) for text, begin, end in timed)


# Transcripts that are sent whole, repeatedly


class TurnTracker:
    """The turns of a frame's parts; a frame begins one utterance and one reply at most.

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
        """Return the turn of an utterance, `new_turn()` for a new one; None if the frame has already begun one."""
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
        """Return a new turn if the current one has an answer, else the current one."""
        return self.here if self.here and not self.is_answered(self.here) else self.newest + 1

    def reach(self, turn: int) -> None:
        self.newest = max(self.newest, turn)
        if turn > self.here:
            self.here = turn
            self.known.note("at", turn)

    def is_answered(self, turn: int) -> bool:
        return turn in self.answered or self.known.is_answered(turn)

    def reply(self, item: str) -> int | None:
        """Return the turn of a reply; None if the frame has already begun one."""
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
    """Return a text with single spaces."""
    return " ".join(text.split())


def end_of_beginning(text: str, beginning: str) -> int | None:
    """Return where a text continues after `beginning`; None if it begins otherwise. All white space is equal.

    The cost is that of the shorter text, because small frames often update a long text.
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
    """Return a heard text with the rest of the full text; only the heard text if the full one begins otherwise."""
    end = end_of_beginning(full, heard)
    return heard if end is None else heard + full[end:].rstrip()


def newest_noted(noted: list[Any], count: int) -> list[Any]:
    """Return the newest `count` notes, fewer if they are too large, but always the newest."""
    kept = noted[-count:]
    while len(kept) > 1 and len(msgspec.json.encode(kept)) > MAX_NOTED:
        del kept[0]
    return kept
