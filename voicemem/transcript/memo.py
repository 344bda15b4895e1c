"""What was worked out from a state before, kept as long as it holds."""

from __future__ import annotations

from typing import Any


class Memo:
    """Per-turn and per-reply results of one state. Losing any of them costs time, and nothing else.

    What it holds is made, and typed, by the modules named below: the state carries it and knows nothing of it.
    """

    __slots__ = (
        "cut_stairs",
        "entries",
        "false_alarms",
        "made",
        "small_keys",
        "small_turn",
        "speech",
        "whole_texts",
        "word_matches",
    )

    def __init__(self) -> None:
        self.speech: dict[int, Any] = {}
        """By turn: a `speech.SpeechIndex`, its segments by their keys and users."""
        self.entries: dict[object, tuple[Any, Any]] = {}
        """The `history.MessageEntry` of replies, by id, and of users, by turn and name: of large turns, and of the
        small one that was read last.

        Each with the version of the reply that it was made of.
        """
        self.small_turn: int | None = None
        self.small_keys: list[object] = []
        """What is kept in `entries` of that turn."""
        self.made: list[Any] | None = None
        """The events that dialects make, where somebody asks for them."""
        self.false_alarms: Any = None
        """A `speech.FalseAlarms`."""
        self.whole_texts: dict[int, Any] = {}
        """By reply: a `whole_text.WholeText`, of those that are long or were reported often."""
        self.word_matches: dict[int, tuple[Any, Any]] = {}
        """By reply: a `words.WordMatch`, where its timed words stand in its text, and the windows they are from."""
        self.cut_stairs: dict[int, Any] = {}
        """By turn: see `playing.cut_stairs`."""

    def keep(self, key: object, version: Any, entry: Any, for_good: bool) -> None:
        """Keep a message, for good or until another turn is read."""
        self.entries[key] = version, entry
        if not for_good:
            self.small_keys.append(key)

    def leave_small_turn(self, number: int) -> None:
        """Forget the messages of the small turn that was read last, as another is read now."""
        for key in self.small_keys:
            self.entries.pop(key, None)
        self.small_turn, self.small_keys = number, []
