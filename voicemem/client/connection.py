"""One websocket connection: it opens lines, sends what they hold, and hands them what the server answers."""

from __future__ import annotations

import asyncio
import logging
from collections import deque
from collections.abc import Mapping
from contextlib import suppress
from typing import Any, NamedTuple
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from voicemem.client.buffer import Ack
from voicemem.client.errors import RequestRefused, Unreachable
from voicemem.client.options import Options
from voicemem.client.producer import Producer, ServerFrame
from voicemem.errors import CODES

FRAME_BYTES = 16 * 1024
"""Events that wait together share a frame up to this size; small, so that on a slow network answers come often."""
LOST_STATE_CODES = frozenset({"not_open", "session_required"})
"""Codes that no client gets from a server that remembers what was opened."""


class Disconnect(NamedTuple):
    """How a connection ended; `close` is its websocket close code, `code` and `detail` what the server said before."""

    close: int
    code: str
    detail: str


class WebsocketConnection:
    """Runs until the connection ends. `lines` are those of the client, by session id and producer."""

    def __init__(
        self,
        socket: ClientConnection,
        producers: Mapping[tuple[str, str], Producer],
        options: Options,
        frame_bytes: int = FRAME_BYTES,
    ) -> None:
        self.socket = socket
        self.producers = producers
        self.options = options
        self.opening: deque[Producer] = deque()
        self.open: set[Producer] = set()
        """Lines that the server has answered on this connection."""
        self.waiting: deque[Producer] = deque()
        """Open lines with something to send, each once."""
        self.queued: set[Producer] = set()
        """Those of `waiting`."""
        self.wake = asyncio.Event()
        self.frames_received = 0
        """Frames from the server."""
        self.frame_bytes = frame_bytes
        """What frames may hold now; acks let it grow again."""
        self.made_progress = False
        """Whether a line was opened, or an event acknowledged."""
        self.acked = False
        self.server_leaving = False
        """The server is about to close, and reads nothing more."""
        self.connection_error: ServerFrame | None = None
        """The last error that was about the connection as a whole."""

    # What the client says

    def open_producer(self, producer: Producer) -> None:
        self.open.discard(producer)
        self.opening.append(producer)
        self.wake.set()

    def schedule(self, producer: Producer) -> None:
        """A line has taken events."""
        if producer.buffer.unsent and producer in self.open and producer not in self.queued:
            self.waiting.append(producer)
            self.queued.add(producer)
            self.wake.set()

    def remove(self, producer: Producer) -> None:
        self.open.discard(producer)

    # The life of a connection

    async def run(self) -> Disconnect:
        """Send and hear until the connection ends."""
        helpers = [asyncio.create_task(self.write()), asyncio.create_task(self.watch())]
        for helper in helpers:
            helper.add_done_callback(self.abort_on_exit)
        try:
            await self.read()
        finally:
            for helper in helpers:
                helper.cancel()
            results = await asyncio.gather(*helpers, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        return self.disconnect()

    def abort_on_exit(self, helper: asyncio.Task[None]) -> None:
        """Without its helpers a connection is of no use."""
        if not helper.cancelled():
            self.socket.transport.abort()

    async def read(self) -> None:
        try:
            while True:
                frame = msgspec.json.decode(await self.socket.recv(decode=False), type=ServerFrame)
                self.frames_received += 1
                self.on_frame(frame)
        except ConnectionClosed:
            pass
        except msgspec.DecodeError:
            self.connection_error = ServerFrame(
                "error", code="not_voicemem", detail="The answer is no frame of voicemem.v1."
            )

    async def write(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self.wake.wait()
                self.wake.clear()
                while (self.opening or self.waiting) and not self.server_leaving:
                    await self.write_next()

    async def write_next(self) -> None:
        """One frame; here, and only here, a slow network holds the client back."""
        if self.opening:
            producer = self.opening.popleft()
            if not producer.finished:
                await self.socket.send(msgspec.json.encode(producer.open_frame()), text=True)
            return
        producer = self.waiting.popleft()
        self.queued.discard(producer)
        batch = producer.buffer.take_batch(self.frame_bytes) if producer in self.open else []
        if batch:
            self.schedule(producer)
            await self.socket.send(encode_batch(batch), text=True)

    async def watch(self) -> None:
        """End a connection whose peer is gone without a word: neither an answer nor a pong comes any more."""
        with suppress(ConnectionClosed):
            while True:
                await asyncio.sleep(self.options.ping_after_s)
                frames_received = self.frames_received
                try:
                    async with asyncio.timeout(self.options.ping_timeout_s):
                        await (await self.socket.ping())
                except TimeoutError:
                    if self.frames_received == frames_received:
                        return

    def next_frame_bytes(self) -> int:
        """For the next connection: smaller frames where not one got through, down to single events."""
        return self.frame_bytes if self.acked else max(1, self.frame_bytes // 4)

    def disconnect(self) -> Disconnect:
        close = 1006 if self.socket.close_code is None else self.socket.close_code
        if self.server_leaving:
            close = 1012
        if self.connection_error is None:
            return Disconnect(close, self.socket.close_reason or "", "The connection was lost.")
        return Disconnect(close, self.connection_error.code, self.connection_error.detail)

    # What the server says

    def on_frame(self, frame: ServerFrame) -> None:
        producer = self.producers.get((frame.session_id or "", frame.producer or ""))
        if frame.type == "goaway":
            self.server_leaving = True
        elif frame.code == "rate_limited":
            pass  # nothing is lost: the server reads on by itself
        elif frame.type == "error" and (producer is None or frame.code in LOST_STATE_CODES):
            self.on_connection_error(frame)
        elif producer is None:
            pass
        elif frame.type == "session.ready":
            self.on_ready(producer, frame)
        elif frame.type == "ack" and frame.seq is not None:
            self.made_progress = self.acked = True
            self.frame_bytes = min(FRAME_BYTES, 2 * self.frame_bytes)
            producer.on_ack(frame.seq)
        elif frame.type == "error":
            self.on_error(producer, frame)

    def on_ready(self, producer: Producer, frame: ServerFrame) -> None:
        self.made_progress = True
        producer.on_ready(frame)
        if not producer.finished:
            self.open.add(producer)
            self.schedule(producer)

    def on_error(self, producer: Producer, frame: ServerFrame) -> None:
        if producer.on_error(frame):
            self.open_producer(producer)
        else:
            self.schedule(producer)

    def on_connection_error(self, frame: ServerFrame) -> None:
        self.connection_error = frame
        if frame.code in LOST_STATE_CODES:
            self.socket.transport.abort()


def encode_batch(batch: list[Ack]) -> bytes:
    """A single event as it is, several as an array."""
    if len(batch) == 1:
        return batch[0].payload
    return b"[" + b",".join(ack.payload for ack in batch) + b"]"


WIRE_LOG = logging.getLogger("voicemem.client.websockets")


WIRE_LOG.setLevel(logging.WARNING)  # below it the library logs what is said


PATH = "/v1/ingest"
TRANSIENT_CODES = frozenset({"flood", "rate_limited", "timeout", "draining", "store_unavailable", "internal"})
"""Codes that are no reason to give up, whatever the connection was closed with."""
CLOSE_TIMEOUT_S = 2.0


class Blocked(Exception):
    """Something that is not voicemem answered instead of the websocket server."""


async def dial(url: str, key: str | None, options: Options) -> ClientConnection:
    """A new connection. Raises `Unreachable`, `Blocked`, and `RequestRefused` when trying again is of no use."""
    try:
        return await connect(
            url,
            additional_headers={"Authorization": f"Bearer {key}"} if key else {},
            compression=None,
            open_timeout=options.connect_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            logger=WIRE_LOG,
            ping_interval=None,  # `Link.watch` asks, and takes any answer for life
        )
    except InvalidStatus as error:
        raise handshake_error(error.response.status_code, error.response.body or b"") from None
    except (OSError, InvalidHandshake, ConnectionClosed, EOFError) as error:
        raise Unreachable(f"The connection to {url} failed: {error or type(error).__name__}") from None


async def discard(connecting: asyncio.Task[ClientConnection]) -> None:
    """Close the connection that a task makes or has made."""
    connecting.cancel()
    (made,) = await asyncio.gather(connecting, return_exceptions=True)
    if isinstance(made, ClientConnection):
        await made.close()


def with_path(url: str) -> str:
    """The ingest's URL with its path. Raises `ValueError` for what is no websocket URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname:
        raise ValueError("the ingest URL begins with ws:// or wss://, and a host follows")
    return parts._replace(path=parts.path if parts.path.strip("/") else PATH).geturl()


def handshake_error(status: int, body: bytes | bytearray) -> Exception:
    """The exception for an answer that is no upgrade to a websocket."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    code, detail = problem.get("reason"), problem.get("detail", f"The server answered HTTP status {status}.")
    if status >= 500 or code in TRANSIENT_CODES:
        return Unreachable(str(detail))
    if code in CODES:
        return RequestRefused(code, str(detail), status)
    return Blocked(str(detail))
