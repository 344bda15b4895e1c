"""The unacknowledged events of one producer."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator

from voicemem.client.errors import BufferFull, ClientError, TimedOut
from voicemem.client.options import Options


class Ack:
    """The outcome of one event: awaiting it returns its seq once it is on disk, or raises `ClientError`.

    An event that was not accepted has the seq 0, and its error at once.
    """

    __slots__ = ("error", "payload", "resolved", "seq", "waiters")

    def __init__(self, seq: int, payload: bytes = b"") -> None:
        self.seq = seq
        self.payload = payload
        """The encoded event; empty once it need not be resent."""
        self.resolved = False
        self.error: ClientError | None = None
        self.waiters: list[asyncio.Future[None]] = []

    def done(self) -> bool:
        """Return whether the outcome is known."""
        return self.resolved

    def __await__(self) -> Generator[asyncio.Future[None], None, int]:
        if not self.resolved:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.waiters.append(waiter)
            try:
                yield from waiter
            finally:
                if not self.resolved:  # the caller gave up
                    self.waiters.remove(waiter)
        return self.outcome()

    async def result(self, timeout: float | None = None) -> int:
        """Wait for the outcome, as `await` does, for at most `timeout` seconds. Raises `TimedOut` and `ClientError`."""
        try:
            async with asyncio.timeout(timeout):
                return await self
        except TimeoutError:
            raise TimedOut(f"Event {self.seq} was", timeout or 0) from None

    def outcome(self) -> int:
        """Return the seq of a stored event. Raises `ClientError` for any other."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # an error shared by many events must not collect a traceback of each
        return self.seq

    def resolve(self, error: ClientError | None = None) -> None:
        """Set the outcome and wake all waiters; later outcomes are ignored."""
        if self.resolved:
            return
        self.error = error
        self.resolved = True
        for waiter in self.waiters:
            if not waiter.done():
                waiter.set_result(None)
        self.waiters.clear()


class Buffer:
    """Holds events in the order of their seqs until they are acknowledged or refused.

    `add` may be called from any thread, everything else only from the event loop's thread.
    """

    def __init__(self, options: Options) -> None:
        self.max_events, self.max_bytes, self.room = options.max_events, options.max_bytes, options.room
        self.next_seq = 1
        self.size = 0
        self.sent: deque[Ack] = deque()
        """Sent and unacknowledged events, in order; a refused one stays until all before it are resolved."""
        self.unsent: deque[Ack] = deque()
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.sent) + len(self.unsent)

    @property
    def lowest_seq(self) -> int:
        """The lowest seq that can still be sent; `next_seq` if the buffer is empty."""
        held = self.sent or self.unsent
        return held[0].seq if held else self.next_seq

    def add(self, encode: Callable[[int], bytes], ignore_limits: bool = False) -> Ack:
        """Add an event with the next seq. Raises `BufferFull` and whatever `encode` raises; then nothing is added."""
        with self.lock:
            payload = encode(self.next_seq)
            full = len(self) >= self.max_events or self.size + len(payload) > self.max_bytes
            full = full and not ignore_limits
            if full or (self.room is not None and not self.room.take(len(payload), ignore_limits)):
                raise BufferFull(len(self), self.size)
            ack = Ack(self.next_seq, payload)
            self.next_seq += 1
            self.size += len(payload)
            self.unsent.append(ack)
            return ack

    def skip(self, count: int = 1) -> None:
        """Leave out the next seqs, because their events could not be kept."""
        with self.lock:
            self.next_seq += count

    def start(self, next_seq: int) -> None:
        """Continue after the events that the server already has, from an earlier or another process."""
        with self.lock:
            self.next_seq = max(self.next_seq, next_seq)

    def take_batch(self, max_bytes: int) -> list[Ack]:
        """Take the next events to send: at least one if there are any, otherwise at most `max_bytes`.

        Events after a gap wait until all before it are resolved: only then can the gap be declared.
        """
        batch: list[Ack] = []
        size = 0
        with self.lock:
            last = self.sent[-1] if self.sent else None
            while self.unsent and (not batch or size + len(self.unsent[0].payload) < max_bytes):
                if last is not None and self.unsent[0].seq != last.seq + 1:
                    break
                last = self.unsent.popleft()
                size += len(last.payload) + 1
                batch.append(last)
            self.sent.extend(batch)
        return batch

    def rewind(self, seq: int = 0) -> None:
        """Mark the sent events from `seq` on as unsent."""
        with self.lock:
            while self.sent and self.sent[-1].seq >= seq:
                self.unsent.appendleft(self.sent.pop())

    def refuse(self, seq: int, error: ClientError) -> None:
        """Resolve one event as refused. Events before it stay unresolved."""
        for ack in self.sent:
            if ack.seq == seq:
                ack.resolve(error)
        self.acknowledge(0)

    def fail(self, error: ClientError, from_seq: int = 0) -> None:
        with self.lock:
            held = [*self.sent, *self.unsent]
        for ack in held:
            if ack.seq >= from_seq:
                ack.resolve(error)
        self.acknowledge(0)

    def acknowledge(self, seq: int) -> None:
        """Resolve everything up to `seq` as stored, and drop the resolved events at the front."""
        with self.lock:
            for held in (self.sent, self.unsent):
                while held and (held[0].resolved or held[0].seq <= seq):
                    ack = held.popleft()
                    self.size -= len(ack.payload)
                    if self.room is not None:
                        self.room.give_back(len(ack.payload))
                    ack.resolve()
                    ack.payload = b""
                if held:
                    break
