"""Whose turn it is while a history is gone through, and the turns of what live messages have said."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Known
from voicemem.dialects.flow import Flow
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


class HistoryFlow(Flow):
    """Where messages of a history stand."""

    def utterance(self, item: str, text: str, reported: bool) -> int | None:
        """The turn of an utterance; None if the frame may begin no other."""
        return self.begin_utterance(item, lambda: self.new_turn(text, reported))

    def new_turn(self, text: str, reported: bool) -> int:
        """That of the live transcript that it repeats; else a new one, if the one before has an answer."""
        said = {turn: live for turn in live_turns(self.known) if (live := live_text(turn, self.known))}
        repeated = next((turn for turn, live in said.items() if is_similar(live, text)), None)
        if repeated is None and reported:
            repeated = next(iter(said), None)
        return self.next_turn() if repeated is None else repeated
