"""A websocket connection to a vendor. Its messages are reduced as they come, and journaled in batches.

Nothing of a vendor's answer is repeated in logs or errors.
"""

import asyncio
import logging
from contextlib import suppress
from dataclasses import dataclass, field
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.registry import MAX_DIALECT_FRAME_BYTES, read_value
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.codec import RejectedEvent
from voicemem.protocol.events import FrameEvent
from voicemem.sessions.recording.batches import ProducerLease, ReducedFrame
from voicemem.sessions.recording.recorder import YIELD_EVERY, Recorder
from voicemem.store.observations import ObservationState
from voicemem.version import __version__

WIRE_LOG = logging.getLogger("voicemem.observer.websockets")
CLOSE_S = 1.0
MAX_QUEUE = 4
"""Messages that the library reads ahead; each may be large."""
NORMAL_CLOSE = 1000
TRANSIENT_STATUSES = (408, 409, 425, 429)
"""Statuses below 500 after which another attempt may fare better."""
NO_SUCH_CALL = (404, 410)
LARGE_BYTES = 16 * 1024
"""Messages above this size are decoded on a thread."""
MAX_WAITING, MAX_WAITING_BYTES = YIELD_EVERY, 1024 * 1024
"""Frames that wait for the store; beyond that the vendor waits."""
OVER = {"session_ended": "session_over", "session_erased": "session_over", "superseded": "superseded"}
"""Refusals that hold for all later frames too, and the reason to report for each."""


WIRE_LOG.setLevel(logging.CRITICAL)  # at lower levels the library logs headers and the words of the call


class RetryPolicy(NamedTuple):
    """Timeouts of connections, delays between attempts, and limits of attempts."""

    first_s: float = 0.25
    longest_s: float = 15.0
    attempts: int = 30
    """Attempts in a row without a connection that lasted, after which the observation has failed: some 6 minutes."""
    lasting_s: float = 10.0
    """A connection that was open for this long does not count as a failed attempt."""
    unknown_attempts: int = 8
    """Attempts for a call that the vendor does not know yet, as it may have just begun. Half a minute in all."""
    handshake_s: float = 10.0
    ping_s: float = 20.0
    """The time between pings, and the longest wait for a pong; a connection that hangs is noticed after both."""
    store_again_s: float = 1.0
    """The time between attempts to store while the store is unavailable."""


class Interrupted(NamedTuple):
    """The reason why a call is not observed, or no longer observed."""

    state: ObservationState
    """`waiting` if another attempt may succeed."""
    reason: str
    status: int | None = None
    """The status of the vendor's answer, or the code of its close."""


class DialFailed(Exception):
    """The connection could not be opened."""

    def __init__(self, why: Interrupted) -> None:
        super().__init__(why.reason)
        self.why = why


class NoRedirectConnect(connect):
    """Follows no redirects: the key is only for the configured address."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


async def dial(url: str, key: str, retry: RetryPolicy) -> ClientConnection:
    """Open a connection. Raises `DialFailed`."""
    try:
        return await NoRedirectConnect(
            url,
            additional_headers={"Authorization": f"Bearer {key}"},
            user_agent_header=f"voicemem/{__version__}",
            compression=None,
            proxy=None,
            open_timeout=retry.handshake_s,
            close_timeout=CLOSE_S,
            ping_interval=retry.ping_s,
            ping_timeout=retry.ping_s,
            max_size=MAX_DIALECT_FRAME_BYTES,
            max_queue=MAX_QUEUE,
            logger=WIRE_LOG,
        )
    except InvalidStatus as error:
        raise DialFailed(interruption_by_status(error.response.status_code)) from None
    except (InvalidURI, ValueError):
        raise DialFailed(Interrupted("failed", "refused")) from None
    except (OSError, WebSocketException, EOFError):
        raise DialFailed(Interrupted("waiting", "unreachable")) from None


def interruption_by_status(status: int) -> Interrupted:
    if status >= 500 or status in TRANSIENT_STATUSES:
        return Interrupted("waiting", "unreachable", status)
    return Interrupted("failed", "unknown_call" if status in NO_SUCH_CALL else "refused", status)


def interruption_by_close(error: ConnectionClosed) -> Interrupted:
    """Return what the end of a connection means; only a normal close means that the call is over."""
    code = error.rcvd.code if error.rcvd is not None else error.sent.code if error.sent is not None else None
    if error.rcvd is not None and code == NORMAL_CLOSE:
        return Interrupted("ended", "call_over", code)
    return Interrupted("waiting", "dropped", code)


async def hang_up(socket: ClientConnection) -> None:
    """Close a connection, without a long wait for a vendor that does not answer."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    socket.transport.abort()


