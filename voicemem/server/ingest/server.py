"""The ingest server: accepts websockets, knows the holder of each lease, and drains."""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from functools import partial
from inspect import signature
from typing import Any, cast
from weakref import WeakKeyDictionary

from websockets.asyncio.server import Server, ServerConnection, serve
from websockets.datastructures import MultipleValuesError
from websockets.exceptions import WebSocketException
from websockets.http11 import Request, Response
from websockets.typing import Subprotocol

from voicemem.config.service import Address
from voicemem.dialects.registry import MAX_DIALECT_FRAME_BYTES
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.frames import PROTOCOL
from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.runtime import FairQueue
from voicemem.security.access import Gate, Grant
from voicemem.server.http.connections import BACKLOG, ConnectionLimits, PortConnections
from voicemem.server.http.problems import SERVER, rejection_response
from voicemem.server.http.request import Decoding
from voicemem.server.ingest.connection import Connection
from voicemem.server.ingest.dialect_connection import DialectConnection, DialectTarget, parse_target
from voicemem.server.ingest.producer_leases import IngestHost
from voicemem.server.ingest.shared_poll import SharedPoll, shared_poll_if_possible
from voicemem.server.ingest.websocket import EventSocket
from voicemem.sessions.lifecycle import Presence
from voicemem.sessions.recording.recorder import Recorder

LOG = logging.getLogger("voicemem.websockets")
LOG.setLevel(logging.WARNING)  # below that the library logs every connection, and at DEBUG what was said


def is_worth_logging(record: logging.LogRecord) -> bool:
    """Leave out bad handshakes: before version 17 `websockets` logs each with a traceback that quotes it."""
    error = record.exc_info[1] if record.exc_info else None
    return not (record.msg == "opening handshake failed" and isinstance(error, WebSocketException))


LOG.addFilter(is_worth_logging)

GRANT_CHECK_S = 0.4
"""How soon the service notices that another process revoked a key, or that a token has expired."""
ENDINGS_A_ROUND = 8
"""Connections that are drained or wound down in one round of the event loop."""
DRAIN_TIMEOUT_S = 6.0
CLOSE_TIMEOUT_S = 2.0
"""How long a client may take to answer a close; a drain must end within 10 s."""
CAN_SAY_WHY = "code" in signature(Server.close).parameters
GOODBYE: dict[str, Any] = {"code": 1012, "reason": "draining"} if CAN_SAY_WHY else {}
"""Closes the connections that do not have a `Connection` yet. Before version 16 `websockets` always says 1001."""


