"""The websocket of an ingest connection: each whole message goes to its listener at once, without a queue."""

from __future__ import annotations

from collections.abc import Callable
from http import HTTPStatus
from typing import Any

from websockets.asyncio.server import ServerConnection
from websockets.datastructures import Headers
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.protocol import Event, State
from websockets.typing import StatusLike

from voicemem.errors import CODES, Refused
from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.server.http.problems import MEDIA_TYPE, headers_of, problem_body
from voicemem.server.ingest.fast_frames import TEXT as PLAIN
from voicemem.server.ingest.fast_frames import apply_mask, control_frame_size, parse_fast_frames

BINARY, CONT, TEXT, OPEN = Opcode.BINARY, Opcode.CONT, Opcode.TEXT, State.OPEN
MAX_FRAGMENTS = 1_024
"""Of one message, as the library has it for its own queue."""
MAX_UNSENT_BYTES = 4 * 1024 * 1024
"""A peer that lets so much wait is one that does not read."""
READ_TIMEOUT_S = 30.0
"""For a peer to read something of what waits."""
TOO_MANY = "too many fragments"
END_OF_REQUEST = b"\r\n\r\n"
SHORT_BYTES = 125
"""Of a message whose length takes one byte."""
Listener = Callable[[bytes, bool], None]
"""Takes a message, and whether it is binary."""


class EventSocket(ServerConnection):
    """A server connection whose messages are heard in the moment of their arrival; `recv` is not used.

    Plain frames are parsed here (`voicemem.server.ingest.fast_frames`); `websockets` parses and checks all
    others, and has the handshake, keepalive and closing. Its queue of messages, and the switch to the
    task that waits for it, are left out.
    """

    def __init__(self, *args: Any, **options: Any) -> None:
        super().__init__(*args, **options)
        self.protocol.reject = invalid_handshake_response  # type: ignore[method-assign]  # its own answers are plain text
        self.listener: Listener | None = None
        self.undelivered: list[tuple[bytes, bool]] = []
        """Messages that came before there was a listener."""
        self.fragments: list[Frame] = []
        self.sent_ahead = False
        """Whether the client sent something behind its request, without waiting for the answer."""
        self.fast = False
        """Whether there were plain frames, pings and pongs only, so that the library stands between two frames."""
        self.partial = bytearray()
        """A plain frame that has not come whole, and how many bytes it needs."""
        self.bytes_needed = 0
        self.reading = True
        self.stall_check_due = False
        """Whether it will be looked at again what the peer has read."""

    def listen(self, listener: Listener) -> None:
        """Hear every message, those included that came before."""
        self.listener = listener
        self.fast = apply_mask is not None and not self.sent_ahead
        undelivered, self.undelivered = self.undelivered, []
        for message in undelivered:
            listener(*message)

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
        """The code of a close that came from here, and not from the peer."""
        sent = self.protocol.close_sent
        return None if sent is None or self.protocol.close_rcvd_then_sent else sent.code

    def set_reading(self, reading: bool) -> None:
        """Read from the network, or leave it to TCP to hold the sender back."""
        if reading != self.reading and not self.transport.is_closing():
            self.reading = reading
            (self.transport.resume_reading if reading else self.transport.pause_reading)()

    def send_nowait(self, message: bytes) -> None:
        """Send a text message without waiting for anything; a peer that never reads is cut off."""
        if self.transport.is_closing():
            return
        if self.protocol.state is OPEN and len(message) > SHORT_BYTES:
            self.protocol.send_text(message)
            self.send_data()
        elif self.protocol.state is OPEN:
            self.transport.write(b"%c%c%b" % (PLAIN, len(message), message))
        self.check_unsent()

    # Bytes in

    def data_received(self, data: bytes) -> None:
        if self.fast:
            self.parse(data)
        else:
            asked = self.request is not None
            self.feed_library(data)
            if self.listener is None and self.request is not None:
                self.sent_ahead = self.sent_ahead or asked or not data.endswith(END_OF_REQUEST)

    def parse(self, data: bytes) -> None:
        """Hear what is plain; from the first other frame on, all is left to the library."""
        if self.partial:
            self.partial += data
            if len(self.partial) < self.bytes_needed:
                return
            data, self.partial = bytes(self.partial), bytearray()
        at, bytes_needed = 0, 0
        while not bytes_needed:
            texts, at, bytes_needed = parse_fast_frames(data, at, MAX_FRAME_BYTES)
            for text in texts:
                self.deliver(text, False)
            if bytes_needed:
                break
            control = control_frame_size(data, at)
            if not control:
                self.fast = False
                self.feed_library(data[at:])
                return
            if len(data) - at < control:
                bytes_needed = control
            else:
                self.feed_library(data[at : at + control])
                at += control
        self.partial += data[at:]
        self.bytes_needed = bytes_needed

    def feed_library(self, data: bytes) -> None:
        super().data_received(data)
        self.check_unsent()  # pings are answered in there

    def check_unsent(self) -> None:
        """Cut off a peer that does not read: one that lets too much wait, or anything for too long."""
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


BY_STATUS = {405: "method_not_allowed", 500: "internal", 503: "draining"}
NO_HANDSHAKE = "This port takes websockets at /v1/ingest and nothing else; the REST API has a port of its own."


def rejection_response(refused: Refused) -> Response:
    """The answer to a handshake that is refused."""
    return handshake_problem(HTTPStatus(CODES[refused.code].status), refused.code, refused.detail, headers_of(refused))


def invalid_handshake_response(status: StatusLike, text: str) -> Response:
    """The answer to what is no handshake; the library's `text` may quote the request, so it is not repeated."""
    code = BY_STATUS.get(int(status), "invalid_http")
    detail = CODES[code].sentence if int(status) >= 500 else NO_HANDSHAKE
    return handshake_problem(HTTPStatus(status), code, detail, {})


def handshake_problem(status: HTTPStatus, code: str, detail: str, headers: dict[str, str]) -> Response:
    body = problem_body(code, detail, status)
    given = Headers({"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"})
    given.update(headers)
    return Response(status.value, status.phrase, given, body)
