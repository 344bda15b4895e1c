"""Reconnection of a client: over the websocket if possible, otherwise over HTTP."""

import asyncio
import logging
import random
import time
from collections.abc import Mapping
from dataclasses import dataclass
from functools import partial
from typing import NoReturn

from websockets.asyncio.client import ClientConnection

from voicemem.backoff import spread
from voicemem.client.errors import CLIENT_FATAL_CLOSES, TRANSIENT_CODES, Busy, RequestRefused, Unreachable
from voicemem.client.options import Backoff, Options
from voicemem.client.producer import Producer
from voicemem.client.transport.connection import (
    FRAME_BYTES,
    Blocked,
    Disconnect,
    WebsocketConnection,
    dial,
    hang_up,
)
from voicemem.client.transport.failures import Outage, display_url, with_advice
from voicemem.client.transport.http_fallback import HttpFallback
from voicemem.client.transport.rest import RestClient

LOG = logging.getLogger("voicemem.client")
TRY_AGAIN_LATER = 1013


@dataclass(eq=False)
class Reconnector:
    """Opens a new transport for all producers of a client whenever the last one is lost.

    `producers` is the client's own mapping, by session id and name. Without `rest` there is no fallback to HTTP.
    """

    url: str
    key: str | None
    rest: RestClient | None
    options: Options
    producers: Mapping[tuple[str, str], Producer]

    def __post_init__(self) -> None:
        self.transport: WebsocketConnection | HttpFallback | None = None
        self.dial_backoff = Backoff(self.options)
        self.backoff = Backoff(self.options)
        self.frame_bytes = FRAME_BYTES
        self.failing_since: float | None = None
        """When the server last stopped answering, on the monotonic clock."""
        self.outage = Outage(self.url)

    async def run(self) -> NoReturn:
        """Background task: stay connected. Raises `ClientError` when the client cannot continue."""
        failures = 0
        while True:
            try:
                socket = await dial(self.url, self.key, self.options)
            except (Unreachable, Blocked) as error:
                failures += 1
                self.note_failure(self.url, error)
                if self.rest is None or (failures < self.options.fallback_after and isinstance(error, Unreachable)):
                    # The return of an unreachable server should be noticed soon.
                    longest_s = None if isinstance(error, Busy) else self.options.away_delay_s
                    await asyncio.sleep(self.dial_backoff.next_s(longest_s))
                    continue
                socket = await self.run_fallback(self.rest, error)
            self.dial_backoff.reset()
            connection, disconnect = await self.serve(socket)
            succeeded = connection.made_progress or disconnect.close_code == TRY_AGAIN_LATER
            failures = 0 if succeeded else failures + 1
            await self.pause_after(connection, disconnect)

    async def serve(self, socket: ClientConnection) -> tuple[WebsocketConnection, Disconnect]:
        note_progress = self.outage.note_websocket
        connection = WebsocketConnection(socket, self.producers, self.options, self.frame_bytes, note_progress)
        try:
            self.attach(connection)
            return connection, await connection.run()
        finally:
            self.transport = None
            # Smaller if no event got through, down to single events.
            self.frame_bytes = connection.frame_bytes if connection.acked else max(1, connection.frame_bytes // 4)
            await hang_up(socket)

    def attach(self, transport: WebsocketConnection | HttpFallback) -> None:
        self.transport = transport
        for producer in self.producers.values():
            producer.buffer.rewind()  # events from the last transport may be lost
            transport.open_producer(producer)

    async def pause_after(self, connection: WebsocketConnection, disconnect: Disconnect) -> None:
        """Wait before the next connection. Raises `RequestRefused` if the server refuses any."""
        close_code, transient = disconnect.close_code, disconnect.code in TRANSIENT_CODES
        if close_code in CLIENT_FATAL_CLOSES and not transient:
            raise RequestRefused(disconnect.code or f"close_{close_code}", disconnect.detail)
        if connection.made_progress:
            self.failing_since = None
        elif self.producers:
            reason = f"the connection ended with {disconnect.code or close_code}: {disconnect.detail}"
            self.note_failure(self.url, Unreachable(f"{display_url(self.url)}: {reason}", reason))
        lost_while_working = connection.made_progress and close_code != TRY_AGAIN_LATER and not transient
        if close_code == 1012 or lost_while_working:  # the service restarts
            self.backoff.reset()
        LOG.info("connection ended (%s %s)", close_code, disconnect.code)
        await asyncio.sleep(self.backoff.next_s())

    def note_http(self, rest: RestClient) -> None:
        self.failing_since = None
        self.outage.note_http(display_url(rest.url))

    def note_failure(self, url: str, error: Unreachable | Blocked) -> None:
        """Log a failure. Raises `Unreachable` once the server has not answered for `give_up_after_s`."""
        now, patience_s = time.monotonic(), self.options.give_up_after_s
        if self.failing_since is None:
            self.failing_since = now
        if patience_s is not None and now - self.failing_since >= patience_s:
            raise Unreachable(f"{display_url(url)}: {with_advice(error.reason)}", error.reason)
        self.outage.note_failure(display_url(url), error.reason)

    async def run_fallback(self, rest: RestClient, error: Unreachable | Blocked) -> ClientConnection:
        """Send events over HTTP until the websocket works again. Returns the websocket. Raises `ClientError`.

        `error` is why the websocket does not work.
        """
        note_http, note_failure = partial(self.note_http, rest), partial(self.note_failure, rest.url)
        fallback = HttpFallback(rest, self.options, note_http, note_failure)
        posting = asyncio.create_task(fallback.run())
        dialing = asyncio.create_task(self.redial(error))
        try:
            self.attach(fallback)
            await asyncio.wait({posting, dialing}, return_when=asyncio.FIRST_COMPLETED)
            fallback.stop()
            # Current requests must end before the websocket opens its producers: that raises their epochs, and a
            # request with the old epoch would be refused as superseded, which is final. One that hangs is abandoned:
            # its answer is never read, and the events that it stores are acknowledged again. `posting` also comes first
            # because it may have failed: then its error ends the client, and a new websocket is closed.
            await asyncio.wait({posting}, timeout=0.5)  # seconds that a working websocket waits at most
            if posting.done():
                posting.result()
            return await dialing
        except BaseException:  # even when cancelled: a new websocket must not stay open
            dialing.cancel()
            (made,) = await asyncio.gather(dialing, return_exceptions=True)
            if isinstance(made, ClientConnection):
                await hang_up(made)
            raise
        finally:
            self.transport = None
            posting.cancel()
            await asyncio.wait({posting})  # nothing may be sent after this returns, even when cancelled

    async def redial(self, error: Unreachable | Blocked) -> ClientConnection:
        """Try the websocket until it works. Raises `RequestRefused` if the server refuses this client."""
        backoff = Backoff(self.options)
        while True:
            every_s = self.options.websocket_every_s if isinstance(error, Blocked) else self.options.away_delay_s
            every_s = backoff.next_s() if isinstance(error, Busy) else every_s
            await asyncio.sleep(spread(every_s, random.random(), 0.5, 1))  # noqa: S311 (spreads clients over time)
            try:
                return await dial(self.url, self.key, self.options)
            except (Unreachable, Blocked) as failure:
                error = failure
                self.outage.note_failure(display_url(self.url), error.reason)
