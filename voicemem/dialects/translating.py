"""Help for `translate`: turns, tools, notes, and transcripts that a stack sends again and again."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.dialects.known import Known, Made, Translate
from voicemem.protocol.events import LlmDone, SessionEnd, ToolCall, ToolResult

MAX_NOTED = 11_000
"""Bytes of texts that a dialect keeps in its notes, which are small: the older ones go."""


def utterance_turn(known: Known) -> int:
    """The turn of a new utterance: the same while no reply to the one before has begun."""
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def turn_of_speech(item: str | None, known: Known) -> int | None:
    """The turn for an utterance; None for one that has its turn already."""
    return None if item is not None and known.turn_of(item) is not None else utterance_turn(known)


def turn_of_answer(item: str, known: Known) -> int | None:
    """The turn for the first event of a reply; None once it has begun."""
    return known.here if known.turn_of(item) is None else None


def complete(item: str | None, known: Known) -> Made:
    """A reply has all its words, if it has begun."""
    reply = known.reply(item)
    if reply is not None and not reply.complete:
        yield LlmDone(item=item)


def space_between(before: str, text: str) -> str:
    """What stands between two texts of a reply, neither of which says so."""
    return " " if before and not before[-1].isspace() and not text[0].isspace() else ""


def end_with(field: str, usual: str) -> Translate:
    """The session ends, for a reason that the frame says or a usual one."""
    return lambda frame, ts, known: (SessionEnd(reason=frame.get(field, usual)),)


def tool_call(
    id: str, name: str, arguments: Any, turn_id: int | None, ts: int | None = None, item: str | None = None
) -> ToolCall:
    """A call of a tool, which counts once however often the stack reports it."""
    return ToolCall(id=f"call:{id}", call_id=id, name=name, arguments=arguments, turn_id=turn_id, ts=ts, item=item)


def tool_result(
    id: str, result: Any, turn_id: int | None, name: str | None = None, ts: int | None = None, item: str | None = None
) -> ToolResult:
    """The result of a call, which counts once too."""
    return ToolResult(id=f"result:{id}", call_id=id, result=result, name=name, turn_id=turn_id, ts=ts, item=item)


def note_newest(key: str, value: Any, most: int, known: Known) -> None:
    """Note something under a key such as `c:NAME`; of those with the same prefix, the newest `most` are kept."""
    prefix = key[: key.index(":") + 1]
    others = [one for one in known.notes if one.startswith(prefix) and one != key]
    for old in others[: max(0, len(others) + 1 - most)]:
        known.note(old, None)
    known.note(key, value)


# Transcripts that are sent whole, again and again


class Flow:
    """Where in the call a frame's parts stand, and what it has begun: one utterance and one reply at most.

    The fold sees the events of a frame only afterwards. Notes: `at`, the turn that the transcript has reached.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.here: int = known.notes.get("at", 0)
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


def plain(text: str) -> str:
    """A text with single spaces."""
    return " ".join(text.split())


def begins(text: str, beginning: str) -> bool:
    """Return whether a text begins so; white space counts as runs."""
    return plain(text).startswith(plain(beginning))


def completed(heard: str, full: str) -> str:
    """A text as it was heard, and what of the full text comes after it; only the first, where the full one is other."""
    return heard + plain(full)[len(plain(heard)) :] if begins(full, heard) else heard


def bounded(text: str, max_bytes: int) -> str:
    """The beginning of a text, in so many bytes of UTF-8: notes are small."""
    return text.encode()[:max_bytes].decode(errors="ignore")


def newest_noted(noted: list[Any], count: int) -> list[Any]:
    """The newest few of what is noted, as far as they fit; always the newest."""
    kept, size = noted[-count:], 0
    for place in range(len(kept) - 1, -1, -1):
        size += len(msgspec.json.encode(kept[place]))
        if size > MAX_NOTED:
            return kept[min(place + 1, len(kept) - 1) :]
    return kept
