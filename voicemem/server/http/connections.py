"""Connections of a port: their limits, fair reading, and aiohttp's protocol with voicemem's answers.

Connections whose client has not sent a key yet are few and give way: when there is no room for a new one, the oldest
idle one is closed. So a client that has just connected is always heard, `/livez` is always answered, and connections
with a key are never pushed out by those without.

A connection that sends much at once is read piece by piece, and the others in between: an event loop hands over up to a
quarter of a MiB at a time. That may be 40,000 pings, or 50,000 chunks of a body: hundreds of milliseconds in which no
one else is served. HTTP is read one piece at a time (`InPieces`); bytes of a websocket wait in a fair queue.

Requests that are not HTTP get a problem document too, and are not logged: aiohttp answers and logs them before any
handler sees them, with the bytes that were sent, keys included. Slow peers lose their connection: aiohttp itself waits
an hour for a head that drips, and forever for a reader that does not read. Compressed bodies are unpacked only where
they are read: aiohttp would unpack every one, for seconds in which it serves no other request.
"""

from __future__ import annotations

import asyncio
import re
import resource
import select
import time
from collections import Counter, deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from itertools import islice
from typing import Any, NamedTuple, Protocol, cast

from aiohttp import web
from aiohttp.web_protocol import RequestHandler, RequestPayloadError
from aiohttp.web_request import BaseRequest

from voicemem.config.service import Address
from voicemem.errors import CODES, Refused
from voicemem.server.http.problems import SERVER, problem_response, turned_away

BACKLOG = 1_024
"""Connections that the kernel holds until they are accepted. It drops further ones, and a client that was dropped tries
again after one second, and after three; a burst of clients easily exceeds the usual 100."""
USUAL_HEAD_BYTES = 16 * 1024
"""The size of a usual head: a client that has sent more without a key gives way even while it is being read."""


class Client(Protocol):
    """One connection of a port."""

    address: str | None
    transport: Any

    def is_idle(self) -> bool:
        """Return whether nothing is being done for the connection, so that closing it loses nothing."""

    def turn_away(self) -> None:
        """Tell the peer that there are too many connections, if the protocol allows it, and close."""


class ConnectionLimits(NamedTuple):
    """The limits of connections to a port."""

    authenticated: int
    unauthenticated: int
    per_address: int = 0
    """From one address, of both kinds; 0 for no limit."""
    unauthenticated_bytes: int = 16 * 1024 * 1024
    """The most bytes that all connections together may send before their keys."""

    @classmethod
    def of_port(cls, most: int, share: float, per_address: int = 0) -> ConnectionLimits:
        """Divide the connections of a port; `share` is the part of those without a key."""
        unauthenticated = min(max(4, int(most * share)), 1_024)
        return cls(max(1, most - unauthenticated), unauthenticated, per_address)


@dataclass(slots=True, eq=False)
class Arrival:
    """The cost so far of a connection without a key."""

    since_s: float
    received: int = 0


