"""Whose turn it is while a history is gone through, message by message: the fold sees its events only afterwards."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Known
from voicemem.dialects.vapi.wording import is_similar

MAX_LIVE = 40
"""Turns of live transcripts that are looked through for one that a message of the history repeats."""


def live_utterance(turn: int) -> str:
    """The item of what live transcripts say that the user said in a turn."""
    return f"~u{turn}"


def live_reply(turn: int) -> str:
    """The item of what live messages say that the agent said in a turn."""
    return f"~a{turn}"


def live_text(turn: int, known: Known) -> str:
    segment = known.segment(live_utterance(turn))
    return "" if segment is None else segment.text


def live_turn(known: Known) -> int:
    """The turn of what the user says now."""
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def live_turns(known: Known) -> Iterator[int]:
    """The newest turns that no message of the history has reached."""
    first = max(known.notes.get("at", 0) + 1, known.next_turn - MAX_LIVE)
    return iter(range(first, known.next_turn))


class Flow:
    """Where in the call a frame's messages stand, and what it has begun: one utterance and one reply at most.

    Notes: `at`, the turn that the history has reached.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.here: int = known.notes.get("at", 0)
        self.newest = known.next_turn - 1
        self.answered: set[int] = set()
        self.has_utterance = False
        self.has_reply = False

    def utterance(self, item: str, text: str, reported: bool) -> int | None:
        """The turn of an utterance; None if the frame may begin no other."""
        turn = self.known.turn_of(item)
        if turn is None:
            if self.has_utterance:
                return None
            self.has_utterance = True
            turn = self.new_turn(text, reported)
        self.reach(turn)
        return turn

    def new_turn(self, text: str, reported: bool) -> int:
        """That of the live transcript that it repeats; else a new one, if the one before has an answer."""
        said = {turn: live for turn in live_turns(self.known) if (live := live_text(turn, self.known))}
        repeated = next((turn for turn, live in said.items() if is_similar(live, text)), None)
        if repeated is None and reported:
            repeated = next(iter(said), None)
        if repeated is not None:
            return repeated
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
