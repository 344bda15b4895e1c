"""aiohttp's HTTP protocol with voicemem's answers and deadlines.

Requests that are not HTTP get a problem document too, and are not logged: aiohttp answers and logs them before any
handler sees them, with the bytes that were sent, keys included. Slow peers lose their connection: aiohttp itself waits
an hour for a head that drips, and without end for a reader that does not read. Compressed bodies are only unpacked
where they are read: aiohttp would unpack every one, for seconds in which it serves no other request.
"""

import asyncio
import zlib
from collections.abc import Callable
from typing import Any, NamedTuple, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest

from voicemem.config.service import Address
from voicemem.errors import CODES, InvalidFrame, Refused
from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.server.http.connections import BACKLOG, PortConnections, Unread
from voicemem.server.http.problems import SERVER, problem_response, turned_away


class Deadlines(NamedTuple):
    """How long a connection waits for its peer, in seconds. The deadline of a body is `request.BODY_TIMEOUT_S`."""

    head: float = 10.0
    """From connecting to the end of the first request's head."""
    idle: float = 75.0
    """From an answer to the end of the next request's head; more than the 60 s for which proxies keep connections."""
    linger: float = 5.0
    """After an answer, for the rest of a body that the handler did not read."""
    read: float = 30.0
    """Without taking a byte of an answer; noticed after one to two times this long."""


DEADLINES = Deadlines()
PIECE_BYTES = 16 * 1024
"""Read at a time of what a connection sends at once; even in chunks of one byte each it is parsed in 5 ms. Of a body
that is not read yet, two to three pieces are kept."""
BROKEN_BODY = "The body is incomplete, or not encoded as its headers say."


class ProblemHandler(RequestHandler):
    """One HTTP connection, one of `port`."""

    __slots__ = ("address", "deadlines", "last_look", "on_lost", "port", "timers", "unread", "writes_resumed")

    def __init__(self, server: web.Server, deadlines: Deadlines, port: PortConnections) -> None:
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False}
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=deadlines.idle,
            lingering_time=deadlines.linger,
            read_bufsize=PIECE_BYTES,
            **options,
        )
        self.deadlines = deadlines
        self.port = port
        self.address: str | None = None
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self.writes_resumed = 0
        """How often the peer has read so much that writing could go on."""
        self.on_lost: Callable[[], object] | None = None
        """Called when the connection is lost; set by handlers whose answer takes long."""
        self.last_look: tuple[int, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        peer = connection.get_extra_info("peername")
        self.address = str(peer[0]) if peer else None
        self.unread = Unread(self, connection, self.port.turns, PIECE_BYTES)
        super().connection_made(connection)
        if not self.port.admit(self):
            return
        self.timers["head"] = self._loop.call_later(self.deadlines.head, self.check_head, connection)
        self.timers["read"] = self._loop.call_later(self.deadlines.read, self.check_stalled, connection)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.port.remove(self)
        for timer in self.timers.values():
            timer.cancel()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if not data:  # from aiohttp itself, which goes on with what it has
            super().data_received(data)
            return
        self.port.count_received(self, len(data))
        self.unread.receive(data)

    def take(self, data: bytes) -> None:
        super().data_received(data)

    @property
    def takes_more(self) -> bool:
        return not (self._reading_paused or self._buffer_paused)

    def _resume_transport_reading(self) -> None:
        if self.unread:
            self.unread.wait_in_line()
        else:
            super()._resume_transport_reading()

    def is_idle(self) -> bool:
        return self._current_request is None and not self._messages

    def turn_away(self) -> None:
        """Close; say why, unless the peer has had an answer and may take this for one to its next request."""
        transport = cast(asyncio.Transport, self.transport)
        if self._request_count == 0:
            transport.write(turned_away())
        transport.close()
        if transport.get_write_buffer_size():
            transport.abort()

    def resume_writing(self) -> None:
        self.writes_resumed += 1
        super().resume_writing()

    def check_head(self, connection: asyncio.Transport) -> None:
        if self._request_count == 0:
            connection.abort()

    def check_stalled(self, connection: asyncio.Transport) -> None:
        """Abort a connection whose peer took nothing since the last look, also one that is being closed."""
        # Three numbers, since each alone can stay the same while the peer reads: the bytes that wait may be as many
        # again, writing is only resumed after it was paused, and a long answer is one request.
        unsent = connection.get_write_buffer_size()
        seen = (unsent, self.writes_resumed, self._request_count)
        if unsent and seen == self.last_look:
            connection.abort()
            return
        self.last_look = seen
        self.timers["read"] = self._loop.call_later(self.deadlines.read, self.check_stalled, connection)

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log faults of the service only: a caller could fill the log with broken bodies that no handler reads."""
        if not isinstance(more.get("exc_info"), RequestPayloadError):
            super().log_exception(*args, **more)

    def handle_error(
        self,
        request: BaseRequest,
        status: int = 500,
        exc: BaseException | None = None,
        message: str | None = None,
    ) -> web.StreamResponse:
        code = "internal" if status >= 500 else "invalid_http"
        if code == "internal":
            self.log_exception("A request failed", exc_info=exc)
        if request.writer.output_size > 0:
            raise ConnectionError("The answer had already begun.")
        response = problem_response(code, CODES[code].sentence)
        response.headers["Server"] = SERVER
        response.force_close()
        return response


async def answer_expect(request: web.Request) -> web.StreamResponse | None:
    """Answer an `Expect` header, which may only ask for 100-continue."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return problem_response("invalid_http", "The value of Expect must be 100-continue.")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer proper has not begun
    return None


def decompress(body: bytes, encoding: str, most: int = MAX_FRAME_BYTES) -> bytes:
    """Undo the `Content-Encoding` of a body, which may be gzip or deflate. Raises `InvalidFrame`."""
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() not in ("gzip", "deflate"):
        raise InvalidFrame("invalid_http", "The Content-Encoding of a body must be gzip or deflate.")
    unpacking = zlib.decompressobj(wbits=47)  # the largest window, and either header
    try:
        text = unpacking.decompress(body, most + 1)
    except zlib.error:
        raise InvalidFrame("invalid_http", BROKEN_BODY) from None
    if len(text) > most:
        raise InvalidFrame("too_big", f"A body may be at most {most // 1024**2} MiB.")
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidFrame("invalid_http", BROKEN_BODY)
    return text


def authenticated(request: web.Request) -> None:
    """Note that the caller of a request has shown a key, or needs none. Raises `Refused` (`too_many_connections`)."""
    connection = request.protocol
    if isinstance(connection, ProblemHandler) and not connection.port.authenticate(connection):
        raise Refused("too_many_connections")


async def listen(
    runner: web.AppRunner,
    address: Address,
    deadlines: Deadlines = DEADLINES,
    *,
    connections: PortConnections,
    start_serving: bool = True,
) -> asyncio.Server:
    """Listen with a runner that was set up, or only take the port. Raises `OSError`."""
    server = runner.server
    assert server is not None
    return await asyncio.get_running_loop().create_server(
        lambda: ProblemHandler(server, deadlines, connections),
        address.host,
        address.port,
        backlog=BACKLOG,
        reuse_address=True,
        start_serving=start_serving,
    )
