"""Sessions that are quarantined, since their memory could not be made (docs/operations.md)."""

import logging
import traceback
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import NamedTuple

from voicemem.errors import DamagedEntry, SessionQuarantined, StoreUnavailable
from voicemem.sessions.off_loop import BudgetExhausted
from voicemem.store.quarantine import Quarantine, QuarantineEntry, QuarantineReason
from voicemem.store.streams import SESSION_KIND, Stream
from voicemem.transcript.state import SNAPSHOT_VERSION
from voicemem.version import __version__

LOG = logging.getLogger("voicemem")
FOLD_VERSION = f"{__version__}/{SNAPSHOT_VERSION}"
"""Another version of the program tries again what this one has quarantined."""
MAX_SHOWN = 10
"""Ids in a report."""


class QuarantineReport(NamedTuple):
    """The number of quarantined streams, and the ids of the newest sessions among them, by project."""

    streams: int = 0
    sessions: tuple[tuple[str, str], ...] = ()


class QuarantinedSessions:
    """The quarantined sessions. They are in the store, so that a restart does not try them again."""

    def __init__(self, quarantine: Quarantine, clock: Callable[[], int]) -> None:
        self.quarantine = quarantine
        self.clock = clock
        self.report = QuarantineReport()
        """As of the last `refresh`, for readers that must not wait for the store."""

    async def check(self, key: int) -> None:
        """Raise `SessionQuarantined` for a stream that is quarantined."""
        if await self.find(key) is not None:
            raise SessionQuarantined

    async def find(self, key: int) -> QuarantineEntry | None:
        return await self.quarantine.find_quarantined(key, FOLD_VERSION)

    async def add(self, key: int, error: BaseException) -> None:
        """Quarantine a stream. If the store cannot record it, the next read fails and quarantines it again."""
        reason: QuarantineReason = "damaged" if isinstance(error, DamagedEntry) else "failed"
        if isinstance(error, BudgetExhausted):
            reason = "too_slow"
        elif isinstance(error, MemoryError):
            reason = "too_large"
        with suppress(StoreUnavailable):
            stream = await self.quarantine.add(key, QuarantineEntry(reason, self.clock(), FOLD_VERSION))
            if stream is not None:
                log_quarantined(stream, reason, error)
                await self.refresh()

    async def release(self, key: int) -> None:
        """Release a stream whose memory could be made, and its deliveries. Raises `StoreUnavailable`."""
        await self.quarantine.release(key, self.clock())
        await self.refresh()

    async def refresh(self) -> None:
        """Bring the report up to date. Raises `StoreUnavailable`."""
        count = await self.quarantine.count_quarantined(FOLD_VERSION)
        newest = await self.quarantine.list_quarantined(FOLD_VERSION, MAX_SHOWN) if count else []
        self.report = QuarantineReport(count, tuple((stream.project, stream.id) for stream in newest))


def log_quarantined(stream: Stream, reason: str, error: BaseException) -> None:
    """Name the session and where it failed. The error's own text may hold words of the call, so it is left out."""
    frames = traceback.extract_tb(error.__traceback__)
    where = f" in {Path(frames[-1].filename).name}:{frames[-1].lineno}" if frames else ""
    what = f"session {stream.id}" if stream.kind == SESSION_KIND else f"{stream.kind} stream {stream.key}"
    LOG.error(
        "The memory of %s in project %s cannot be made (%s: %s%s). It is quarantined; its events are kept.",
        what,
        stream.project,
        reason,
        type(error).__name__,
        where,
        extra={"session_id": stream.id} if stream.kind == SESSION_KIND else {},
    )
