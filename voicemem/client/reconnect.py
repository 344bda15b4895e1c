"""Keeps a client connected: over the websocket if possible, over HTTP while it is not."""

from __future__ import annotations

import asyncio
import logging
import random
from collections.abc import Mapping
from contextlib import suppress
from typing import NoReturn

from websockets.asyncio.client import ClientConnection

from voicemem.backoff import spread
from voicemem.client.connection import (
    FRAME_BYTES,
    Blocked,
    Disconnect,
    WebsocketConnection,
    dial,
    discard,
)
from voicemem.client.errors import CLIENT_FATAL_CLOSES, TRANSIENT_CODES, RequestRefused, Unreachable
from voicemem.client.http_fallback import HttpFallback
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Producer
from voicemem.client.rest import RestClient

LOG = logging.getLogger("voicemem.client")
SERVICE_RESTART = 1012
TRY_AGAIN_LATER = 1013


class Reconnector:
    """Makes a new transport for all producers of a client whenever the last one is lost.

    `producers` is the client's own mapping, by session id and name. Without `rest` there is no fallback to HTTP.
    """

    def __init__(
        self,
        url: str,
        key: str | None,
        rest: RestClient | None,
        options: Options,
        producers: Mapping[tuple[str, str], Producer],
    ) -> None:
        self.url = url
        self.key = key
        self.rest = rest
        self.options = options
        self.producers = producers
        self.transport: WebsocketConnection | HttpFallback | None = None
        """None while there is no connection."""
        self.backoff = Backoff(options)
        self.frame_bytes = FRAME_BYTES
        self.failing_since: float | None = None
        """When the server last stopped answering, on the loop's clock."""

    async def run(self) -> NoReturn:
        """Background task: stay connected. Raises `ClientError` when the client cannot continue."""
        failures = 0
        while True:
            try:
                socket = await dial(self.url, self.key, self.options)
            except (Unreachable, Blocked) as error:
                failures += 1
                self.check_give_up(error)
                if self.rest is None or (failures < self.options.fallback_after and isinstance(error, Unreachable)):
                    await asyncio.sleep(self.backoff.next_s())
                    continue
                socket = await self.run_fallback(self.rest)
            connection, disconnect = await self.serve(socket)
            succeeded = connection.made_progress or disconnect.close_code == TRY_AGAIN_LATER
            failures = 0 if succeeded else failures + 1
            await self.pause_after(connection, disconnect)

    async def serve(self, socket: ClientConnection) -> tuple[WebsocketConnection, Disconnect]:
        """Use a websocket until it is lost."""
        connection = WebsocketConnection(socket, self.producers, self.options, self.frame_bytes)
        try:
            self.attach(connection)
            return connection, await connection.run()
        finally:
            self.transport = None
            self.frame_bytes = connection.next_frame_bytes()
            await socket.close()

    def attach(self, transport: WebsocketConnection | HttpFallback) -> None:
        self.transport = transport
        for producer in self.producers.values():
            producer.buffer.rewind()  # what the last transport sent may be lost
            transport.open_producer(producer)

    async def pause_after(self, connection: WebsocketConnection, disconnect: Disconnect) -> None:
        """Wait before the next connection. Raises `RequestRefused` if the server wants none."""
        close_code, transient = disconnect.close_code, disconnect.code in TRANSIENT_CODES
        if close_code in CLIENT_FATAL_CLOSES and not transient:
            raise RequestRefused(disconnect.code or f"close_{close_code}", disconnect.detail)
        if connection.made_progress:
            self.note_answer()
        else:
            self.check_give_up(Unreachable(disconnect.detail))
        lost_while_working = connection.made_progress and close_code != TRY_AGAIN_LATER and not transient
        if close_code == SERVICE_RESTART or lost_while_working:
            self.backoff.reset()
        LOG.info("connection ended (%s %s)", close_code, disconnect.code)
        await asyncio.sleep(self.backoff.next_s())

    def note_answer(self) -> None:
        self.failing_since = None

    def check_give_up(self, error: Exception) -> None:
        """Raise `Unreachable` once the server has not answered for `give_up_after_s`."""
        now, patience_s = asyncio.get_running_loop().time(), self.options.give_up_after_s
        if self.failing_since is None:
            self.failing_since = now
        if patience_s is not None and now - self.failing_since >= patience_s:
            raise Unreachable(getattr(error, "detail", str(error)))

    async def run_fallback(self, rest: RestClient) -> ClientConnection:
        """Send events over HTTP until the websocket works again; returns it. Raises `ClientError`."""
        LOG.warning("the websocket cannot be reached; events go over HTTP")
        fallback = HttpFallback(rest, self.options, self.note_answer, self.check_give_up)
        stopping = asyncio.Event()
        posting = asyncio.create_task(fallback.run(stopping))
        dialing = asyncio.create_task(self.redial())
        try:
            self.attach(fallback)
            await asyncio.wait({posting, dialing}, return_when=asyncio.FIRST_COMPLETED)
            stopping.set()
            # Requests under way must end before the websocket opens its producers: that raises their epochs, and a
            # request with the old epoch would be refused as superseded, which is final. `posting` comes first also
            # because it may have failed: then its error ends the client, and a websocket that was made is closed.
            await posting
            return await dialing
        except BaseException:
            await discard(dialing)
            raise
        finally:
            self.transport = None
            posting.cancel()
            await asyncio.wait({posting})  # so that nothing is sent after this returns, even when it was cancelled

    async def redial(self) -> ClientConnection:
        """Try the websocket until it works. Raises `RequestRefused` if the server refuses this client."""
        while True:
            every_s = self.options.websocket_every_s
            await asyncio.sleep(spread(every_s, random.random(), 0.5, 1))  # noqa: S311 (spreads clients over time)
            with suppress(Unreachable, Blocked):
                return await dial(self.url, self.key, self.options)
