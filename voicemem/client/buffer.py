"""The events of one producer that are not acknowledged yet."""

import asyncio
import threading
from collections import deque
from collections.abc import Callable, Generator

from voicemem.client.errors import BufferFull, ClientError, TimedOut
from voicemem.client.options import Options


class Ack:
    """The outcome of one event: awaiting it returns its seq once it is on disk, or raises `ClientError`.

    An event that was not taken has the seq 0, and its error at once.
    """

    __slots__ = ("error", "payload", "resolved", "seq", "waiters")

    def __init__(self, seq: int, payload: bytes = b"") -> None:
        self.seq = seq
        self.payload = payload
        """The event as it is sent; empty once it need not be resent."""
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
        """The seq of a stored event. Raises `ClientError` for any other one."""
        if self.error is not None:
            raise self.error.with_traceback(None)  # one error of many events must not collect a trace of each
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
        """Sent and not acknowledged, in order; a refused event stays until all before it are resolved."""
        self.unsent: deque[Ack] = deque()
        self.lock = threading.Lock()

    def __len__(self) -> int:
        return len(self.sent) + len(self.unsent)

    @property
    def lowest_seq(self) -> int:
        """The lowest seq that can still be sent; `next_seq` if nothing is held."""
        held = self.sent or self.unsent
        return held[0].seq if held else self.next_seq

    def add(self, encode: Callable[[int], bytes], ignore_limits: bool = False) -> Ack:
        """Add an event under the next seq. Raises `BufferFull` and whatever `encode` raises; then nothing is added."""
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
        """Leave out the next seqs: what they were for cannot be kept."""
        with self.lock:
            self.next_seq += count

    def start(self, next_seq: int) -> None:
        """Continue after what the server has stored, from an earlier process or from another one."""
        with self.lock:
            self.next_seq = max(self.next_seq, next_seq)

    def take_batch(self, max_bytes: int) -> list[Ack]:
        """Take the next events to send: at least one if there are any, otherwise at most `max_bytes`.

        What is behind a hole waits until everything before it is resolved: the hole can be declared only then.
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
        """Resolve everything up to `seq` as stored, and drop what is resolved from the front: it leaves in order."""
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
