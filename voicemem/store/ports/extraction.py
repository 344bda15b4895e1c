"""Extraction: what a store knows of memories that are made of calls, besides these. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple, Protocol

from voicemem.store.streams import Stream

EXTRACT = b'"extract"'
"""Stands in the configuration of each session that says itself whether memories are made of it."""


class ExtractionCheck(NamedTuple):
    """A part of all sessions, of which some have grown since they were looked at."""

    behind: Sequence[Stream]
    through_key: int | None
    """The key to go on after; None when there are no more."""


class Extractions(Protocol):
    """Up to where sessions were looked at for memories, and what that has cost.

    What was really sent to an LLM stands in the journals (`memory.extracted`); this only spares looks at sessions of
    which nothing is new.
    """

    async def check_extractions(self, everywhere: bool, after_key: int, limit: int) -> ExtractionCheck:
        """Look at some sessions of all projects, by key: which have grown since they were looked at.

        Unless `everywhere`, only those whose own configuration has `EXTRACT`. `limit` is how many are looked at.
        """

    async def note_extracted(self, key: int, position: int) -> None:
        """Note that a session was looked at up to a position; does nothing for an erased one."""

    async def spend_tokens(self, project: str, day: int, tokens: int, limit: int) -> bool:
        """Count tokens that a project spends on a day (since 1970), unless they would be more than `limit` with it.

        False, with nothing counted, in that case. A `limit` of 0 is none. Negative tokens are given back.
        """
