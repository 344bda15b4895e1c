"""Everything."""

from __future__ import annotations

from msgspec import Struct

from voicemem.policies.choice import Choice, Remembered


class Full(Struct, frozen=True):
    """The whole memory, however large."""

    def choose(self, remembered: Remembered) -> Choice:
        return Choice(range(len(remembered.messages)))
