"""The websocket of an ingest connection: each message goes to its listener once it is complete, without a queue.

Nearly all events of a call come in fast frames: a whole text message in one masked frame (RFC 6455, section 5.2). The
parser of `websockets` takes longer for such a frame than voicemem takes for the event in it, so these are parsed
here, and all other frames are left to the library.
"""

import asyncio
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import msgspec
from websockets import frames
from websockets.asyncio.server import ServerConnection
from websockets.frames import Frame, Opcode
from websockets.protocol import Event, State

from voicemem.errors import CODES
from voicemem.protocol.frames import Error
from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.security.rate_limits import Bucket, EventBuckets
from voicemem.server.http.connections import AT_ONCE, PIECE, PortConnections, ReadingQueue, Unread
from voicemem.server.http.problems import invalid_handshake_response, turned_away
from voicemem.server.ingest.shared_poll import SharedPoll, plain_socket

apply_mask: Callable[[bytes, bytes], bytes] | None = getattr(frames, "apply_mask", None)
"""The library's own, in C if that is installed. If it is missing, the library parses all frames."""

TEXT_FRAME, PING_FRAME, PONG_FRAME = 0x81, 0x89, 0x8A
"""The first byte of a frame that is final and uses no extension."""
MASKED = 0x80
MIN_FRAME_BYTES = 6
"""Bytes of a masked frame without a payload."""
MAX_CONTROL_BYTES = 125
"""Bytes of payload in a ping or a pong."""


