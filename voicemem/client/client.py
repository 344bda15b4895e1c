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

from voicemem.client.connection import FRAME_BYTES, PASSING_CODES, Blocked, Ending, Link, abandon, dial, with_path
from voicemem.client.errors import ClientError, Closed, RequestRefused, Unacknowledged, Unreachable
from voicemem.client.http_fallback import Fallback
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Line
from voicemem.client.rest import Rest
from voicemem.client.session import Session
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
        self.rest = None if rest_url is None else Rest(rest_url, key, self.options)
        self.error: ClientError | None = None
        """Why the client cannot go on."""
        self._lines: dict[tuple[str, str], Line] = {}
        self._transport: Link | Fallback | None = None
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
        return "websocket" if isinstance(self._transport, Link) else "http"

    async def open(
        self, session_id: str | None = None, *, producer: str = "main", config: Mapping[str, Any] | None = None
    ) -> Session:
        """Open a session, a new one or one that exists; waits until the server has answered.

        Without `session_id` a random one is made. `config` is for a session that does not exist yet. Raises
        `RequestRefused`, `SessionErased`, `Unreachable` (with the option `give_up_after_s`), `ValueError`.
        """
        self._start()
        if self.error is not None:
            raise self.error
        line = self._new_line(session_id or secrets.token_hex(16), producer, config)
        self._lines[line.key] = line
        if self._transport is not None:
            self._transport.open_line(line)
        try:
            await line.ready
        except BaseException:
            self._forget(line)
            raise
        return Session(line, self._notice, self.rest)

    async def close(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (a timeout is no cancellation here)
        """Wait at most so long (seconds; else `close_timeout_s`) until all is acknowledged, then let go of everything.

        Raises `Unacknowledged` when some events were not; their acks raise `Closed`.
        """
        lines = [line for line in self._lines.values() if line.opened]
        if lines and self._task is not None and not self._task.done():
            flushes = [asyncio.create_task(line.flush()) for line in lines]
            await asyncio.wait(flushes, timeout=self.options.close_timeout_s if timeout is None else timeout)
            for flush in flushes:
                flush.cancel()
            await asyncio.gather(*flushes, return_exceptions=True)
        left = {line.session_id: len(line.buffer) for line in lines if len(line.buffer)}
        self._fail(Closed())
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        if self.rest is not None:
            await self.rest.close()
        if left:
            raise Unacknowledged(left)

    # Lines

    def _new_line(self, session_id: str, producer: str, config: Mapping[str, Any] | None) -> Line:
        if not re.match(SESSION_ID_PATTERN, session_id):
            raise ValueError("a session id is 1 to 128 characters of A-Za-z0-9._:-")
        if not 1 <= len(producer) <= 128:
            raise ValueError("a producer's name is 1 to 128 characters")
        if (session_id, producer) in self._lines:
            raise ValueError(f"this client has session {session_id!r} open already, for producer {producer!r}")
        line = Line(session_id, producer, config, self.options, self._forget)
        try:
            check_frame(msgspec.json.encode(line.opening()))
        except InvalidFrame as error:
            raise RequestRefused(error.code, error.detail) from None
        line.opens = 0
        return line

    def _forget(self, line: Line) -> None:
        if self._lines.get(line.key) is line:
            del self._lines[line.key]
        if self._transport is not None:
            self._transport.forget(line)

    def _notice(self, line: Line) -> None:
        """A line has taken an event, in whatever thread: tell the transport, once for all that are taken by then."""
        if line.noticed or self._loop is None:
            return
        line.noticed = True
        if threading.get_ident() == self._thread:
            self._loop.call_soon(self._tell_transport, line)
        else:
            self._loop.call_soon_threadsafe(self._tell_transport, line)

    def _tell_transport(self, line: Line) -> None:
        line.noticed = False
        if self._transport is not None:
            self._transport.has_more(line)

    # The connection

    def _start(self) -> None:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._task = asyncio.create_task(self._run())

    def _answered(self) -> None:
        self._failing_since = None

    def _fail(self, error: ClientError) -> None:
        """Nothing more will come of any session: whoever waits is told why."""
        if self.error is None:
            self.error = error
        for line in list(self._lines.values()):
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
                self._check_patience(error)
                if self.rest is None or (failures < self.options.fallback_after and isinstance(error, Unreachable)):
                    await asyncio.sleep(self._backoff.next_s())
                    continue
                socket = await self._go_over_http(self.rest)
            link, ending = await self._serve(socket)
            failures = 0 if link.useful or ending.close == 1013 else failures + 1
            await self._pause_after(link, ending)

    async def _serve(self, socket: ClientConnection) -> tuple[Link, Ending]:
        link = Link(socket, self._lines, self.options, self._frame_bytes)
        try:
            self._use(link)
            return link, await link.run()
        finally:
            self._transport = None
            self._frame_bytes = link.next_frame_bytes()
            await socket.close()

    def _use(self, transport: Link | Fallback) -> None:
        self._transport = transport
        for line in self._lines.values():
            line.buffer.rewind()  # whatever the last connection had under way
            transport.open_line(line)

    async def _pause_after(self, link: Link, ending: Ending) -> None:
        """Wait before the next connection. Raises `RequestRefused` when there must be none."""
        fatal = ending.close in FATAL_CLOSES and ending.code not in PASSING_CODES
        if fatal:
            raise RequestRefused(ending.code or f"close_{ending.close}", ending.detail)
        if link.useful:
            self._answered()
        else:
            self._check_patience(Unreachable(ending.detail))
        if ending.close == 1012 or (link.useful and ending.close != 1013 and ending.code not in PASSING_CODES):
            self._backoff.reset()
        LOG.info("connection ended (%s %s)", ending.close, ending.code)
        await asyncio.sleep(self._backoff.next_s())

    def _check_patience(self, error: Exception) -> None:
        """Raise `Unreachable` once the server has not answered for too long."""
        now, patience = asyncio.get_running_loop().time(), self.options.give_up_after_s
        if self._failing_since is None:
            self._failing_since = now
        if patience is not None and now - self._failing_since >= patience:
            raise Unreachable(getattr(error, "detail", str(error)))

    async def _go_over_http(self, rest: Rest) -> ClientConnection:
        """Post events until the websocket works again, and return it. Raises `ClientError`."""
        LOG.warning("the websocket cannot be reached; events go over HTTP")
        fallback = Fallback(rest, self.options, self._answered, self._check_patience)
        stopping = asyncio.Event()
        posting = asyncio.create_task(fallback.run(stopping))
        trying = asyncio.create_task(self._try_websocket())
        try:
            self._use(fallback)
            await asyncio.wait({posting, trying}, return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            await posting  # what is under way is finished first: an older epoch could not be told from a stranger's
            return await trying
        except BaseException:
            await abandon(trying)
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
