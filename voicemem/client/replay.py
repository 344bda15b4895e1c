"""Replay of recorded calls: sends a file of events to a server, and counts each once it is acknowledged."""

import asyncio
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, NamedTuple

import msgspec

from voicemem.client import Ack, Client, Options, ProducerSession
from voicemem.client.errors import REPLAY_FATAL_CODES, ClientError, EventRefused, RequestRefused, Unreachable
from voicemem.errors import InvalidFrame
from voicemem.protocol.codec import split_frame
from voicemem.protocol.types import MAX_FRAME_BYTES, JsonObject

LONGEST_PAUSE_S = 3.0
"""The longest wait between two events at the call's own pace; longer silences are shortened to this."""
INVALID, ONE_EACH = "invalid_json", "Each line must be one event, as a JSON object."
MAX_UNACKED = 100
OPTIONS = Options(give_up_after_s=0, open_timeout_s=15, max_bytes=MAX_UNACKED * MAX_FRAME_BYTES, close_timeout_s=0)


class ReplayFailed(Exception):
    """The recording could not be sent completely; the text says why."""


class ReplayResult(NamedTuple):
    """The result of a replay."""

    session_id: str
    sent: int
    skipped: int
    """The number of events that the server already had, from an earlier replay of the same file."""
    errors: list[JsonObject]


def load_recording(path: Path) -> list[JsonObject]:
    """Load the events of a file, numbered from 1 if they have no `seq`. Raises `VoicememError`, `OSError`."""
    events: list[JsonObject] = []
    for number, line in enumerate(path.read_bytes().splitlines(), start=1):
        try:
            events += [msgspec.json.decode(piece) for piece in map(bytes, split_frame(line))] if line.strip() else []
        except (InvalidFrame, msgspec.DecodeError) as error:
            code, detail = (error.code, error.detail) if isinstance(error, InvalidFrame) else (INVALID, ONE_EACH)
            raise InvalidFrame(code, f"{path} is not a recorded call: error in line {number}. {detail}") from None
    if not all(isinstance(event, dict) for event in events):
        raise InvalidFrame(INVALID, f"{path} is not a recorded call. {ONE_EACH}")
    return [{**event, "seq": event.get("seq", number)} for number, event in enumerate(events, start=1)]


def pauses_before(events: Sequence[JsonObject], pace: float, longest_s: float = LONGEST_PAUSE_S) -> list[float]:
    """Return the seconds to wait before each event, at `pace` times the original speed."""
    waits, latest = [], None
    for event in events:
        ts = event["ts"] if isinstance(event.get("ts"), int) else latest
        since = 0.0 if latest is None or ts is None else (ts - latest) / 1000
        waits.append(min(longest_s, max(0.0, since)) / pace)
        latest = ts if latest is None or ts is None else max(latest, ts)
    return waits


@dataclass
class Replay:
    """Sends one recording into one session. `on_settled` gets each event once it is acknowledged or refused."""

    events: Sequence[JsonObject]
    on_settled: Callable[[JsonObject], Any] = lambda event: None
    longest_pause_s: float | None = None
    acked: int = 0
    errors: list[JsonObject] = field(default_factory=list)
    unacked: deque[tuple[JsonObject, Ack]] = field(default_factory=deque)

    async def run(
        self, url: str, session_id: str | None = None, key: str | None = None, pace: float | None = None
    ) -> ReplayResult:
        """Send everything, and wait until it is on disk. Without `pace`, as fast as the server accepts it.

        Raises `ReplayFailed`.
        """
        try:
            async with Client(url, key=key, options=OPTIONS) as client:
                session = await client.open(session_id, allow_ended=True)  # to learn what the server has
                self.acked = skipped = min(session.next_seq - 1, len(self.events))
                await self.send_all(session, skipped, pace)
        except ValueError as error:  # the session id or the URL
            raise ReplayFailed(f"The replay cannot continue: {error}.") from None
        except ClientError as error:
            sentence = f"The replay cannot continue: {error.detail}"
            if isinstance(error, Unreachable):
                sentence = error.detail
            elif isinstance(error, RequestRefused):
                sentence = f"The server refused the connection: {error.detail}"
            if isinstance(error, RequestRefused) and error.code == "not_found":
                sentence = f"{url} is not the ingest: {error.detail} `voicemem serve` shows the address of the ingest."
            raise ReplayFailed(sentence) from None
        return ReplayResult(session.session_id, len(self.events) - skipped, skipped, self.errors)

    async def send_all(self, session: ProducerSession, skipped: int, pace: float | None) -> None:
        longest_s = LONGEST_PAUSE_S if self.longest_pause_s is None else self.longest_pause_s
        waits = pauses_before(self.events, pace, longest_s) if pace else [0.0] * len(self.events)
        for event, wait in list(zip(self.events, waits, strict=True))[skipped:]:
            if wait:  # acks are processed meanwhile
                with suppress(TimeoutError):
                    async with asyncio.timeout(wait):
                        await self.wait_for_acks(0)
                        await asyncio.sleep(wait)
            ack = session.send(event)
            self.unacked.append((event, ack))
            await self.wait_for_acks(0 if ack.done() else MAX_UNACKED)  # if it is already done: look why
        await self.wait_for_acks(0)

    async def wait_for_acks(self, at_most: int) -> None:
        """Wait until at most `at_most` events are unacknowledged. Raises `ClientError` if no more will be stored."""
        while len(self.unacked) > at_most:
            event, ack = self.unacked[0]
            try:
                await ack
            except EventRefused as refused:
                if refused.code in REPLAY_FATAL_CODES:
                    raise
                self.errors.append({"seq": refused.seq, "code": refused.code, "detail": refused.detail})
            self.unacked.popleft()
            self.acked += 1
            self.on_settled(event)