BINARY, CONT, TEXT = Opcode.BINARY, Opcode.CONT, Opcode.TEXT
CONNECTING, OPEN = State.CONNECTING, State.OPEN
MAX_BYTES_BEFORE_KEY = 16 * 1024
"""The limit for a message before a key, and for the bytes of a message that is not complete yet."""
MAX_FRAGMENTS = 1_024
"""The limit for one message; the library has the same limit for its own queue."""
MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""A peer with more than this unsent does not read."""
MOST_PING_S, PING_SPREAD_MS = 20.0, 5_000
"""The most seconds between two pings, and the most ms less for some: else those opened together are pinged together."""
READ_TIMEOUT_S = 30.0
"""How long a peer may take to read some of the unsent bytes."""
TOO_MANY = "too many fragments"
TOO_BIG_WITHOUT_KEY = "too big before a key"
FULL = "too_many_connections"
END_OF_REQUEST = b"\r\n\r\n"
SHORT_BYTES = 125
"""The longest message whose length takes one byte."""
Listener = Callable[[bytes, bool], None]
"""Takes a message, and whether it is a binary one."""


class EventSocket(ServerConnection):
    """A server connection that delivers messages the moment they arrive; `recv` is not used.

    Fast frames are parsed here. `websockets` parses and checks all others, and does the handshake, keepalive and
    closing. Its queue of messages is left out, and with it the switch to the task that would wait for them.
    """

    # With these the object's dictionary would be larger than what Python shares among equal ones, by 1.2 KiB.
    __slots__ = (
        "address",
        "awaits_key",
        "bytes_before_key",
        "bytes_needed",
        "fast",
        "fragments",
        "listener",
        "partial",
        "polled_fd",
        "port",
        "reading",
        "sent_ahead",
        "shared_poll",
        "silent",
        "stall_check_due",
        "undelivered",
        "unread",
    )

    def __init__(
        self, *args: Any, port: PortConnections | None = None, shared_poll: SharedPoll | None = None, **options: Any
    ) -> None:
        """`port` bounds the connections; without it there is no bound, and no key is awaited.

        Without a `shared_poll` the event loop reads the socket.
        """
        super().__init__(*args, **options)
        self.port = port
        self.shared_poll = shared_poll
        self.polled_fd: int | None = None
        """The file descriptor of the socket while it is read in rounds, or not read; None while the loop reads it."""
        self.address: str | None = None
        """The IP address of the peer."""
        self.awaits_key = port is not None
        """True if the client needs a key and has not sent it yet."""
        self.bytes_before_key = 0
        """The size of frames that came while no message was complete and no key was known."""
        self.protocol.reject = invalid_handshake_response  # type: ignore[method-assign]  # its own answers are plain text
        self.listener: Listener | None = None
        self.undelivered: list[tuple[bytes, bool]] = []
        """Messages that came before there was a listener, and whether they are binary."""
        self.fragments: list[Frame] = []
        self.sent_ahead = False
        """True if the client sent more than its request, without waiting for the answer."""
        self.fast = False
        """True if only fast frames, pings and pongs have come, so that the library is between two frames."""
        self.partial: bytes | bytearray = b""
        """The beginning of an incomplete frame; `bytes_needed` is its size as far as it is known."""
        self.bytes_needed = 0
        self.reading = True
        self.silent = False
        """True if nothing is sent: the client does not know our protocol."""
        self.stall_check_due = False
        """True if `recheck_unsent` is scheduled."""

    def accept_up_to(self, size: int) -> None:
        """Set the largest accepted message; the library has had several names for it."""
        for name in ("max_size", "max_message_size"):
            if hasattr(self.protocol, name):
                setattr(self.protocol, name, size)

    # Who may stay

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        turns = ReadingQueue() if self.port is None else self.port.turns
        self.unread = Unread(self, self, turns)
        self.ping_interval = MOST_PING_S - self.id.int % PING_SPREAD_MS / 1000
        super().connection_made(transport)
        # What these hold is nothing or next to it, and a deque takes 0.7 KiB.
        self.drain_waiters, self.recv_messages.frames.queue = [], []  # type: ignore[assignment]
        peer = transport.get_extra_info("peername")
        self.address = str(peer[0]) if peer else None
        if self.port is not None:
            self.port.admit(self)

    def connection_lost(self, exc: Exception | None) -> None:
        self.end_poll()
        self.unread.end(partial(self.lose, exc))

    def lose(self, exc: Exception | None) -> None:
        """Note that the connection is lost, and that everything received was processed."""
        if self.port is not None:
            self.port.remove(self)
        super().connection_lost(exc)
        self.drop_references()

    def drop_references(self) -> None:
        """Break reference cycles: they would stay in memory until a full collection, which is rare."""
        protocol = self.protocol
        self.logger = protocol.logger = getattr(self.logger, "logger", self.logger)  # an adapter has the connection
        protocol.parser.close()
        protocol.parser_exc = None
        vars(protocol).pop("select_subprotocol", None)
        self.listener = None
        del self.unread

    def send_data(self) -> None:
        """Send the library's frames for the peer, such as pongs; nothing once the connection is closed or lost."""
        if self.transport.is_closing():
            self.protocol.data_to_send()
        else:
            super().send_data()

    def authenticate(self) -> bool:
        """Note that the client has sent a key, or needs none; return False if too many others have."""
        if self.port is not None and not self.port.authenticate(self):
            return False
        self.awaits_key = False
        self.join_poll()
        return True

    def is_idle(self) -> bool:
        # Once a request or a message has come, it is checked; reading begins again when that is done.
        return self.awaits_key and self.reading and (self.request is None or self.listener is not None)

    def turn_away(self) -> None:
        if self.protocol.state is CONNECTING:
            self.transport.write(turned_away())
        elif self.protocol.state is OPEN:
            self.send_nowait(msgspec.json.encode(Error(code=FULL, detail=CODES[FULL].sentence)))
            self.protocol.send_close(CODES[FULL].close, FULL)
            self.send_data()
        self.transport.close()
        if self.transport.get_write_buffer_size():
            self.transport.abort()

    def listen(self, listener: Listener) -> None:
        self.listener = listener
        self.fast = apply_mask is not None and not self.sent_ahead
        self.unread.piece = PIECE if self.fast else LIBRARY_PIECE
        undelivered, self.undelivered = self.undelivered, []
        for message in undelivered:
            listener(*message)
        self.join_poll()

    def process_event(self, event: Event) -> None:
        if not isinstance(event, Frame):
            super().process_event(event)
        elif event.opcode is TEXT and event.fin:
            self.deliver(bytes(event.data), False)
        elif event.opcode is BINARY and event.fin:
            self.deliver(bytes(event.data), True)
        elif event.opcode in (TEXT, BINARY, CONT):
            self.add_fragment(event)
        else:
            super().process_event(event)

    def deliver(self, message: bytes, binary: bool) -> None:
        if self.listener is not None:
            self.listener(message, binary)
        else:
            self.undelivered.append((message, binary))

    def add_fragment(self, frame: Frame) -> None:
        self.fragments.append(frame)
        if len(self.fragments) > MAX_FRAGMENTS:
            self.protocol.fail(1009, TOO_MANY)
            self.send_data()
        elif frame.fin:
            message = b"".join(fragment.data for fragment in self.fragments)
            binary = self.fragments[0].opcode is BINARY
            self.fragments = []
            self.deliver(message, binary)

    @property
    def failed_with(self) -> int | None:
        """The close code, if the close began here and not at the peer."""
        sent = self.protocol.close_sent
        return None if sent is None or self.protocol.close_rcvd_then_sent else sent.code

    def set_reading(self, reading: bool) -> None:
        """Read from the network, or stop, so that TCP holds the sender back."""
        if reading != self.reading and not self.transport.is_closing():
            self.reading = reading
            if self.unread:  # which is not read from the network anyway
                self.unread.wait_in_line()
            else:
                (self.resume_reading if reading else self.pause_reading)()

    def send_nowait(self, message: bytes) -> None:
        """Send a text message without waiting; the connection of a peer that never reads is aborted."""
        transport = self.transport
        if self.silent or transport.is_closing() or self.protocol.state is not OPEN:
            return
        size = len(message)
        if size <= SHORT_BYTES:
            transport.write(b"%c%c%b" % (TEXT_FRAME, size, message))
        else:
            self.protocol.send_text(message)
            self.send_data()
        if transport.get_write_buffer_size():
            self.check_unsent()

    # Who reads the socket

    def join_poll(self) -> None:
        """Let the shared poll read the socket, once a listener takes messages and the client has sent its key."""
        if self.shared_poll is None or self.polled_fd is not None or self.listener is None or self.awaits_key:
            return
        fd = None if self.transport.is_closing() else plain_socket(self.transport)
        if fd is None:
            self.shared_poll = None
            return
        self.transport.pause_reading()
        self.polled_fd = fd
        if self.takes_more and not self.unread:
            self.shared_poll.add(fd, self)

    def leave_poll(self) -> None:
        self.end_poll()
        if self.takes_more and not self.transport.is_closing():
            self.transport.resume_reading()

    def end_poll(self) -> None:
        if self.shared_poll is not None and self.polled_fd is not None:
            self.shared_poll.remove(self.polled_fd)
        self.shared_poll = self.polled_fd = None

    def pause_reading(self) -> None:
        if self.shared_poll is None or self.polled_fd is None:
            self.transport.pause_reading()
        else:
            self.shared_poll.remove(self.polled_fd)

    def resume_reading(self) -> None:
        if self.shared_poll is None or self.polled_fd is None:
            self.transport.resume_reading()
        else:
            self.shared_poll.add(self.polled_fd, self)

    def is_closing(self) -> bool:
        return self.transport.is_closing()

    # Bytes in

    def take_polled(self, data: bytes) -> None:
        if not self.transport.is_closing():
            (self.parse if self.fast else self.unread.receive)(data)

    def fail_polled(self, error: Exception) -> None:
        context = {"message": "Taking a connection's bytes failed", "exception": error, "protocol": self}
        self.loop.call_exception_handler(context)
        self.transport.abort()

    def data_received(self, data: bytes) -> None:
        if self.awaits_key and self.port is not None:
            self.port.count_received(self, len(data))
        if self.transport.is_closing():
            return
        if self.fast and len(data) <= AT_ONCE and not self.unread.data:
            self.take(data)
        else:
            self.unread.receive(data)

    @property
    def takes_more(self) -> bool:
        return self.reading

    def take(self, data: bytes) -> None:
        if self.awaits_key:
            self.receive_before_key(data)
        elif self.fast:
            self.parse(data)
        else:
            self.receive(data)

    def receive_before_key(self, data: bytes) -> None:
        """Process bytes of a client without a key, for which the service may not hold much."""
        had_listener = self.listener is not None
        self.receive(data)
        # A whole message stops reading until its key was checked. As long as there is reading, there was none.
        if had_listener and self.reading and self.awaits_key and self.protocol.state is OPEN:
            self.bytes_before_key += len(data)
            if self.bytes_before_key > MAX_BYTES_BEFORE_KEY:
                self.partial = b""
                self.protocol.fail(1009, TOO_BIG_WITHOUT_KEY)
                self.send_data()

    def receive(self, data: bytes) -> None:
        # Frames are parsed here once there is a listener, unless bytes came right after the request: those are with the
        # library already, which may be in the middle of a frame. From the first frame that is not a fast one, a ping
        # or a pong, the library parses everything, since a fragmented message, for one, leaves state in it.
        if self.fast:
            self.parse(data)
        else:
            had_request = self.request is not None
            self.feed_library(data)
            if self.listener is None and self.request is not None:
                self.sent_ahead = self.sent_ahead or had_request or not data.endswith(END_OF_REQUEST)

    def parse(self, data: bytes) -> None:
        """Deliver fast frames; from the first other frame on, leave everything to the library."""
        assert self.listener is not None
        assert apply_mask is not None
        size = len(data)
        if size >= MIN_FRAME_BYTES and data[0] == TEXT_FRAME and not self.partial:
            length = data[1] - MASKED
            if size == length + MIN_FRAME_BYTES <= SHORT_BYTES + MIN_FRAME_BYTES:  # nearly all that comes
                self.listener(apply_mask(data[6:], data[2:6]), False)
                return
            if length == 126 and size == int.from_bytes(data[2:4]) + 8:
                self.listener(apply_mask(data[8:], data[4:8]), False)
                return
        if self.partial:
            self.partial += data
            if len(self.partial) < self.bytes_needed:
                return
            data, self.partial = bytes(self.partial), b""
        at, bytes_needed = 0, 0
        while not bytes_needed:
            texts, at, bytes_needed = parse_fast_frames(data, at, MAX_FRAME_BYTES)
            for text in texts:
                self.listener(text, False)
            if bytes_needed:
                break
            newest, at, bytes_needed = parse_control_frames(data, at)
            if newest:
                self.feed_library(newest)
            elif not bytes_needed:
                self.fast = False
                self.unread.piece = LIBRARY_PIECE
                self.unread.put_back(data[at:])
                return
        if at < len(data):
            self.partial = bytearray(data[at:])
        self.bytes_needed = bytes_needed

    def feed_library(self, data: bytes) -> None:
        super().data_received(data)
        self.check_unsent()  # it answers pings

    def check_unsent(self) -> None:
        """Abort the connection of a peer that does not read: too much is unsent, or anything for too long."""
        unsent = self.transport.get_write_buffer_size()
        if unsent > MAX_UNSENT_BYTES:
            self.transport.abort()
        elif unsent and not self.stall_check_due:
            self.stall_check_due = True
            self.loop.call_later(READ_TIMEOUT_S, self.recheck_unsent, unsent)

    def recheck_unsent(self, before: int) -> None:
        self.stall_check_due = False
        unsent = self.transport.get_write_buffer_size()
        if unsent >= before:
            self.transport.abort()
        self.check_unsent()