class PortConnections:
    """The open connections of one port; `count_refused` is called for each that is refused or gives way."""

    def __init__(self, limits: ConnectionLimits, count_refused: Callable[[], None]) -> None:
        self.limits = limits
        self.count_refused = count_refused
        self.unauthenticated: dict[Client, Arrival] = {}
        """The oldest first."""
        self.authenticated: dict[Client, None] = {}
        """The least recently used first."""
        self.by_address: Counter[str | None] = Counter()
        self.unauthenticated_by_address: Counter[str | None] = Counter()
        """The number of `unauthenticated` connections by address."""
        self.received = 0
        """Bytes received from all `unauthenticated` connections."""
        self.turns = ReadingQueue()

    def admit(self, client: Client) -> bool:
        """Take a new connection, or turn it away and return False."""
        limits = self.limits
        crowded = limits.per_address and self.by_address[client.address] >= limits.per_address
        full = len(self.unauthenticated) >= limits.unauthenticated
        if crowded or (full and not self.make_room()):
            self.count_refused()
            client.turn_away()
            return False
        self.unauthenticated[client] = Arrival(asyncio.get_running_loop().time())
        self.unauthenticated_by_address[client.address] += 1
        self.by_address[client.address] += 1
        return True

    def authenticate(self, client: Client) -> bool:
        """Note that a connection has sent a key; return False if there is no room for another one with a key."""
        if client in self.authenticated:
            del self.authenticated[client]  # it goes to the end
        elif client in self.unauthenticated:
            if len(self.authenticated) >= self.limits.authenticated and not self.close_idle():
                self.count_refused()
                return False
            self.forget_unauthenticated(client, self.unauthenticated.pop(client))
        else:
            return False
        self.authenticated[client] = None
        return True

    def count_received(self, client: Client, size: int) -> None:
        """Count bytes of a connection that may have sent no key; too many in all push out the one that sent most."""
        arrival = self.unauthenticated.get(client)
        if arrival is None:
            return
        arrival.received += size
        self.received += size
        while self.received > self.limits.unauthenticated_bytes:
            senders = [one for one in self.unauthenticated if self.unauthenticated[one].received]
            if not self.close_first(sorted(senders, key=lambda one: -self.unauthenticated[one].received)):
                break

    def remove(self, client: Client) -> None:
        """Remove a closed connection; an unknown one is ignored."""
        arrival = self.unauthenticated.pop(client, None)
        if arrival is not None:
            self.forget_unauthenticated(client, arrival)
        elif client in self.authenticated:
            del self.authenticated[client]
        else:
            return
        self.by_address[client.address] -= 1
        if not self.by_address[client.address]:
            del self.by_address[client.address]

    def forget_unauthenticated(self, client: Client, arrival: Arrival) -> None:
        self.received -= arrival.received
        self.unauthenticated_by_address[client.address] -= 1
        if not self.unauthenticated_by_address[client.address]:
            del self.unauthenticated_by_address[client.address]

    def make_room(self) -> bool:
        """Close a connection without a key: the oldest idle one of the address that has the most of them."""
        most = max(self.unauthenticated_by_address.values(), default=0)
        crowd = (client for client in self.unauthenticated if self.unauthenticated_by_address[client.address] == most)
        if self.close_first(crowd) or self.close_first(self.unauthenticated):
            return True
        largest = max(self.unauthenticated, key=lambda client: self.unauthenticated[client].received, default=None)
        if largest is None or self.unauthenticated[largest].received <= USUAL_HEAD_BYTES:
            return False
        self.close(largest)
        return True

    def close_first(self, clients: Iterable[Client]) -> bool:
        long_ago = asyncio.get_running_loop().time() - 1.0  # nearly every answer takes less
        for client in clients:
            if (client.is_idle() and not has_unread(client)) or self.unauthenticated[client].since_s < long_ago:
                self.close(client)
                return True
        return False

    def close_idle(self) -> bool:
        idle = next((client for client in islice(self.authenticated, 256) if client.is_idle()), None)
        if idle is not None:
            self.close(idle)
        return idle is not None

    def close(self, client: Client) -> None:
        self.remove(client)
        self.count_refused()
        client.turn_away()


