"""The newest messages."""

from __future__ import annotations

from msgspec import Struct

from voicemem.context.policies.policy import Choice, Remembered


class RecentPolicy(Struct, frozen=True):
    """The newest `max_messages`."""

    max_messages: int = 32

    def choose(self, remembered: Remembered) -> Choice:
        count = len(remembered.messages)
        return Choice(range(max(0, count - self.max_messages), count), "max_messages")


class FullPolicy(Struct, frozen=True):
    """The whole memory, however large."""

    def choose(self, remembered: Remembered) -> Choice:
        return Choice(range(len(remembered.messages)))