LIBRARY_PIECE = 512
"""Bytes that the library parses at a time: up to 85 frames, each of which may take 40 us."""


class FastFrames(NamedTuple):
    """The fast frames at the beginning of received bytes."""

    texts: list[bytes]
    stop: int
    """The end of the last of them."""
    needed: int
    """How many bytes, from `stop` on, are needed to continue; 0 when the next frame is not a fast one."""


def parse_fast_frames(data: bytes, at: int, limit: int) -> FastFrames:
    """Parse the fast frames from `at` on; a frame with more than `limit` bytes of text is not one."""
    assert apply_mask is not None
    texts: list[bytes] = []
    end = len(data)
    while end - at >= MIN_FRAME_BYTES:
        length = data[at + 1] - MASKED
        if data[at] != TEXT_FRAME or length < 0:
            return FastFrames(texts, at, 0)
        start = at + MIN_FRAME_BYTES
        if length > 125:
            start += 2 if length == 126 else 8
            if start > end:
                break
            length = int.from_bytes(data[at + 2 : start - 4])
            if length > limit:
                return FastFrames(texts, at, 0)
        stop = start + length
        if stop > end:
            return FastFrames(texts, at, stop - at)
        texts.append(apply_mask(data[start:stop], data[start - 4 : start]))
        at = stop
    begun = data[at : at + 2]
    if begun and (begun[0] != TEXT_FRAME or begun[-1] < MASKED):
        return FastFrames(texts, at, 0)
    return FastFrames(texts, at, end - at + 1)


