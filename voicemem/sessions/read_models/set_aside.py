"""Sessions that are set aside, since their memory could not be made (docs/operations.md)."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from voicemem.errors import DamagedEntry, SessionSetAside, StoreUnavailable
from voicemem.sessions.read_models.off_loop import BudgetExhausted
from voicemem.store.port import SetAsides
from voicemem.store.records import SetAside, SetAsideReason
from voicemem.store.streams import SESSION_KIND, Stream
from voicemem.transcript.state import SNAPSHOT_VERSION
from voicemem.version import __version__

LOG = logging.getLogger("voicemem")
FOLD_VERSION = f"{__version__}/{SNAPSHOT_VERSION}"
"""Another version of the program tries again what this one has set aside."""
MAX_SHOWN = 10
"""Ids in a report."""


class SetAsideReport(NamedTuple):
    """How many streams are set aside, and the ids of the newest sessions among them, by project."""

    streams: int = 0
    sessions: tuple[tuple[str, str], ...] = ()


class SetAsideSessions:
    """Knows what is set aside. All of it is in the store, so a start has nothing to try again."""

    def __init__(self, store: SetAsides, clock: Callable[[], int]) -> None:
        self.store = store
        self.clock = clock
        self.report = SetAsideReport()
        """As of the last `refresh`, for readers that must not wait for the store."""

    async def check(self, key: int) -> None:
        """Raise `SessionSetAside` for a stream that is set aside."""
        if await self.find(key) is not None:
            raise SessionSetAside

    async def find(self, key: int) -> SetAside | None:
        """Why a stream is set aside; None when it is not."""
        return await self.store.find_set_aside(key, FOLD_VERSION)

    async def add(self, key: int, error: BaseException) -> None:
        """Set a stream aside. While the store cannot note it, the next read finds it out again."""
        reason = reason_of(error)
        with suppress(StoreUnavailable):
            stream = await self.store.set_aside(key, SetAside(reason, self.clock(), FOLD_VERSION))
            if stream is not None:
                log_set_aside(stream, reason, error)
                await self.refresh()

    async def put_back(self, key: int) -> None:
        """A stream's memory could be made: let its deliveries go. Raises `StoreUnavailable`."""
        await self.store.put_back(key, self.clock())
        await self.refresh()

    async def refresh(self) -> None:
        """Bring the report up to date. Raises `StoreUnavailable`."""
        count = await self.store.count_set_aside(FOLD_VERSION)
        newest = await self.store.list_set_aside(FOLD_VERSION, MAX_SHOWN) if count else []
        self.report = SetAsideReport(count, tuple((stream.project, stream.id) for stream in newest))


def reason_of(error: BaseException) -> SetAsideReason:
    if isinstance(error, BudgetExhausted):
        return "too_slow"
    return "damaged" if isinstance(error, DamagedEntry) else "failed"


def log_set_aside(stream: Stream, reason: str, error: BaseException) -> None:
    """Name the session and where it failed. The error's own text may hold words of the call, so it is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"session {stream.id}" if stream.kind == SESSION_KIND else f"{stream.kind} stream {stream.key}"
    LOG.error(
        "The memory of %s in project %s cannot be made (%s: %s%s). It is set aside; its events are kept.",
        what,
        stream.project,
        reason,
        type(error).__name__,
        where,
        extra={"session_id": stream.id} if stream.kind == SESSION_KIND else {},
    )
