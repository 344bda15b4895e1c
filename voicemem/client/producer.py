"""One producer of one session: the client's side of the protocol's rules of order.

A producer knows nothing of connections. A transport sends what `open_frame` and `buffer.take_batch` return, and calls
`on_…` with the server's answers.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections import Counter
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

import msgspec

from voicemem.client import errors
from voicemem.client.buffer import Ack, Buffer
from voicemem.client.metrics import DroppedEvents, is_worth_logging
from voicemem.client.options import Options
from voicemem.errors import InvalidFrame
from voicemem.protocol.codec import check_frame

LOG = logging.getLogger("voicemem.client")


class ServerFrame(msgspec.Struct, frozen=True):
    """A frame of any type from the server; unknown fields are ignored."""

    type: str
    session_id: str | None = None
    producer: str | None = None
    seq: int | None = None
    code: str = ""
    detail: str = ""
    expected: int | None = None
    state: str = "running"
    epoch: int | None = None
    next_seq: int = 1
    next_turn: int = 1
    incarnation: str | None = None


@dataclass(eq=False)
class Producer:
    """One producer of a session. It calls `on_finished` once, when it will never have anything more to send.

    `drops` counts the client's dropped events.
    """

    session_id: str
    name: str
    config: Mapping[str, Any] | None
    options: Options
    on_finished: Callable[[Producer], None] = lambda producer: None
    drops: DroppedEvents = field(default_factory=DroppedEvents)

    def __post_init__(self) -> None:
        self.buffer = Buffer(self.options)
        self.dropped = 0
        self.refusals: Counter[str | None] = Counter()
        self.opened = False
        self.unanswered_opens = 0
        """The number of `session.open` frames sent since the last answer to one; each may have raised the epoch."""
        self.stray_opens = 0
        """Opens before the last answer that its epoch does not count; the server may still process them."""
        self.epoch: int | None = None
        self.incarnation: str | None = None
        self.state = "running"
        self.next_turn = 1
        self.end_seq: int | None = None
        self.error: errors.ClientError | None = None
        self.finished = False
        self.times_found = 0
        self.wakeup_pending = False
        self.lock = threading.Lock()
        """Guards the state that `add` uses in any thread."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flushes: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def key(self) -> tuple[str, str]:
        return self.session_id, self.name

    # Events

    def take(self, event: Mapping[str, Any], ends: bool = False) -> Ack:
        """Accept an event, in any thread. Never raises: if it cannot be accepted, its ack has the error."""
        try:
            with self.lock:
                return self.add(event, ends)
        except errors.ClientError as refused:
            error = refused.with_traceback(None)
            if self.options.leaves_gaps and isinstance(refused, errors.BufferFull):
                self.buffer.skip()
        except Exception as mistake:  # of any kind, because this runs where audio is processed
            error = errors.EventRefused(
                "invalid_json", f"The event cannot be written as JSON ({type(mistake).__name__})."
            )
            error.__cause__ = mistake.with_traceback(None)
        with self.lock:
            self.dropped += 1
        self.drops.report(self.session_id, self.name, error)
        ack = Ack(0)
        ack.resolve(error)
        return ack

    def add(self, event: Mapping[str, Any], ends: bool = False) -> Ack:
        """Add an event to the buffer, and return its ack. Raises `ClientError`, and JSON errors."""
        if self.error is not None:
            raise self.error
        if self.end_seq is not None or self.state == "ended":
            raise errors.SessionEnded("session_ended", self.ended_sentence())
        if not isinstance(event, Mapping):
            raise errors.EventRefused("not_events", "An event must be a mapping, such as a dict.")
        kind, turn = event.get("type"), event.get("turn_id")
        if kind in ("session.open", "auth"):
            raise errors.EventRefused("unknown_type", f"{kind} is sent by the client itself.")
        ends = ends or kind == "session.end"
        ack = self.buffer.add(lambda seq: self.encode(event, seq), ignore_limits=ends)
        if ends:
            self.end_seq = ack.seq
        if isinstance(turn, int):
            self.next_turn = max(self.next_turn, turn + 1)
        return ack

    def ended_sentence(self) -> str:
        return f"The session {self.session_id} has ended; it takes no new events."

    def ended_before(self) -> errors.SessionEnded:
        """Return the error for opening a session that has ended."""
        return errors.SessionEnded("session_ended", f"{self.ended_sentence()} Each call needs a session_id of its own.")

    def encode(self, event: Mapping[str, Any], seq: int) -> bytes:
        """Encode an event, once for all attempts. Raises `EventRefused` and Python's errors."""
        if event.get("seq", seq) != seq:
            raise errors.EventRefused("seq_conflict", f"The event's seq must be the next one, {seq}.")
        ts = event.get("ts", time.time_ns() // 1_000_000)
        fields = {**event, "session_id": self.session_id, "producer": self.name, "seq": seq, "ts": ts}
        if fields.get("type") == "session.end":
            fields.setdefault("last_seq", seq - 1)
        payload = msgspec.json.encode(fields)
        try:
            check_frame(payload)  # otherwise a frame that closes the connection would be resent forever
        except InvalidFrame as error:
            raise errors.EventRefused(error.code, error.detail) from None
        return payload

    # Opening

    def open_frame(self) -> dict[str, Any]:
        """Return the frame that opens or reopens the producer.

        `from_seq` matters only if the server has lost acknowledged events.
        """
        self.unanswered_opens += 1
        frame: dict[str, Any] = {"type": "session.open", "session_id": self.session_id, "producer": self.name}
        if self.config is not None:
            frame["session"] = self.config  # used only if the session does not exist, or no longer exists
        if self.opened:
            frame["from_seq"] = self.buffer.lowest_seq
        return frame

    def on_ready(self, frame: ServerFrame) -> None:
        # The server raises the epoch by one for each open that it processes. If the epoch has risen by less than the
        # number of opens sent, the rest are strays: given up by this client, but perhaps still on their way. One that
        # arrives late supersedes this same producer; `on_error` then opens once more instead of giving up.
        buffer = self.buffer
        if self.opened and self.is_ours(frame):
            buffer.acknowledge(frame.next_seq - 1)
        buffer.start(frame.next_seq)
        buffer.rewind()
        counted = 1 if self.epoch is None or frame.epoch is None else frame.epoch - self.epoch
        self.stray_opens = max(0, self.stray_opens + self.unanswered_opens - counted)
        self.epoch, self.incarnation, self.unanswered_opens = frame.epoch, frame.incarnation, 0
        self.next_turn = max(self.next_turn, frame.next_turn)
        self.state = frame.state
        self.opened = True
        if not self.ready.done():
            self.ready.set_result(None)
        self.notify_waiters()

    def is_ours(self, frame: ServerFrame) -> bool:
        """Return whether this client sent all of the producer's events that the server has.

        If so, `next_seq` acknowledges all lower seqs. If another process or a restored store may have interfered, the
        same seqs may have other events. Then everything is resent: stored events are acknowledged again, and others
        are refused with `seq_conflict` instead of being mistaken for stored ones.
        """
        only_we_opened = self.unanswered_opens == 1 and self.epoch is not None and frame.epoch == self.epoch + 1
        same_store = frame.incarnation == self.incarnation
        return only_we_opened and same_store and frame.next_seq <= self.buffer.next_seq

    # Answers

    def on_ack(self, seq: int) -> None:
        self.buffer.acknowledge(seq)
        self.notify_waiters()

    def on_error(self, frame: ServerFrame) -> bool:
        """Handle an `error` about this producer. Returns whether it must be opened again to continue."""
        code, seq = frame.code, frame.seq
        if code == "seq_gap":
            if frame.expected is None or not self.buffer.lowest_seq <= frame.expected < self.buffer.next_seq:
                return True  # that seq is not in the buffer
            self.buffer.rewind(frame.expected)
            return False
        if code == "superseded" and self.stray_opens:  # by our own open, over an abandoned connection
            self.stray_opens -= 1
            return True
        self.refusals[code] += 1
        if is_worth_logging(self.refusals[code]):
            LOG.warning("session %s, producer %s, seq %s: %s: %s", *self.key, seq, code, frame.detail)
        if code == "session_ended":
            with self.lock:
                self.state = "ended"
            self.buffer.fail(errors.SessionEnded(code, self.ended_sentence(), seq), seq or 0)
        elif seq is None or code in errors.PRODUCER_FATAL_CODES:
            self.fail(error_of(frame))
        else:
            self.buffer.refuse(seq, errors.EventRefused(code, frame.detail, seq))
            self.end_seq = None if seq == self.end_seq else self.end_seq
        self.notify_waiters()
        return False

    # The end

    def fail(self, error: errors.ClientError) -> None:
        """Give up: all acks and waiters get the error, the first one if there are several."""
        with self.lock:
            self.error = self.error or error
        self.buffer.fail(self.error)
        if not self.ready.done():
            self.ready.set_exception(self.error)
            self.ready.exception()  # marks it as retrieved, in case `open` was cancelled
        self.notify_waiters()

    def notify_waiters(self) -> None:
        """Wake the flushes whose events are all resolved, and note when the producer is finished."""
        lowest_seq = self.buffer.lowest_seq
        for seq, waiter in self.flushes:
            if seq < lowest_seq and not waiter.done():
                waiter.set_result(None)
        self.flushes = [flush for flush in self.flushes if not flush[1].done()]
        if self.end_seq is not None and lowest_seq > self.end_seq and self.error is None:
            self.state = "ended"
        done = self.error is not None or (self.state == "ended" and not len(self.buffer))
        if done and not self.finished:
            self.finished = True
            self.on_finished(self)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until all accepted events are resolved. Raises `TimedOut`, and the error that ended the producer."""
        target = self.buffer.next_seq - 1
        if self.buffer.lowest_seq <= target:
            flush = target, asyncio.get_running_loop().create_future()
            self.flushes.append(flush)
            try:
                async with asyncio.timeout(timeout):
                    await flush[1]
            except TimeoutError:
                raise errors.TimedOut(f"The events up to {target} were", timeout or 0) from None
            finally:
                self.flushes = [other for other in self.flushes if other is not flush]
        if self.error is not None:
            raise self.error.with_traceback(None)


def error_of(frame: ServerFrame) -> errors.ClientError:
    if frame.code == "superseded":
        return errors.Superseded()
    if frame.code == "session_erased":
        return errors.SessionErased(frame.code, frame.detail, frame.seq)
    if frame.seq is not None:
        return errors.EventRefused(frame.code, frame.detail, frame.seq)
    return errors.RequestRefused(frame.code, frame.detail)
