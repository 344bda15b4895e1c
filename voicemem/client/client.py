"""The client: keeps one connection for all its sessions, and makes a new one whenever it is lost."""

from __future__ import annotations

import asyncio
import logging
import random
import re
import secrets
import threading
from collections.abc import Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self

import msgspec
from websockets.asyncio.client import ClientConnection

from voicemem.client.connection import (
    FRAME_BYTES,
    TRANSIENT_CODES,
    Blocked,
    Disconnect,
    WebsocketConnection,
    dial,
    discard,
    with_path,
)
from voicemem.client.errors import ClientError, Closed, RequestRefused, Unacknowledged, Unreachable
from voicemem.client.http_fallback import HttpFallback
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Producer
from voicemem.client.rest import RestClient
from voicemem.client.session import ProducerSession
from voicemem.errors import InvalidFrame
from voicemem.protocol.strict_json import check_frame
from voicemem.protocol.types import SESSION_ID_PATTERN

LOG = logging.getLogger("voicemem.client")
FATAL_CLOSES = frozenset({1003, 1007, 1008, 1009})


class Client:
    """Sends events into sessions of one server, and reads them.

    `ingest_url` is ws:// or wss:// (the path /v1/ingest is added when there is none), `rest_url` the root of the REST
    API; without it there is no fallback to HTTP and no reading. Use it as an async context manager, or call `close`.
    """

    def __init__(
        self,
        ingest_url: str,
        rest_url: str | None = None,
        key: str | None = None,
        *,
        options: Options | None = None,
    ) -> None:
        self.ingest_url = with_path(ingest_url)
        self.key = key
        self.options = options or Options()
        self.rest = None if rest_url is None else RestClient(rest_url, key, self.options)
        self.error: ClientError | None = None
        """Why the client cannot go on."""
        self._producers: dict[tuple[str, str], Producer] = {}
        self._transport: WebsocketConnection | HttpFallback | None = None
        self._backoff = Backoff(self.options)
        self._frame_bytes = FRAME_BYTES
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0
        self._failing_since: float | None = None
        """Since when the server has not answered, on the loop's clock."""

    # For users

    async def __aenter__(self) -> Self:
        self._start()
        return self

    async def __aexit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        try:
            await self.close()
        except Unacknowledged:
            if error is None:
                raise

    @property
    def transport(self) -> str | None:
        """How events go to the server now: "websocket", "http", or None while there is no connection."""
        if self._transport is None:
            return None
        return "websocket" if isinstance(self._transport, WebsocketConnection) else "http"

    async def open(
        self, session_id: str | None = None, *, producer: str = "main", config: Mapping[str, Any] | None = None
    ) -> ProducerSession:
        """Open a session, a new one or one that exists; waits until the server has answered.

        Without `session_id` a random one is made. `config` is for a session that does not exist yet. Raises
        `RequestRefused`, `SessionErased`, `Unreachable` (with the option `give_up_after_s`), `ValueError`.
        """
        self._start()
        if self.error is not None:
            raise self.error
        line = self._new_producer(session_id or secrets.token_hex(16), producer, config)
        self._producers[line.key] = line
        if self._transport is not None:
            self._transport.open_producer(line)
        try:
            await line.ready
        except BaseException:
            self._remove(line)
            raise
        return ProducerSession(line, self._schedule_wakeup, self.rest)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (a timeout is no cancellation here)
        """Wait at most so long (seconds; else `close_timeout_s`) until all is acknowledged, then let go of everything.

        Raises `Unacknowledged` when some events were not; their acks raise `Closed`.
        """
        producers = [line for line in self._producers.values() if line.opened]
        if producers and self._task is not None and not self._task.done():
            flushes = [asyncio.create_task(line.flush()) for line in producers]
            await asyncio.wait(flushes, timeout=self.options.close_timeout_s if timeout is None else timeout)
            for flush in flushes:
                flush.cancel()
            await asyncio.gather(*flushes, return_exceptions=True)
        left = {line.session_id: len(line.buffer) for line in producers if len(line.buffer)}
        self._fail(Closed())
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.rest is not None:
            await self.rest.close()
        if left:
            raise Unacknowledged(left)

    # Lines

    def _new_producer(self, session_id: str, producer: str, config: Mapping[str, Any] | None) -> Producer:
        if not re.match(SESSION_ID_PATTERN, session_id):
            raise ValueError("a session id is 1 to 128 characters of A-Za-z0-9._:-")
        if not 1 <= len(producer) <= 128:
            raise ValueError("a producer's name is 1 to 128 characters")
        if (session_id, producer) in self._producers:
            raise ValueError(f"this client has session {session_id!r} open already, for producer {producer!r}")
        line = Producer(session_id, producer, config, self.options, self._remove)
        try:
            check_frame(msgspec.json.encode(line.open_frame()))
        except InvalidFrame as error:
            raise RequestRefused(error.code, error.detail) from None
        line.unanswered_opens = 0
        return line

    def _remove(self, line: Producer) -> None:
        if self._producers.get(line.key) is line:
            del self._producers[line.key]
        if self._transport is not None:
            self._transport.remove(line)

    def _schedule_wakeup(self, line: Producer) -> None:
        """A line has taken an event, in whatever thread: tell the transport, once for all that are taken by then."""
        if line.wakeup_pending or self._loop is None:
            return
        line.wakeup_pending = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._wake_transport, line)
        else:
            self._loop.call_soon_threadsafe(self._wake_transport, line)

    def _wake_transport(self, line: Producer) -> None:
        line.wakeup_pending = False
        if self._transport is not None:
            self._transport.schedule(line)

    # The connection

    def _start(self) -> None:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._task = asyncio.create_task(self._run())

    def _note_answer(self) -> None:
        self._failing_since = None

    def _fail(self, error: ClientError) -> None:
        """Nothing more will come of any session: whoever waits is told why."""
        if self.error is None:
            self.error = error
        for line in list(self._producers.values()):
            line.fail(self.error)

    async def _run(self) -> None:
        try:
            await self._stay_connected()
        except ClientError as error:
            self._fail(error)
        except Exception as error:  # the outermost edge: nobody must wait for a client that has stopped
            LOG.exception("The client has failed")
            self._fail(ClientError("internal", f"The client has failed: {error!r}."))

    async def _stay_connected(self) -> None:
        failures = 0
        while True:
            try:
                socket = await dial(self.ingest_url, self.key, self.options)
            except (Unreachable, Blocked) as error:
                failures += 1
                self._check_give_up(error)
                if self.rest is None or (failures < self.options.fallback_after and isinstance(error, Unreachable)):
                    await asyncio.sleep(self._backoff.next_s())
                    continue
                socket = await self._run_fallback(self.rest)
            connection, disconnect = await self._serve(socket)
            failures = 0 if connection.made_progress or disconnect.close == 1013 else failures + 1
            await self._pause_after(connection, disconnect)

    async def _serve(self, socket: ClientConnection) -> tuple[WebsocketConnection, Disconnect]:
        connection = WebsocketConnection(socket, self._producers, self.options, self._frame_bytes)
        try:
            self._attach(connection)
            return connection, await connection.run()
        finally:
            self._transport = None
            self._frame_bytes = connection.next_frame_bytes()
            await socket.close()

    def _attach(self, transport: WebsocketConnection | HttpFallback) -> None:
        self._transport = transport
        for line in self._producers.values():
            line.buffer.rewind()  # whatever the last connection had under way
            transport.open_producer(line)

    async def _pause_after(self, connection: WebsocketConnection, disconnect: Disconnect) -> None:
        """Wait before the next connection. Raises `RequestRefused` when there must be none."""
        fatal = disconnect.close in FATAL_CLOSES and disconnect.code not in TRANSIENT_CODES
        if fatal:
            raise RequestRefused(disconnect.code or f"close_{disconnect.close}", disconnect.detail)
        if connection.made_progress:
            self._note_answer()
        else:
            self._check_give_up(Unreachable(disconnect.detail))
        if disconnect.close == 1012 or (
            connection.made_progress and disconnect.close != 1013 and disconnect.code not in TRANSIENT_CODES
        ):
            self._backoff.reset()
        LOG.info("connection ended (%s %s)", disconnect.close, disconnect.code)
        await asyncio.sleep(self._backoff.next_s())

    def _check_give_up(self, error: Exception) -> None:
        """Raise `Unreachable` once the server has not answered for too long."""
        now, patience = asyncio.get_running_loop().time(), self.options.give_up_after_s
        if self._failing_since is None:
            self._failing_since = now
        if patience is not None and now - self._failing_since >= patience:
            raise Unreachable(getattr(error, "detail", str(error)))

    async def _run_fallback(self, rest: RestClient) -> ClientConnection:
        """Post events until the websocket works again, and return it. Raises `ClientError`."""
        LOG.warning("the websocket cannot be reached; events go over HTTP")
        fallback = HttpFallback(rest, self.options, self._note_answer, self._check_give_up)
        stopping = asyncio.Event()
        posting = asyncio.create_task(fallback.run(stopping))
        trying = asyncio.create_task(self._try_websocket())
        try:
            self._attach(fallback)
            await asyncio.wait({posting, trying}, return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            await posting  # what is under way is finished first: an older epoch could not be told from a stranger's
            return await trying
        except BaseException:
            await discard(trying)
            raise
        finally:
            self._transport = None
            posting.cancel()
            await asyncio.wait({posting})

    async def _try_websocket(self) -> ClientConnection:
        """Raises `RequestRefused`."""
        every_s = self.options.websocket_every_s
        while True:
            await asyncio.sleep(random.uniform(every_s / 2, every_s))  # noqa: S311 (spreads clients over time)
            with suppress(Unreachable, Blocked):
                return await dial(self.ingest_url, self.key, self.options)
