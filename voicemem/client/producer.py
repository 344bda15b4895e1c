"""One producer's line into one session: the protocol's rules of order, on the side of the client.

A line knows nothing of connections: a transport sends what `opening` and `buffer.take` give, and hands in what it
hears.
"""

from __future__ import annotations

import asyncio
import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from voicemem.client.buffer import Ack, Buffer
from voicemem.client.errors import ClientError, EventRefused, RequestRefused, SessionEnded, SessionErased, Superseded
from voicemem.client.options import Options
from voicemem.errors import CODES, InvalidFrame
from voicemem.protocol.strict_json import check_frame

LOG = logging.getLogger("voicemem.client")
NOT_SENDABLE = frozenset({"session.open", "auth"})
FATAL_CODES = frozenset({"superseded", "session_erased", "seq_required"})
"""Codes after which this producer can send nothing more into the session."""


class ServerFrame(msgspec.Struct, frozen=True):
    """What the server says, of every type; what a client does not know is passed over."""

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


class Producer:
    """`over` is called once, when the line has nothing more to send and never will."""

    def __init__(
        self,
        session_id: str,
        producer: str,
        config: Mapping[str, Any] | None,
        options: Options,
        on_finished: Callable[[Producer], None] = lambda line: None,
    ) -> None:
        self.session_id = session_id
        self.producer = producer
        self.config = config
        self.buffer = Buffer(options)
        self.on_finished = on_finished
        self.opened = False
        """Whether the server has ever answered."""
        self.unanswered_opens = 0
        """`session.open` frames sent since that answer: how many epochs may have gone by."""
        self.stray_opens = 0
        """Opens sent before the last answer that it does not count: the server may still come to them."""
        self.epoch: int | None = None
        self.incarnation: str | None = None
        self.state = "running"
        self.next_turn = 1
        self.end_seq: int | None = None
        """The seq of the `session.end` that was taken."""
        self.error: ClientError | None = None
        """Why the line takes nothing more."""
        self.finished = False
        self.wakeup_pending = False
        """Whether the transport will hear of what was taken."""
        self.lock = threading.Lock()
        """Around what senders in other threads decide by."""
        self.ready: asyncio.Future[None] = asyncio.get_running_loop().create_future()
        self.flushes: list[tuple[int, asyncio.Future[None]]] = []

    @property
    def key(self) -> tuple[str, str]:
        return self.session_id, self.producer

    # Events in

    def add(self, event: Mapping[str, Any], ignore_limits: bool = False) -> Ack:
        """Take an event. Raises `ClientError`, `TypeError`, `ValueError`; then nothing is taken."""
        kind = event.get("type")
        if kind in NOT_SENDABLE:
            raise ValueError(f"{kind} is sent by the client itself")
        with self.lock:
            if self.error is not None:
                raise self.error
            if self.end_seq is not None or self.state == "ended":
                raise SessionEnded("session_ended", CODES["session_ended"].sentence)
            ack = self.buffer.add(lambda seq: self.encode(event, seq), ignore_limits)
            if kind == "session.end":
                self.end_seq = ack.seq
            turn = event.get("turn_id")
            if isinstance(turn, int):
                self.next_turn = max(self.next_turn, turn + 1)
        return ack

    def encode(self, event: Mapping[str, Any], seq: int) -> bytes:
        """The event as it is sent, always in the same words. Raises for what is no event, or would be no frame."""
        if event.get("seq", seq) != seq:
            raise ValueError(f"the event's own seq is not the next one, {seq}")
        fields: dict[str, Any] = {
            **event,
            "session_id": self.session_id,
            "producer": self.producer,
            "seq": seq,
            "ts": event.get("ts", time.time_ns() // 1_000_000),
        }
        if fields.get("type") == "session.end":
            fields.setdefault("last_seq", seq - 1)
        payload = msgspec.json.encode(fields)
        try:
            check_frame(payload)  # what would close the connection must not be sent again and again
        except InvalidFrame as error:
            raise EventRefused(error.code, error.detail) from None
        return payload

    # Opening

    def open_frame(self) -> dict[str, Any]:
        """The frame that opens the line, again. `from_seq` counts only where the server has less than was stored."""
        self.unanswered_opens += 1
        frame: dict[str, Any] = {"type": "session.open", "session_id": self.session_id, "producer": self.producer}
        if self.config is not None:
            frame["session"] = self.config  # of use only where the session does not exist, or not any more
        if self.opened:
            frame["from_seq"] = self.buffer.lowest_seq
        return frame

    def on_ready(self, frame: ServerFrame) -> None:
        """The server's answer to an open: go on where it stands."""
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
        self.set_ready()

    def is_ours(self, frame: ServerFrame) -> bool:
        """Whether what the server has can only be what this line sent.

        Where another process or a restored store may have come between, everything held is sent again instead: what
        is stored of it is acknowledged again, and what is not cannot be mistaken for it.
        """
        only_we_opened = self.unanswered_opens == 1 and self.epoch is not None and frame.epoch == self.epoch + 1
        same_store = frame.incarnation == self.incarnation
        return only_we_opened and same_store and frame.next_seq <= self.buffer.next_seq

    def set_ready(self) -> None:
        self.opened = True
        if not self.ready.done():
            self.ready.set_result(None)
        self.notify_waiters()

    # Answers

    def on_ack(self, seq: int) -> None:
        self.buffer.acknowledge(seq)
        self.notify_waiters()

    def on_error(self, frame: ServerFrame) -> bool:
        """An `error` about this line; whether it must be opened again to go on."""
        code, seq = frame.code, frame.seq
        if code == "seq_gap":
            return not self.rewind_to(frame.expected)
        if (
            code == "superseded" and self.stray_opens
        ):  # by an open of this line's own, from a connection that was given up
            self.stray_opens -= 1
            return True
        LOG.warning("session %s, producer %s, seq %s: %s: %s", *self.key, seq, code, frame.detail)
        if code == "session_ended":
            with self.lock:
                self.state = "ended"
            self.buffer.fail(SessionEnded(code, frame.detail, seq), seq or 0)
        elif seq is None or code in FATAL_CODES:
            self.fail(error_of(frame))
        else:
            self.buffer.refuse(seq, EventRefused(code, frame.detail, seq))
            self.end_seq = None if seq == self.end_seq else self.end_seq
        self.notify_waiters()
        return False

    def rewind_to(self, expected: int | None) -> bool:
        """Send again from the seq that the server expects; False when it is none that can be sent."""
        if expected is None or not self.buffer.lowest_seq <= expected < self.buffer.next_seq:
            return False
        self.buffer.rewind(expected)
        return True

    # The end

    def fail(self, error: ClientError) -> None:
        """Nothing more will come of this line: whoever waits is told why."""
        with self.lock:
            self.error = self.error or error
        self.buffer.fail(self.error)
        if not self.ready.done():
            self.ready.set_exception(self.error)
            self.ready.exception()  # nobody may be waiting any more
        self.notify_waiters()

    def notify_waiters(self) -> None:
        """Something was settled: tell those who wait for it."""
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

    async def flush(self) -> None:
        """Wait until everything that was taken so far is settled. Raises the `ClientError` that ended the line."""
        target = self.buffer.next_seq - 1
        if self.buffer.lowest_seq <= target:
            waiter: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self.flushes.append((target, waiter))
            await waiter
        if self.error is not None:
            raise self.error


def error_of(frame: ServerFrame) -> ClientError:
    """The exception for an error that ends a line."""
    if frame.code == "superseded":
        return Superseded()
    if frame.code == "session_erased":
        return SessionErased(frame.code, frame.detail, frame.seq)
    if frame.seq is not None:
        return EventRefused(frame.code, frame.detail, frame.seq)
    return RequestRefused(frame.code, frame.detail)
