"""Slim rows of sessions. See `voicemem.store.port`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from voicemem.store.looks import OverviewPage
from voicemem.store.records import SavedFigures, SessionFilter


class Overviews(Protocol):
    """Slim rows of sessions: a list of a thousand must not read a configuration, nor fold a memory."""

    async def list_overviews(self, wanted: SessionFilter, most_looks: int | None = None) -> OverviewPage:
        """The same sessions as `Journal.list_sessions`, in the same order, and what was saved of their memories.

        A page ends early, with a place to go on from, when so many sessions were looked at (`MAX_LOOKS` unless given).
        """

    async def count_overviews(self, wanted: SessionFilter, most: int) -> int | None:
        """How many sessions match over all pages, up to `most`; None where too many would have to be looked at."""

    async def find_named(self, project: str, beginning: str, limit: int) -> list[int]:
        """The keys of sessions whose id, or whose user's id, begins so: at most `limit` of each kind."""

    async def save_figures(self, made: Sequence[SavedFigures]) -> None:
        """Save what slim rows show of memories.

        They replace what was saved before. Does nothing for erased sessions.
        """
