"""The client: opens sessions, and sends their events over one connection."""

import asyncio
import logging
import re
import secrets
import threading
from collections.abc import AsyncGenerator, Mapping
from contextlib import suppress
from types import TracebackType
from typing import Any, Self, Unpack

import msgspec

from voicemem.client.errors import ClientError, Closed, RequestRefused, TimedOut, Unacknowledged, Unreachable
from voicemem.client.memories import Memories
from voicemem.client.metrics import DroppedEvents, exposition
from voicemem.client.options import Options
from voicemem.client.producer import Producer
from voicemem.client.session import ProducerSession, SearchParams
from voicemem.client.transport.connection import WebsocketConnection, with_path
from voicemem.client.transport.failures import TIMED_OUT, display_url, with_advice
from voicemem.client.transport.http_fallback import HttpFallback
from voicemem.client.transport.reconnect import Reconnector
from voicemem.client.transport.rest import CallFilters, RestClient, check_rest_url, read_lines, required, user_path
from voicemem.errors import InvalidFrame
from voicemem.protocol.codec import check_frame
from voicemem.protocol.types import SESSION_ID_PATTERN, SESSION_ID_RULE, JsonObject

LOG = logging.getLogger("voicemem.client")


class Client:
    """Sends events into sessions of one server, and reads their memories.

    `ingest_url` is ws:// or wss://; the path /v1/ingest is added if there is none. `rest_url` is the root of the REST
    API; without it there is no fallback to HTTP and no reading. Use the client as an async context manager, or call
    `close`. Raises `ValueError` for an invalid URL or key.
    """

    def __init__(
        self, ingest_url: str, rest_url: str | None = None, key: str | None = None, *, options: Options | None = None
    ) -> None:
        if not (key or "").isascii() or not (key or "").isprintable():
            raise ValueError("a key must be printable ASCII")
        self.ingest_url = with_path(ingest_url)
        self.key = key
        self.options = options or Options()
        self.rest = None if rest_url is None else RestClient(check_rest_url(rest_url), key, self.options)
        self.error: ClientError | None = None
        self._drops = DroppedEvents(self.options.on_dropped)
        self._producers: dict[tuple[str, str], Producer] = {}
        self._reconnector = Reconnector(self.ingest_url, key, self.rest, self.options, self._producers)
        self._task: asyncio.Task[None] | None = None
        self._loop: asyncio.AbstractEventLoop | None = None
        self._thread = 0

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
        """The transport in use: "websocket", "http", or None while there is no connection."""
        if self._transport is None:
            return None
        return "websocket" if isinstance(self._transport, WebsocketConnection) else "http"

    @property
    def dropped(self) -> dict[str, int]:
        """The number of events that `send` could not accept, in all sessions, by error code."""
        with self._drops.lock:
            return dict(self._drops.counts)

    def metrics(self) -> str:
        """Return metrics of dropped and unacknowledged events, and of the connection, in Prometheus' text format."""
        return exposition(self.dropped, [one.buffer for one in self._producers.values()], self.transport)

    async def open(
        self,
        session_id: str | None = None,
        *,
        producer: str = "main",
        config: Mapping[str, Any] | None = None,
        timeout: float | None = None,
        allow_ended: bool = False,
    ) -> ProducerSession:
        """Open a new or existing session, and wait for the server's answer, at most `timeout` seconds.

        Without `session_id` the client makes a random one. `config` is used only if the session does not exist yet. The
        default of `timeout` is the option `open_timeout_s`. With `allow_ended`, an ended session can be opened for
        reading. Raises `Unreachable` with the addresses, the reasons and what to check; `RequestRefused`,
        `SessionEnded`, `SessionErased`; `TypeError` and `ValueError` for invalid arguments.
        """
        self._start()
        if self.error is not None:
            raise self.error.with_traceback(None)
        timeout_s = self.options.open_timeout_s if timeout is None else timeout
        opened = self._new_producer(session_id or secrets.token_hex(16), producer, config)
        self._producers[opened.key] = opened
        if self._transport is not None:
            self._transport.open_producer(opened)
        try:
            async with asyncio.timeout(timeout_s):
                await opened.ready
        except BaseException as error:  # even a cancelled caller: no one else could close the session
            self._remove(opened)
            if not isinstance(error, TimeoutError) or timeout_s is None:
                raise
            if isinstance(self._transport, WebsocketConnection):
                reason = f"{display_url(self.ingest_url)}: {with_advice(f'{TIMED_OUT} after {timeout_s:g} s')}"
            else:
                reason = self._reconnector.outage.explain(timeout_s)
            detail = f"The session was not opened within {timeout_s:g} s. {reason}"
            raise Unreachable(detail, reason) from None
        if opened.state == "ended" and not allow_ended:
            self._remove(opened)
            raise opened.ended_before()
        return ProducerSession(opened, self._schedule_wakeup, self.rest)

    async def search(self, query: str, **params: Unpack[SearchParams]) -> JsonObject:
        """Search messages and memories of earlier calls: the body of `POST /v1/memories/search`.

        Takes at most `read_timeout_s`. Raises `RequestRefused`, `Unreachable`, and `ClientError` without a `rest_url`.
        """
        return await required(self.rest).send("POST", "/v1/memories/search", {"query": query, **params})

    @property
    def memories(self) -> Memories:
        """Long-term memories. Raises `ClientError` without a `rest_url`."""
        return Memories(required(self.rest))

    def export_user(self, user_id: str, *, events: bool = False) -> AsyncGenerator[JsonObject, None]:
        """Export all stored data of a user, line by line (docs/privacy.md); with `events`, journals too.

        Needs a key with the scope `admin`. The last line has the type `end`. Raises `RequestRefused`, `Closed`;
        `Unreachable`, even if the export is cut short; `ClientError` without a `rest_url`.
        """
        return read_lines(required(self.rest), user_path(user_id, "/export"), {"events": events or None})

    async def export(self, session_id: str, format: str = "vcon") -> str:
        """Export a call as a document (docs/exports.md): `vcon`, `webvtt`, `srt`, `markdown`, `csv` or `jsonl`.

        Takes at most `read_timeout_s`. Raises `RequestRefused`, `Unreachable`, `Closed`; `ClientError` without a
        `rest_url`.
        """
        return await required(self.rest).export(session_id, format)

    def export_calls(self, format: str = "vcon", **filters: Unpack[CallFilters]) -> AsyncGenerator[JsonObject, None]:
        """Export many calls as documents, line by line (docs/exports.md). Raises as `export_user`."""
        return read_lines(required(self.rest), "/v1/exports", {"format": format, **filters})

    def is_open(self, session_id: str, producer: str = "main") -> bool:
        """Return whether this client has opened a session for this producer, or is opening it."""
        return (session_id, producer) in self._producers

    def find(self, session_id: str, producer: str = "main") -> ProducerSession | None:
        """Return an open session, so that another part of the program can share it as the same producer."""
        opened = self._producers.get((session_id, producer))
        if opened is None or not opened.opened:
            return None
        opened.times_found += 1
        return ProducerSession(opened, self._schedule_wakeup, self.rest)

    async def flush(self, session_id: str, timeout: float | None = None) -> None:
        """Wait until all events of this client in a session, from every producer, are acknowledged or refused.

        Events that a failed producer cannot deliver are not waited for. Raises `TimedOut`.
        """
        of_session = [one for one in self._producers.values() if one.session_id == session_id and one.opened]
        for error in await asyncio.gather(*(one.flush(timeout) for one in of_session), return_exceptions=True):
            if isinstance(error, TimedOut):
                raise error

    async def close(self, timeout: float | None = None) -> None:
        """Wait until everything is acknowledged, at most `timeout` seconds (`close_timeout_s` by default), then close.

        Closing the connections takes at most 2 s more, whatever the server does.
        Raises `Unacknowledged` if some events were not acknowledged; their acks raise `Closed`.
        """
        producers = [producer for producer in self._producers.values() if producer.opened]
        if producers and self._task is not None and not self._task.done():
            flushes = [asyncio.create_task(producer.flush()) for producer in producers]
            await asyncio.wait(flushes, timeout=self.options.close_timeout_s if timeout is None else timeout)
            for flush in flushes:
                flush.cancel()
            await asyncio.gather(*flushes, return_exceptions=True)
        left = {producer.session_id: len(producer.buffer) for producer in producers if len(producer.buffer)}
        self._fail(Closed())
        if self._task is not None:
            self._task.cancel()
            await asyncio.wait({self._task}, timeout=1.5)  # for the connection to end
        if self.rest is not None:
            await self.rest.close()
        if left:
            raise Unacknowledged(left)

    # Producers

    def _new_producer(self, session_id: str, name: str, config: Mapping[str, Any] | None) -> Producer:
        if not re.match(SESSION_ID_PATTERN, session_id):
            raise ValueError(f"a session id must be {SESSION_ID_RULE}")
        if not 1 <= len(name) <= 128:
            raise ValueError("a producer's name must be 1 to 128 characters long")
        if (session_id, name) in self._producers:
            raise ValueError(f"this client has session {session_id!r} open already, for producer {name!r}")
        producer = Producer(session_id, name, config, self.options, self._remove, self._drops)
        try:
            check_frame(msgspec.json.encode(producer.open_frame()))
        except InvalidFrame as error:
            raise RequestRefused(error.code, error.detail) from None
        producer.unanswered_opens = 0
        return producer

    def _remove(self, producer: Producer) -> None:
        if self._producers.get(producer.key) is producer:
            del self._producers[producer.key]
        if self._transport is not None:
            self._transport.remove(producer)

    def _schedule_wakeup(self, producer: Producer) -> None:
        """Wake the transport for a producer's new events, once for all that are added until then.

        May be called in any thread.
        """
        if producer.wakeup_pending or self._loop is None:
            return
        producer.wakeup_pending = True
        in_loop = threading.get_ident() == self._thread
        schedule = self._loop.call_soon if in_loop else self._loop.call_soon_threadsafe
        try:
            schedule(self._wake_transport, producer)
        except RuntimeError:  # the event loop was closed, but the client was not
            with suppress(RuntimeError):
                producer.fail(Closed())

    def _wake_transport(self, producer: Producer) -> None:
        producer.wakeup_pending = False
        if self._transport is not None:
            self._transport.schedule(producer)

    # The connection

    @property
    def _transport(self) -> WebsocketConnection | HttpFallback | None:
        return self._reconnector.transport

    def _start(self) -> None:
        if self._task is None:
            self._loop = asyncio.get_running_loop()
            self._thread = threading.get_ident()
            self._task = asyncio.create_task(self._run())

    async def _run(self) -> None:
        try:
            await self._reconnector.run()
        except ClientError as error:
            self._fail(error)
        except Exception as error:  # acks must not wait for a client that has stopped
            LOG.exception("The client has failed")
            self._fail(ClientError("internal", f"The client has failed: {error!r}."))

    def _fail(self, error: ClientError) -> None:
        if self.error is None:
            self.error = error
        for producer in list(self._producers.values()):
            producer.fail(self.error)
