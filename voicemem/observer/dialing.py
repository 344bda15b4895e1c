"""Makes websocket connections to vendors, and says what became of them. Nothing of a vendor's answer is repeated."""

from __future__ import annotations

import asyncio
import logging
from contextlib import suppress
from typing import NamedTuple

from websockets.asyncio.client import ClientConnection, connect
from websockets.exceptions import ConnectionClosed, InvalidStatus, InvalidURI, WebSocketException

from voicemem.dialects.envelope import MAX_DIALECT_FRAME_BYTES
from voicemem.store.records import ObservationState
from voicemem.version import __version__

WIRE_LOG = logging.getLogger("voicemem.observer.websockets")
WIRE_LOG.setLevel(logging.CRITICAL)  # at lower levels the library logs headers, and what was said on the call
HANDSHAKE_S, CLOSE_S = 10.0, 1.0
PING_S = 20.0
"""Between pings, and how long an answer may take: a connection that hangs is noticed after both."""
MAX_QUEUE = 4
"""Messages that the library reads ahead: each may be large."""
NORMAL_CLOSE = 1000
PASSING = (408, 409, 425, 429)
"""Statuses below 500 after which another attempt may fare better."""
NO_SUCH_CALL = (404, 410)


class Interrupted(NamedTuple):
    """Why a call is not observed, or not any more."""

    state: ObservationState
    """`waiting` where it is worth another attempt."""
    reason: str
    status: int | None = None
    """The status of the vendor's answer, or the code of its close."""


class DialFailed(Exception):
    """There was no connection."""

    def __init__(self, why: Interrupted) -> None:
        super().__init__(why.reason)
        self.why = why


class Direct(connect):
    """Follows no redirects: the key is for the address of the settings alone."""

    def process_redirect(self, exc: Exception) -> Exception:
        return exc


async def dial(url: str, key: str) -> ClientConnection:
    """A new connection. Raises `DialFailed`."""
    try:
        return await Direct(
            url,
            additional_headers={"Authorization": f"Bearer {key}"},
            user_agent_header=f"voicemem/{__version__}",
            compression=None,
            proxy=None,
            open_timeout=HANDSHAKE_S,
            close_timeout=CLOSE_S,
            ping_interval=PING_S,
            ping_timeout=PING_S,
            max_size=MAX_DIALECT_FRAME_BYTES,
            max_queue=MAX_QUEUE,
            logger=WIRE_LOG,
        )
    except InvalidStatus as error:
        raise DialFailed(answered(error.response.status_code)) from None
    except (InvalidURI, ValueError):
        raise DialFailed(Interrupted("failed", "refused")) from None
    except (OSError, WebSocketException, EOFError):
        raise DialFailed(Interrupted("waiting", "unreachable")) from None


def answered(status: int) -> Interrupted:
    """What another answer than a websocket means."""
    if status >= 500 or status in PASSING:
        return Interrupted("waiting", "unreachable", status)
    return Interrupted("failed", "unknown_call" if status in NO_SUCH_CALL else "refused", status)


def closed(error: ConnectionClosed) -> Interrupted:
    """What the end of a connection means: only a normal close says that the call is over."""
    code = error.rcvd.code if error.rcvd is not None else error.sent.code if error.sent is not None else None
    if error.rcvd is not None and code == NORMAL_CLOSE:
        return Interrupted("ended", "call_over", code)
    return Interrupted("waiting", "dropped", code)


async def hang_up(socket: ClientConnection) -> None:
    """Close a connection; a vendor that does not answer is not waited for."""
    with suppress(TimeoutError):
        async with asyncio.timeout(CLOSE_S):
            await socket.close()
    socket.transport.abort()