class ControlFrames(NamedTuple):
    """The pings and pongs at the beginning of received bytes."""

    newest: bytes
    """The last ping and pong: one pong answers all pings before it (RFC 6455, 5.5.3), so a flood takes little time."""
    stop: int
    needed: int
    """How many bytes, from `stop` on, are needed for the next one; 0 if it is another frame."""


def parse_control_frames(data: bytes, at: int) -> ControlFrames:
    newest = dict[int, bytes]()
    while at < len(data) and (size := control_frame_size(data, at)):
        if len(data) - at < size:
            return ControlFrames(b"".join(newest.values()), at, size)
        newest[data[at]] = data[at : at + size]
        at += size
    return ControlFrames(b"".join(newest.values()), at, 0)


def control_frame_size(data: bytes, at: int) -> int:
    """Return the size in bytes of the ping or pong at `at`, as far as is known yet; 0 for any other frame."""
    begun = data[at : at + 2]
    if begun[0] not in (PING_FRAME, PONG_FRAME):
        return 0
    length = begun[-1] - MASKED if len(begun) == 2 else 0
    return MIN_FRAME_BYTES + length if 0 <= length <= MAX_CONTROL_BYTES else 0


MAX_AHEAD = 64
"""How many events a connection may charge in advance, so that few events need the bucket."""
REPORT_INTERVAL_S = 1.0
"""How often a connection over the rate is sent an error that says so."""
MIN_HOLD_S = 0.02
"""Shorter holds would pause and resume the connection thousands of times a second, for one event each."""