def has_unread(client: Client) -> bool:
    """Return whether bytes wait to be read: many may connect before a request that has just come is read."""
    poll = select.poll()
    poll.register(client.transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


def max_files() -> int:
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return 65_536 if soft == resource.RLIM_INFINITY else soft


def ingest_limits(per_address: int = 0) -> ConnectionLimits:
    """Return the limits of the ingest port: half of the files that the process may have open."""
    return ConnectionLimits.of_port(max_files() // 2, 1 / 4, per_address)


def rest_limits(per_address: int = 0) -> ConnectionLimits:
    """Return the limits of the REST port: a quarter. The store, webhooks and LLM requests have the rest."""
    return ConnectionLimits.of_port(max_files() // 4, 1 / 2, per_address)


AT_ONCE = 4 * 1024
"""Bytes that are processed as they come; more wait in the fair queue."""
PIECE = 8 * 1024
"""Bytes that a connection is given at a time, unless it asks for another size."""
ROUND_S = 0.005
"""How long the pieces of one round of the event loop may take together."""


class PacedConnection(Protocol):
    """A connection that has an `Unread`."""

    def take(self, data: bytes) -> None:
        """Process received bytes."""

    @property
    def takes_more(self) -> bool:
        """Return whether the connection wants more bytes now."""


class ReadingQueue:
    """A fair queue of the connections of one port that have sent much."""

    def __init__(self) -> None:
        self.waiting: deque[Unread] = deque()
        self.scheduled = False

    def add(self, unread: Unread) -> None:
        """Queue a connection until it has nothing unread, or accepts no more."""
        self.waiting.append(unread)
        if not self.scheduled:
            self.scheduled = True
            asyncio.get_running_loop().call_soon(self.run)

    def run(self) -> None:
        """Process some pieces, one of each connection in turn, and the next ones in the next round."""
        ends = time.monotonic() + ROUND_S
        try:
            while self.waiting and time.monotonic() < ends:
                unread = self.waiting.popleft()
                if unread.take_piece():
                    self.waiting.append(unread)
        finally:
            self.scheduled = bool(self.waiting)
            if self.scheduled:
                asyncio.get_running_loop().call_soon(self.run)


class Source(Protocol):
    """The transport of a connection, as far as reading is concerned."""

    def pause_reading(self) -> None: ...

    def resume_reading(self) -> None: ...

    def is_closing(self) -> bool: ...


@dataclass(slots=True, eq=False, repr=False)
class Unread:
    """Received bytes of a connection that are not processed yet. While there are any, its source is not read."""

    connection: PacedConnection
    source: Source
    turns: ReadingQueue
    piece: int = PIECE
    data: bytes = b""
    in_line: bool = False
    ended: Callable[[], None] | None = None
    """Called once everything is processed, after the connection was lost."""

    def __bool__(self) -> bool:
        return bool(self.data)

    def receive(self, data: bytes) -> None:
        """Process bytes at once if they are few, else through the fair queue."""
        if not self.data and len(data) <= min(AT_ONCE, self.piece):
            self.connection.take(data)
        else:
            self.data += data
            self.put_back(b"")

    def put_back(self, data: bytes) -> None:
        """Put bytes back in front of the unread ones."""
        self.data = data + self.data
        if not self.source.is_closing():
            self.source.pause_reading()
        self.wait_in_line()

    def wait_in_line(self) -> None:
        """Wait in the fair queue to continue with the unread bytes."""
        if self.data and not self.in_line:
            self.in_line = True
            self.turns.add(self)

    def take_piece(self) -> bool:
        """Process the next piece; False if there is none, or the connection accepts no more for now."""
        self.in_line = False
        if not self.data and self.ended:
            self.ended()
        if not self.data or not (self.ended or self.is_wanted):
            return False
        piece, self.data = self.data[: self.piece], self.data[self.piece :]
        self.connection.take(piece)
        if self.data:
            was_in_line, self.in_line = self.in_line, True  # the connection itself may have asked to continue
            return not was_in_line
        if self.ended:
            self.ended()
        elif self.is_wanted:
            self.source.resume_reading()
        return False

    @property
    def is_wanted(self) -> bool:
        return self.connection.takes_more and not self.source.is_closing()

    def end(self, ended: Callable[[], None]) -> None:
        """Process the rest through the fair queue too (a thousand may be lost at once), and then call `ended`."""
        self.ended = ended
        if not self.in_line:
            self.in_line = True
            self.turns.add(self)


class Deadlines(NamedTuple):
    """The times for which a connection waits for its peer, in seconds."""

    head: float = 10.0
    """From connecting to the end of the first request's head."""
    idle: float = 75.0
    """From an answer to the end of the next request's head; more than the 60 s for which proxies keep connections."""
    linger: float = 5.0
    """After an answer, for the rest of a body that the handler did not read."""
    read: float = 30.0
    """The longest time in which the peer reads no byte of an answer; noticed after one to two times this long."""
    body: float = 30.0
    """For a whole body, other than that of a restored checkpoint; aiohttp itself sets no limit."""


DEADLINES = Deadlines()
READ_BYTES = 4 * 1024
"""Bytes read at a time from a connection. Of a body that no handler has read yet, two to three times as much is kept:
aiohttp goes through all of it again for every few chunks, which may be of one byte each."""


class ProblemHandler(RequestHandler):
    """One HTTP connection, one of `port`."""

    __slots__ = (
        "address",
        "deadlines",
        "last_look",
        "on_lost",
        "port",
        "requests",
        "timers",
        "working",
        "writes_resumed",
    )

    def __init__(self, server: web.Server, deadlines: Deadlines, port: PortConnections) -> None:
        options: dict[str, Any] = {"access_log": None, "auto_decompress": False}
        super().__init__(
            server,
            loop=asyncio.get_running_loop(),
            keepalive_timeout=deadlines.idle,
            lingering_time=deadlines.linger,
            read_bufsize=READ_BYTES,
            **options,
        )
        self.deadlines = deadlines
        self.port = port
        self.address: str | None = None
        self.timers: dict[str, asyncio.TimerHandle] = {}
        self.requests = 0
        """How many requests have begun to be answered."""
        self.working = False
        """True while a request is being answered: meanwhile the connection gives way to no other."""
        self.writes_resumed = 0
        """How often the peer has read so much that writing could continue."""
        self.on_lost: Callable[[], object] | None = None
        """Called when the connection is lost; set by handlers whose answer takes long."""
        self.last_look: tuple[int, ...] = ()

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        connection = cast(asyncio.Transport, transport)
        peer = connection.get_extra_info("peername")
        self.address = str(peer[0]) if peer else None
        super().connection_made(connection)
        if not self.port.admit(self):
            return
        loop = asyncio.get_running_loop()
        self.timers["head"] = loop.call_later(self.deadlines.head, self.check_head, connection)
        self.timers["read"] = loop.call_later(self.deadlines.read, self.check_stalled, connection)

    def connection_lost(self, exc: BaseException | None) -> None:
        self.port.remove(self)
        for timer in self.timers.values():
            timer.cancel()
        if self.on_lost is not None:
            self.on_lost()
        super().connection_lost(exc)

    def data_received(self, data: bytes) -> None:
        if self in self.port.unauthenticated:
            self.port.count_received(self, len(data))
        super().data_received(data)

    def is_idle(self) -> bool:
        return not self.working

    def turn_away(self) -> None:
        """Close; say why, unless the peer has had an answer and may mistake this for the next one."""
        transport = cast(asyncio.Transport, self.transport)
        if self.requests == 0:
            transport.write(turned_away())
        transport.close()
        if transport.get_write_buffer_size():
            transport.abort()

    def resume_writing(self) -> None:
        self.writes_resumed += 1
        super().resume_writing()

    def check_head(self, connection: asyncio.Transport) -> None:
        if self.requests == 0:
            connection.abort()

    def check_stalled(self, connection: asyncio.Transport) -> None:
        """Abort a connection whose peer has read nothing since the last check, also one that is being closed."""
        # Three numbers, since each alone can stay the same while the peer reads: the bytes that wait may be as many
        # again, writing is only resumed after it was paused, and a long answer is one request.
        unsent = connection.get_write_buffer_size()
        seen = (unsent, self.writes_resumed, self.requests)
        if unsent and seen == self.last_look:
            connection.abort()
            return
        self.last_look = seen
        timer = asyncio.get_running_loop().call_later(self.deadlines.read, self.check_stalled, connection)
        self.timers["read"] = timer

    def log_exception(self, *args: Any, **more: Any) -> None:
        """Log faults of the service only: a client could fill the log with broken bodies that no handler reads."""
        if not isinstance(more.get("exc_info"), RequestPayloadError):
            super().log_exception(*args, **more)

    def handle_error(
        self, request: BaseRequest, status: int = 500, exc: BaseException | None = None, message: str | None = None
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


class InPieces(asyncio.BufferedProtocol):
    """Passes received bytes to a connection in pieces: only with a buffer can a protocol bound what is read at once.

    All connections share the buffer, since each piece is copied out of it at once.
    """

    def __init__(self, connection: asyncio.Protocol, buffer: bytearray) -> None:
        self.connection = connection
        self.buffer = buffer

    def get_buffer(self, sizehint: int) -> bytearray:
        return self.buffer

    def buffer_updated(self, nbytes: int) -> None:
        self.connection.data_received(bytes(memoryview(self.buffer)[:nbytes]))

    def connection_made(self, transport: asyncio.BaseTransport) -> None:
        self.connection.connection_made(transport)

    def connection_lost(self, exc: Exception | None) -> None:
        self.connection.connection_lost(exc)

    def pause_writing(self) -> None:
        self.connection.pause_writing()

    def resume_writing(self) -> None:
        self.connection.resume_writing()


ONCE = re.compile(
    r"host|origin|authorization|expect|content-(?:type|length|encoding)|last-event-id|x-voicemem-.*"
    r"|.*(?:signature|secret|token|timestamp).*"
)
"""Headers that identify sender and message, in lower case: of two, a proxy before the service may use the other."""


def check_repeated(request: web.Request) -> None:
    """Raise `Refused` for a repeated header that may be sent once."""
    headers = request.headers
    if len(names := [*headers]) < len(headers):
        for name in names:
            if len(headers.getall(name)) > 1 and ONCE.fullmatch(name.lower()):
                raise Refused("invalid_http", f"The header {name} may be sent once.")


async def answer_expect(request: web.Request) -> web.StreamResponse | None:
    """Answer an `Expect` header, which may only ask for 100-continue."""
    if request.headers.get("Expect", "").lower() != "100-continue":
        return problem_response("invalid_http", "The value of Expect must be 100-continue.")
    await request.writer.write(b"HTTP/1.1 100 Continue\r\n\r\n")
    request.writer.output_size = 0  # the answer proper has not begun
    return None


def connection_of(request: web.Request) -> ProblemHandler:
    connection = request.protocol
    assert isinstance(connection, ProblemHandler)
    return connection


def authenticated(request: web.Request) -> None:
    """Note that the client of a request has sent a key, or needs none. Raises `Refused` (`too_many_connections`)."""
    connection = connection_of(request)
    if not connection.port.authenticate(connection):
        raise Refused("too_many_connections")


async def listen(
    runner: web.ServerRunner,
    address: Address,
    deadlines: Deadlines = DEADLINES,
    *,
    connections: PortConnections,
    start_serving: bool = True,
) -> asyncio.Server:
    """Listen with a runner that was set up, or only bind the port. Raises `OSError`."""
    server = runner.server
    assert server is not None
    buffer = bytearray(READ_BYTES)
    return await asyncio.get_running_loop().create_server(
        lambda: InPieces(ProblemHandler(server, deadlines, connections), buffer),
        address.host,
        address.port,
        backlog=BACKLOG,
        reuse_address=True,
        start_serving=start_serving,
    )
