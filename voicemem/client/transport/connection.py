"""A websocket connection: it sends the events of producers, and passes the server's answers to them."""

import asyncio
import logging
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import NamedTuple
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, WebSocketException

from voicemem.client.errors import LOST_STATE_CODES, RequestRefused, is_transient, transient_error
from voicemem.client.options import Options
from voicemem.client.producer import Producer, ServerFrame
from voicemem.client.transport.failures import HTTP_STATUS, display_url, unreachable
from voicemem.client.transport.rest import CLOSE_TIMEOUT_S, decode_json
from voicemem.errors import CODES

PATH = "/v1/ingest"
WIRE_LOG = logging.getLogger("voicemem.client.websockets")
WIRE_LOG.setLevel(logging.WARNING)  # at lower levels the library logs the words of the call
FRAME_BYTES = 16 * 1024
"""Waiting events share a frame of up to this size, which is small so that acks come often on a slow network."""


class Blocked(Exception):
    """Something other than voicemem answered, such as a proxy that blocks websockets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def dial(url: str, key: str | None, options: Options) -> ClientConnection:
    """Open a connection. Raises `Unreachable`, `Blocked`, and `RequestRefused` if a retry is useless."""
    try:
        return await connect(
            url,
            additional_headers={"Authorization": f"Bearer {key}"} if key else {},
            compression=None,
            open_timeout=options.connect_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            logger=WIRE_LOG,
            ping_interval=None,  # `watch` pings instead, and accepts any frame as a sign of life
        )
    except InvalidStatus as error:
        raise handshake_error(url, error.response.status_code, error.response.body or b"") from None
    except (OSError, WebSocketException, EOFError) as error:
        raise unreachable(url, error, options.connect_timeout_s) from None


async def hang_up(socket: ClientConnection) -> None:
    """Close a connection without waiting for a peer that no longer reads, as the library would."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await socket.close()
    socket.transport.abort()


def with_path(url: str) -> str:
    """Return the ingest URL with its path. Raises `ValueError` unless it is a websocket URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.port == 0:
        raise ValueError("the ingest URL must begin with ws:// or wss:// and a host")
    return parts._replace(path=parts.path if parts.path.strip("/") else PATH).geturl()


def handshake_error(url: str, status: int, body: bytes | bytearray) -> Exception:
    decoded = decode_json(body)
    problem = decoded if isinstance(decoded, dict) else {}
    code, detail = str(problem.get("reason", "")), str(problem.get("detail", "this is not voicemem's answer"))
    if status >= 500 or is_transient(code, status):
        return transient_error(display_url(url), code, status, detail)
    return RequestRefused(code, detail, status) if code in CODES else Blocked(f"{HTTP_STATUS} {status}: {detail}")


class Disconnect(NamedTuple):
    """The end of a connection. `code` and `detail` are from the server's last error, if it sent one."""

    close_code: int
    code: str
    detail: str


@dataclass(eq=False)
class WebsocketConnection:
    """Runs until the connection ends. `producers` are the client's, by session id and name.

    `on_progress` is called whenever a producer is opened or an event acknowledged.
    """

    socket: ClientConnection
    producers: Mapping[tuple[str, str], Producer]
    options: Options
    frame_bytes: int
    """The current size limit of a frame; each ack doubles it, up to `FRAME_BYTES`."""
    on_progress: Callable[[], None]

    def __post_init__(self) -> None:
        self.to_open: deque[Producer] = deque()
        self.open: set[Producer] = set()
        self.to_send: deque[Producer] = deque()
        """Open producers with something to send, each once."""
        self.queued: set[Producer] = set()
        self.wake = asyncio.Event()
        self.frames_received = 0
        self.made_progress = False
        self.acked = False
        self.server_leaving = False
        self.connection_error: ServerFrame | None = None

    # For producers

    def open_producer(self, producer: Producer) -> None:
        self.open.discard(producer)
        self.to_open.append(producer)
        self.wake.set()

    def schedule(self, producer: Producer) -> None:
        if producer.buffer.unsent and producer in self.open and producer not in self.queued:
            self.to_send.append(producer)
            self.queued.add(producer)
            self.wake.set()

    def remove(self, producer: Producer) -> None:
        self.open.discard(producer)

    # Lifecycle

    async def run(self) -> Disconnect:
        helpers = [asyncio.create_task(self.write()), asyncio.create_task(self.watch())]
        for helper in helpers:  # the connection cannot work without
            helper.add_done_callback(lambda ended: None if ended.cancelled() else self.socket.transport.abort())
        try:
            await self.read()
        finally:
            for helper in helpers:
                helper.cancel()
            results = await asyncio.gather(*helpers, return_exceptions=True)
        for result in results:
            if isinstance(result, Exception):
                raise result
        close_code = 1012 if self.server_leaving else self.socket.close_code
        close_code = 1006 if close_code is None else close_code
        if self.connection_error is None:
            return Disconnect(close_code, self.socket.close_reason or "", "The connection was lost.")
        return Disconnect(close_code, self.connection_error.code, self.connection_error.detail)

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
                "error", code="not_voicemem", detail="The answer is not a frame of voicemem.v1."
            )

    async def write(self) -> None:
        with suppress(ConnectionClosed):
            while True:
                await self.wake.wait()
                self.wake.clear()
                while (self.to_open or self.to_send) and not self.server_leaving:
                    await self.write_next()

    async def write_next(self) -> None:
        """Send one frame. This is the only place where a slow network delays the client."""
        if self.to_open:
            producer = self.to_open.popleft()
            if not producer.finished and self.producers.get(producer.key) is producer:  # unless its open was given up
                await self.socket.send(msgspec.json.encode(producer.open_frame()), text=True)
            return
        producer = self.to_send.popleft()
        self.queued.discard(producer)
        batch = producer.buffer.take_batch(self.frame_bytes) if producer in self.open else []
        if batch:
            self.schedule(producer)
            payloads = b",".join(ack.payload for ack in batch)
            await self.socket.send(payloads if len(batch) == 1 else b"[" + payloads + b"]", text=True)

    async def watch(self) -> None:
        """Return, and so end the connection, when the server no longer sends frames or pongs."""
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

    # Answers of the server

    def on_frame(self, frame: ServerFrame) -> None:
        producer = self.producers.get((frame.session_id or "", frame.producer or ""))
        if frame.type == "goaway":
            self.server_leaving = True
        elif frame.code == "rate_limited":
            pass  # nothing is lost: the server resumes reading on its own
        elif frame.type == "error" and (producer is None or frame.code in LOST_STATE_CODES):
            self.connection_error = frame
            if frame.code in LOST_STATE_CODES:
                self.socket.transport.abort()
        elif producer is not None:
            self.on_producer_frame(producer, frame)

    def on_producer_frame(self, producer: Producer, frame: ServerFrame) -> None:
        if frame.type in ("session.ready", "ack"):
            self.made_progress = True
            self.on_progress()
        if frame.type == "session.ready":
            producer.on_ready(frame)
            if not producer.finished:
                self.open.add(producer)
        elif frame.type == "ack" and frame.seq is not None:
            self.acked = True
            self.frame_bytes = min(FRAME_BYTES, 2 * self.frame_bytes)
            producer.on_ack(frame.seq)
        elif frame.type == "error" and producer.on_error(frame):
            self.open_producer(producer)
            return
        self.schedule(producer)  # after an ack, events after a gap may be sent