@dataclass(slots=True, eq=False)
class Throttle:
    """Counts the events taken from a connection, and charges them and their bytes to the buckets of its key.

    Above the rates of the key nothing is dropped: events wait. While `held`, nothing may be processed. `on_hold` is
    called when that begins, with whether to notify the client, and `on_resume` when it ends. `clock` returns Unix ms.
    """

    clock: Callable[[], int]
    on_hold: Callable[[bool], None]
    on_resume: Callable[[], None]
    bucket: Bucket | None = None
    """The bucket that events are charged to; None without a limit."""
    bytes: Bucket | None = None
    """The bucket that the bytes of messages are charged to; None without a limit."""
    metered: bool = False
    """True if the key is known; until then events are only counted."""
    allowance: int = 0
    """How many events may come before the bucket is needed again; below zero, how many are still to be charged."""
    reserved: int = 0
    """How many events the last charge took ahead."""
    held: bool = False
    """True if events must wait, because their key is over its rate."""
    released: bool = False
    """True if nothing is held any more, because the connection ends."""
    last_report_s: float = -REPORT_INTERVAL_S
    """When the client was last notified, on the loop's clock."""

    def meter(self, buckets: EventBuckets) -> None:
        (self.bucket, self.bytes), self.metered = buckets, True
        if self.bucket is None:
            self.allowance = sys.maxsize

    def count(self, events: int) -> None:
        self.allowance -= events
        if self.allowance < 0:
            self.charge_taken()

    def charge_taken(self) -> None:
        """Charge the processed events, and some ahead; hold the connection if the bucket is empty."""
        if not self.metered or self.bucket is None:
            return
        # A busy connection charges up to 64 events ahead, so that most events cost one subtraction. It gets there by
        # doubling, so that a quiet connection keeps little of what the others of its key could use.
        charged = self.bucket.charge(-self.allowance, min(2 * self.reserved + 1, MAX_AHEAD), self.clock())
        self.allowance = self.reserved = charged.prepaid
        self.hold(charged.wait_s)

    def charge_bytes(self, size: int) -> None:
        """Charge the bytes of processed messages; hold the connection if the bucket is empty.

        Nothing is charged ahead: a charge takes little time next to a message's own work, and only if there is a rate.
        """
        if self.metered and self.bytes is not None:
            self.hold(self.bytes.charge(size, 0, self.clock()).wait_s)

    def hold(self, wait_s: float) -> None:
        if not wait_s or self.held or self.released:
            return
        self.held = True
        loop = asyncio.get_running_loop()
        notify = loop.time() - self.last_report_s >= REPORT_INTERVAL_S
        if notify:
            self.last_report_s = loop.time()
        self.on_hold(notify)
        loop.call_later(max(wait_s, MIN_HOLD_S), self.end_hold)

    def release(self) -> None:
        """Hold nothing from now on; events are only charged."""
        self.held, self.released = False, True

    def drop_references(self) -> None:
        """Break reference cycles."""
        self.on_hold, self.on_resume = (lambda notify: None), (lambda: None)

    def end_hold(self) -> None:
        """End a hold, or begin another: connections with the same key may have emptied the bucket again."""
        if self.held:
            self.held = False
            self.charge_taken()
            self.charge_bytes(0)
            if not self.held:
                self.on_resume()
