"""One attempt at a websocket connection, and what its failure means."""

from __future__ import annotations

import asyncio
import logging
from typing import Any
from urllib.parse import urlsplit

import msgspec
from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidHandshake, InvalidStatus

from voicemem.client.errors import RequestRefused, Unreachable
from voicemem.client.options import Options
from voicemem.errors import CODES

WIRE_LOG = logging.getLogger("voicemem.client.websockets")
WIRE_LOG.setLevel(logging.WARNING)  # below it the library logs what is said
PATH = "/v1/ingest"
PASSING_CODES = frozenset({"flood", "rate_limited", "timeout", "draining", "store_unavailable", "internal"})
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
        raise refusal_of(error.response.status_code, error.response.body or b"") from None
    except (OSError, InvalidHandshake, ConnectionClosed, EOFError) as error:
        raise Unreachable(f"The connection to {url} failed: {error or type(error).__name__}") from None


async def abandon(connecting: asyncio.Task[ClientConnection]) -> None:
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


def refusal_of(status: int, body: bytes | bytearray) -> Exception:
    """The exception for an answer that is no upgrade to a websocket."""
    try:
        problem = msgspec.json.decode(body, type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        problem = {}
    code, detail = problem.get("reason"), problem.get("detail", f"The server answered HTTP status {status}.")
    if status >= 500 or code in PASSING_CODES:
        return Unreachable(str(detail))
    if code in CODES:
        return RequestRefused(code, str(detail), status)
    return Blocked(str(detail))