@dataclass(eq=False, repr=False)
class VendorConnection:
    """Records a vendor's messages until either side ends the connection; it sends nothing."""

    socket: ClientConnection
    recorder: Recorder
    lease: ProducerLease
    dialect: str
    threads: asyncio.Semaphore
    """Limits how many large messages all connections decode at a time."""
    store_again_s: float
    waiting: list[ReducedFrame] = field(default_factory=list)
    waiting_bytes: int = 0
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    """Set when a frame waits, or when no more will come."""
    room: asyncio.Event = field(default_factory=asyncio.Event)
    is_over: bool = False

    async def run(self) -> Interrupted:
        """Record until the end, and return its reason. When cancelled, it still stores the frames that have arrived."""
        reading, writing = asyncio.create_task(self.read()), asyncio.create_task(self.write())
        try:
            await asyncio.wait((reading, writing), return_when=asyncio.FIRST_COMPLETED)
            if writing.done() and (refused := writing.result()) is not None:
                return refused
            ended = await reading
            return await self.finish(writing) or ended
        finally:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading
            if not writing.done():
                await self.finish(writing)
            await hang_up(self.socket)

    async def finish(self, writing: asyncio.Task[Interrupted | None]) -> Interrupted | None:
        self.is_over = True
        self.changed.set()
        return await writing

    async def read(self) -> Interrupted:
        while True:
            try:
                message = await self.socket.recv()
            except ConnectionClosed as error:
                return interruption_by_close(error)
            await self.take(message)
            if len(self.waiting) >= MAX_WAITING or self.waiting_bytes >= MAX_WAITING_BYTES:
                self.room.clear()
                await self.room.wait()

    async def take(self, message: str | bytes) -> None:
        received = self.recorder.clock()
        try:
            value = message if isinstance(message, bytes) else await self.read_text(message)
        except MalformedFrame:
            self.recorder.frames.count(self.dialect, "malformed")
            return
        event = FrameEvent(dialect=self.dialect, frame=value, sender="vendor", ts=received)
        arrival = self.recorder.reduce_frame(self.lease, event)
        if arrival is None or isinstance(arrival, RejectedEvent):
            return
        self.waiting.append(arrival)
        self.waiting_bytes += len(arrival.payload)
        self.changed.set()

    async def read_text(self, message: str) -> object:
        """Decode a message's JSON. Raises `MalformedFrame`."""
        if len(message) <= LARGE_BYTES:
            return read_value(message.encode())
        async with self.threads:
            return await asyncio.to_thread(lambda: read_value(message.encode()))

    async def write(self) -> Interrupted | None:
        """Store waiting frames until no more come, or return why no more can be stored."""
        while not self.is_over or self.waiting:
            await self.changed.wait()
            self.changed.clear()
            while self.waiting:
                frames, self.waiting, self.waiting_bytes = self.waiting, [], 0
                refused = await self.store(frames)
                if refused is not None:
                    return refused
                self.room.set()
        return None

    async def store(self, frames: list[ReducedFrame]) -> Interrupted | None:
        """Journal frames. While the store is unavailable they wait, unless the connection is over."""
        while frames:
            try:
                result = await self.recorder.record(self.lease, frames)
            except Refused as refused:
                return Interrupted("failed", refused.code)
            except StoreUnavailable:
                if self.is_over:
                    return None
                await asyncio.sleep(self.store_again_s)
                with suppress(Refused, StoreUnavailable):  # the commit may have happened after all
                    stream = await self.recorder.journal.find_session(self.lease.project, self.lease.session_id)
                    frames = frames if stream is None else await self.recorder.new_frames(stream, frames)
                continue
            if result.ended:
                return Interrupted("ended", "call_over")
            codes = [problem.code for problem in result.problems if problem.code in OVER]
            return Interrupted("ended", OVER[codes[0]]) if codes else None
        return None
