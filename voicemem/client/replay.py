"""Recorded calls, sent again: a file of events streamed to a server, each acknowledged before it counts."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from voicemem.client import (
    Ack,
    Client,
    ClientError,
    EventRefused,
    Options,
    ProducerSession,
    RequestRefused,
    Unreachable,
)
from voicemem.errors import InvalidFrame
from voicemem.protocol.codec import split_frame
from voicemem.protocol.types import MAX_FRAME_BYTES, JsonObject

LONGEST_PAUSE_S = 3.0
"""Between two events at the call's own pace; longer silences of a recording are cut to this."""
FATAL_ERRORS = frozenset({"seq_conflict", "seq_gap", "seq_required", "session_ended", "session_erased", "superseded"})
"""Errors that do not count as acks: the recording and the session no longer fit together."""
MAX_UNACKED = 100
"""Events sent and not yet acknowledged."""
OPTIONS = Options(give_up_after_s=0, max_bytes=MAX_UNACKED * MAX_FRAME_BYTES, close_timeout_s=0)


class ReplayFailed(Exception):
    """The server could not be reached, or let the call go; the text says what to do."""


class ReplayResult(NamedTuple):
    """What became of a recording."""

    session_id: str
    sent: int
    skipped: int
    """Events that the server had already, from an earlier replay of the same file."""
    errors: list[JsonObject]


def load_recording(path: Path) -> list[JsonObject]:
    """The events of a file, numbered from 1 where they have no `seq`. Raises `VoicememError`, `OSError`."""
    events: list[JsonObject] = []
    for place, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            events += [msgspec.json.decode(piece) for piece in map(bytes, split_frame(line))] if line.strip() else []
        except InvalidFrame as error:
            raise InvalidFrame(error.code, f"{path} is no recorded call, in line {place}. {error.detail}") from None
    return [{**event, "seq": event.get("seq", number)} for number, event in enumerate(events, start=1)]


def pauses_before(events: Sequence[JsonObject], pace: float) -> list[float]:
    """Seconds to wait before each event, at `pace` times the speed at which they happened."""
    waits, latest = [], None
    for event in events:
        ts = event.get("ts")
        if not isinstance(ts, int):
            waits.append(0.0)
            continue
        since = 0.0 if latest is None else (ts - latest) / 1000
        waits.append(min(LONGEST_PAUSE_S, max(0.0, since)) / pace)
        latest = ts if latest is None else max(latest, ts)
    return waits


class Replay:
    """One recording on its way into one session. `told` hears of each event once it is acknowledged or refused."""

    def __init__(
        self, events: Sequence[JsonObject], on_settled: Callable[[JsonObject], Any] = lambda event: None
    ) -> None:
        self.events = events
        self.on_settled = on_settled
        self.acked = 0
        self.errors: list[JsonObject] = []
        self.unacked: deque[tuple[JsonObject, Ack]] = deque()

    async def run(
        self, url: str, session_id: str | None = None, key: str | None = None, pace: float | None = None
    ) -> ReplayResult:
        """Send everything, and wait until all of it is on disk; without `pace`, as fast as it is taken.

        Raises `ReplayFailed`.
        """
        try:
            async with Client(url, key=key, options=OPTIONS) as client:
                session = await client.open(session_id)
                self.acked = skipped = min(session.next_seq - 1, len(self.events))
                await self.send_all(session, skipped, pace)
        except Unreachable as error:
            raise ReplayFailed(error.detail) from None
        except RequestRefused as error:
            if error.code == "not_found":
                raise ReplayFailed(
                    f"{url} is not the ingest: {error.detail} REST has a port of its own; `voicemem serve` shows both."
                ) from None
            raise ReplayFailed(f"The server did not let us in: {error.detail}") from None
        except ClientError as error:
            raise ReplayFailed(f"The replay cannot go on: {error.detail}") from None
        except ValueError as error:
            raise ReplayFailed(f"The replay cannot go on: {error}.") from None
        return ReplayResult(session.session_id, len(self.events) - skipped, skipped, self.errors)

    async def send_all(self, session: ProducerSession, skipped: int, pace: float | None) -> None:
        """Send what the server does not have yet."""
        waits = pauses_before(self.events, pace) if pace else [0.0] * len(self.events)
        for event, wait in list(zip(self.events, waits, strict=True))[skipped:]:
            if wait:
                await self.pause(wait)
            self.unacked.append((event, session.send(event)))
            await self.wait_for_acks(MAX_UNACKED)
        await self.wait_for_acks(0)

    async def pause(self, seconds: float) -> None:
        """Wait, and hear of acks meanwhile."""
        with suppress(TimeoutError):
            async with asyncio.timeout(seconds):
                await self.wait_for_acks(0)
                await asyncio.sleep(seconds)

    async def wait_for_acks(self, at_most: int) -> None:
        """Wait until so many events are under way. Raises `ClientError` when no more will be stored."""
        while len(self.unacked) > at_most:
            event, ack = self.unacked[0]
            try:
                await ack
            except EventRefused as refused:
                if refused.code in FATAL_ERRORS:
                    raise
                self.errors.append({"seq": refused.seq, "code": refused.code, "detail": refused.detail})
            self.unacked.popleft()
            self.acked += 1
            self.on_settled(event)
