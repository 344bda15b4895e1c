"""Recorded calls, sent again: a file of events streamed to a server, each acknowledged before it counts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidURI

from voicemem.events import Fields
from voicemem.wire import decode_lines

LONGEST_PAUSE_S = 3.0
"""Between two events at the call's own pace; longer silences of a recording are cut to this."""
STORES_NOTHING = frozenset({"seq_conflict", "seq_gap", "seq_required", "session_ended", "session_erased", "superseded"})
"""Errors that do not count as acks: the recording and the session no longer fit together."""
IN_FLIGHT = 100
"""Events sent and not yet acknowledged."""


class ReplayFailed(Exception):
    """The server could not be reached, or let the call go; the text says what to do."""


class Replayed(NamedTuple):
    """What became of a recording."""

    session_id: str
    sent: int
    skipped: int
    """Events that the server had already, from an earlier replay of the same file."""
    errors: list[Fields]


def load(path: Path) -> list[Fields]:
    """The events of a file, numbered from 1 where they have no `seq`. Raises `VoicememError`, `OSError`."""
    lines = path.read_bytes()
    decode_lines(lines)
    events = [msgspec.json.decode(line) for line in lines.splitlines() if line.strip()]
    return [{**event, "seq": event.get("seq", number)} for number, event in enumerate(events, start=1)]


def pauses(events: Sequence[Fields], pace: float) -> list[float]:
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

    def __init__(self, events: Sequence[Fields], told: Callable[[Fields], Any] = lambda event: None) -> None:
        self.events = events
        self.told = told
        self.acked = 0
        self.errors: list[Fields] = []
        self.failure: str | None = None
        """Why nothing more of this recording is taken."""
        self.progress = asyncio.Event()

    async def run(
        self, url: str, session_id: str | None = None, key: str | None = None, pace: float | None = None
    ) -> Replayed:
        """Send everything, and wait until all of it is on disk; without `pace`, as fast as it is taken.

        Raises `ReplayFailed`.
        """
        headers = {"Authorization": f"Bearer {key}"} if key else {}
        try:
            async with connect(url, additional_headers=headers, compression=None) as socket:
                ready = await self.open(socket, session_id)
                listener = asyncio.create_task(self.listen(socket))
                try:
                    skipped = await self.send_all(socket, ready["next_seq"], pace, listener)
                    await self.wait_until(lambda: self.acked >= len(self.events), listener)
                finally:
                    listener.cancel()
        except (InvalidHandshake, InvalidURI) as error:
            raise ReplayFailed(f"The server did not let us in: {error}.") from None
        except (OSError, ConnectionClosed) as error:
            raise ReplayFailed(f"The connection to {url} failed: {error}.") from None
        return Replayed(ready["session_id"], len(self.events) - skipped, skipped, self.errors)

    async def open(self, socket: ClientConnection, session_id: str | None) -> Fields:
        opening = {"type": "session.open"} | ({"session_id": session_id} if session_id else {})
        await socket.send(msgspec.json.encode(opening), text=True)
        ready: Fields = msgspec.json.decode(await socket.recv())
        if ready["type"] != "session.ready":
            raise ReplayFailed(f"The session could not be opened: {ready.get('detail')}")
        return ready

    async def send_all(
        self, socket: ClientConnection, next_seq: int, pace: float | None, listener: asyncio.Task[None]
    ) -> int:
        """Send what the server does not have yet; how many events it had."""
        self.acked = skipped = min(next_seq - 1, len(self.events))
        waits = pauses(self.events, pace) if pace else [0.0] * len(self.events)
        for event, wait in list(zip(self.events, waits, strict=True))[skipped:]:
            await asyncio.sleep(wait)
            await self.wait_until(lambda seq=event["seq"]: seq - self.acked <= IN_FLIGHT, listener)  # type: ignore[misc]
            await socket.send(msgspec.json.encode(event), text=True)
        return skipped

    async def listen(self, socket: ClientConnection) -> None:
        try:
            async for frame in socket:
                self.hear(msgspec.json.decode(frame))
        finally:
            self.progress.set()

    def hear(self, frame: Fields) -> None:
        seq = frame.get("seq")
        if frame["type"] == "error":
            self.errors.append(frame)
            if frame["code"] in STORES_NOTHING:
                self.failure = frame["detail"]
                self.progress.set()
                return
        if frame["type"] in ("ack", "error") and isinstance(seq, int):
            for event in self.events[self.acked : seq]:
                self.told(event)
            self.acked = max(self.acked, seq)
            self.progress.set()

    async def wait_until(self, enough: Callable[[], bool], listener: asyncio.Task[None]) -> None:
        while not enough():
            if self.failure is not None:
                raise ReplayFailed(f"The replay cannot go on: {self.failure}")
            if listener.done():
                raise ReplayFailed("The server closed the connection before everything was acknowledged.")
            self.progress.clear()
            await self.progress.wait()