class IngestServer(IngestHost):
    """The websocket server."""

    def __init__(
        self,
        recorder: Recorder,
        presence: Presence,
        gate: Gate,
        decoding: Decoding,
        limits: ConnectionLimits,
        shares_poll: bool = True,
    ) -> None:
        super().__init__(recorder, presence, gate, decoding)
        self.port = PortConnections(limits, self.metrics.connections_refused.labels("websocket").inc)
        self.connections: set[Connection] = set()
        self.grants: WeakKeyDictionary[ServerConnection, Grant] = WeakKeyDictionary()
        """The grants of connections between their handshake and `handle`."""
        self.targets: WeakKeyDictionary[ServerConnection, DialectTarget] = WeakKeyDictionary()
        """The same for those on a path of bare frames."""
        self.endings = FairQueue(ENDINGS_A_ROUND)
        """Connections that end: a thousand may be lost or drained at once, and the others are served in between."""
        self.draining = False
        self.drain_timeout_s = DRAIN_TIMEOUT_S
        self.shares_poll = shares_poll
        self.shared_poll: SharedPoll | None = None
        self.server: Server | None = None

    async def start(self, address: Address) -> Address:
        """Listen; return the address with the port that was taken. Raises `OSError`."""
        self.shared_poll = shared_poll_if_possible() if self.shares_poll else None
        self.server = await serve(
            self.handle,
            address.host,
            address.port,
            create_connection=cast(Any, partial(EventSocket, port=self.port, shared_poll=self.shared_poll)),
            process_request=self.check_handshake,
            select_subprotocol=lambda _, offered: Subprotocol(PROTOCOL) if PROTOCOL in offered else None,
            compression=None,  # saves 50 KiB a connection, and rules out bombs
            max_size=MAX_FRAME_BYTES,
            close_timeout=CLOSE_TIMEOUT_S,
            logger=LOG,
            server_header=SERVER,
            backlog=BACKLOG,
        )
        return Address(address.host, next(iter(self.server.sockets)).getsockname()[1])

    async def check_handshake(self, connection: ServerConnection, request: Request) -> Response | None:
        """Check path, host, origin and key before the upgrade; return a problem document to refuse it."""
        assert isinstance(connection, EventSocket)
        # Bytes that the client sends meanwhile stay with TCP, since its identity is not known yet.
        connection.set_reading(False)
        try:
            target = parse_target(request.path)
            if self.draining:
                raise Refused("draining")
            needed = await self.gate.check_origin(request.headers.get("Host"), request.headers.get("Origin"))
            authorization = request.headers.get("Authorization")
            if target is not None and target.token is not None:
                if authorization is not None:
                    raise Refused("invalid_query", "Send one key: in Authorization, or as the token of the URL.")
                authorization = f"Bearer {target.token}"
            if authorization is not None or not needed:
                grant = await self.gate.grant(authorization, needed, connection.address)
                session_id = grant.session_id if target is None else target.session_id or grant.session_id
                grant.require("ingest", session_id)
                if not connection.authenticate():
                    raise Refused("too_many_connections")
                if target is not None:
                    connection.accept_up_to(MAX_DIALECT_FRAME_BYTES)
                self.grants[connection] = grant
            if target is not None:
                self.targets[connection] = target
        except (Refused, StoreUnavailable) as refused:
            return self.reject_handshake(refused)
        except MultipleValuesError as repeated:
            return self.reject_handshake(Refused("invalid_http", f"The header {repeated.args[0]} may be sent once."))
        except ValueError:
            return self.reject_handshake(Refused("invalid_http"))
        finally:
            connection.set_reading(True)
        return None

    def reject_handshake(self, refused: Refused | StoreUnavailable) -> Response:
        self.metrics.connections_rejected.labels(refused.code).inc()
        return rejection_response(refused)

    async def handle(self, websocket: ServerConnection) -> None:
        """Serve one connection, from its first frame until everything received is answered."""
        assert isinstance(websocket, EventSocket)
        assert websocket.request is not None
        origin = self.recorder.telemetry.tracer.origin(websocket.request.headers)
        for head in (websocket.request, websocket.response):  # the library keeps them as long as the connection
            if head is not None:
                head.headers.clear()
        grant, target = self.grants.pop(websocket, None), self.targets.pop(websocket, None)
        if target is None:
            connection = Connection(websocket, self, grant, origin)
        else:
            connection = DialectConnection(websocket, self, grant, target, origin)
        self.connections.add(connection)
        try:
            await connection.run()
        finally:
            self.connections.discard(connection)
            await self.end_in_queue(connection, connection.wind_down)

    async def end_in_queue(self, connection: Connection, end: Callable[[], Awaitable[None]]) -> None:
        await self.endings.enter_for_round(connection.project)
        await end()

    async def enforce_grants(self) -> None:
        """Background task: close connections whose key was revoked (also by another process) or whose token expired."""
        revoked = self.gate.access.key_revoked
        while True:
            revoked.clear()
            await self.close_ended()
            with suppress(TimeoutError):
                async with asyncio.timeout(GRANT_CHECK_S):
                    await revoked.wait()

    async def close_ended(self) -> None:
        """Close the connections whose grants have ended."""
        held = [*self.connections]
        over = await self.gate.access.ended_grants([one.grant for one in held if one.grant is not None])
        for connection in held if over else ():
            if connection.grant in over:
                close = partial(connection.close_with_error, over[connection.grant])
                connection.run_in_background(self.end_in_queue(connection, close))

    def reconnect_all(self) -> None:
        """Let every producer open again, as the store does not know these connections any more."""
        for connection in self.connections:
            connection.run_in_background(self.end_in_queue(connection, connection.drain))

    async def drain(self) -> None:
        """Accept no new connections, store and acknowledge everything received, then close with 1012."""
        self.draining = True
        if self.connections:
            tasks = {asyncio.create_task(self.end_in_queue(one, one.drain)): one for one in self.connections}
            _, stuck = await asyncio.wait(tasks, timeout=self.drain_timeout_s)
            for task in stuck:  # its peer reads nothing
                tasks[task].websocket.transport.abort()
        if self.server is not None:
            self.server.close(**GOODBYE)
            await self.server.wait_closed()
        if self.shared_poll is not None:
            self.shared_poll.close()
