"""Makes websocket connections, and ends them; what comes instead of one, as exceptions."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import InvalidStatus, WebSocketException

from voicemem.client.errors import RequestRefused, is_transient, passing_error
from voicemem.client.options import Options
from voicemem.client.transport.failures import HTTP_STATUS, display_url, unreachable
from voicemem.errors import CODES

PATH = "/v1/ingest"
CLOSE_TIMEOUT_S = 1.0
WIRE_LOG = logging.getLogger("voicemem.client.websockets")
WIRE_LOG.setLevel(logging.WARNING)  # at lower levels the library logs what was said on the call


class Blocked(Exception):
    """Something other than voicemem answered, such as a proxy that forbids websockets."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


async def dial(url: str, key: str | None, options: Options) -> ClientConnection:
    """A new connection. Raises `Unreachable`, `Blocked`, and `RequestRefused` if trying again is useless."""
    try:
        return await connect(
            url,
            additional_headers={"Authorization": f"Bearer {key}"} if key else {},
            compression=None,
            open_timeout=options.connect_timeout_s,
            close_timeout=CLOSE_TIMEOUT_S,
            logger=WIRE_LOG,
            ping_interval=None,  # `watch` pings instead, and takes any frame as a sign of life
        )
    except InvalidStatus as error:
        raise handshake_error(url, error.response.status_code, error.response.body or b"") from None
    except (OSError, WebSocketException, EOFError) as error:
        raise unreachable(url, error, options.connect_timeout_s) from None


async def hang_up(socket: ClientConnection) -> None:
    """Close a connection. A peer that no longer reads is not waited for: the library would wait for its room."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_TIMEOUT_S):
            await socket.close()
    socket.transport.abort()


async def discard(connecting: asyncio.Task[ClientConnection]) -> None:
    """Close the connection that a task is making or has made."""
    connecting.cancel()
    (result,) = await asyncio.gather(connecting, return_exceptions=True)
    if isinstance(result, ClientConnection):
        await hang_up(result)


def with_path(url: str) -> str:
    """The URL of the ingest, with its path. Raises `ValueError` unless it is a websocket URL."""
    parts = urlsplit(url)
    if parts.scheme not in ("ws", "wss") or not parts.hostname or parts.port == 0:
        raise ValueError("the ingest URL must begin with ws:// or wss:// and a host")
    return parts._replace(path=parts.path if parts.path.strip("/") else PATH).geturl()


def handshake_error(url: str, status: int, body: bytes | bytearray) -> Exception:
    """The exception for an answer that is not an upgrade to a websocket."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    code, detail = str(problem.get("reason", "")), str(problem.get("detail", "this is not voicemem's answer"))
    if status >= 500 or is_transient(code, status):
        return passing_error(display_url(url), code, status, detail)
    return RequestRefused(code, detail, status) if code in CODES else Blocked(f"{HTTP_STATUS} {status}: {detail}")
