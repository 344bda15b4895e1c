"""Whose turn it is while a transcript is gone through in a frame: the fold sees the frame's events only afterwards."""

from __future__ import annotations

from collections.abc import Callable

from voicemem.dialects.dialect import Known


class Flow:
    """Where in the call a frame's parts stand, and what it has begun: one utterance and one reply at most.

    Notes: `at`, the turn that the transcript has reached.
    """

    def __init__(self, known: Known) -> None:
        self.known = known
        self.here: int = known.notes.get("at", 0)
        self.newest = known.next_turn - 1
        self.answered: set[int] = set()
        self.has_utterance = False
        self.has_reply = False

    def begin_utterance(self, item: str, new_turn: Callable[[], int]) -> int | None:
        """The turn of an utterance, for a new one that of `new_turn`; None if the frame may begin no other."""
        turn = self.known.turn_of(item)
        if turn is None:
            if self.has_utterance:
                return None
            self.has_utterance = True
            turn = new_turn()
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
