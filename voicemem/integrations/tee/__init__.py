"""A tee: one line around a connection to another voice stack sends a copy of each of its frames to the memory.

    connection = voicemem.tee(connection, client, session_id="call-1")

    tee.phone(socket, client, session_id="call-1")

Connections can be those of openai's realtime SDK, `websockets`, aiohttp, FastAPI or Starlette; openai and FastAPI are
not imported here. See docs/tee.md.
"""

import asyncio
import re
from collections.abc import Mapping
from typing import Any, TypeVar

from voicemem.client import Client
from voicemem.dialects.dialect import Side
from voicemem.dialects.registry import DIALECTS
from voicemem.dialects.twilio_media_streams import TWILIO_MEDIA_STREAMS
from voicemem.integrations.background_session import config_of
from voicemem.integrations.tee.connections import certain_dialect, wrap
from voicemem.integrations.tee.memory import CallMemory, FrameQueue
from voicemem.integrations.tee.phone import PhoneQueue
from voicemem.protocol.types import SESSION_ID_PATTERN, SESSION_ID_RULE

__all__ = ["CallMemory", "memory_of", "phone", "tee"]
MEMORY = "__voicemem__"
C = TypeVar("C")


def tee(
    connection: C,
    client: Client | str,
    session_id: str | None = None,
    *,
    dialect: str | None = None,
    side: Side = "app",
    api_key: str | None = None,
    rest_url: str | None = None,
    user_id: str | None = None,
    config: Mapping[str, Any] | None = None,
    producer: str | None = None,
    keep_typed: bool = True,
    end: bool = True,
) -> C:
    """Send a copy of all frames of a connection, in both directions, to the memory. Returns the same connection.

    `client` is one client for all calls, or the ingest URL, with `api_key` and `rest_url`. Without `session_id` the
    vendor's own is used. `dialect` may be missing only for openai's realtime connection. `side` is this program's side:
    the `app` receives the vendor's frames, even if the vendor connects to it. `config` is for a new session, and
    `user_id` its user. Without `keep_typed`, texts that the app adds are left out. With `end` the session ends with the
    connection.

    Afterwards nothing raises into the call, or delays it. Raises `TypeError` for an unknown kind of connection,
    `ValueError` for an invalid dialect, id, name, URL or key, and `RuntimeError` outside of an event loop.
    """
    asyncio.get_running_loop()
    chosen = DIALECTS.get(dialect or certain_dialect(connection) or "")
    if chosen is None:
        raise ValueError(f"dialect must be one of {', '.join(sorted(DIALECTS))}")
    if session_id is not None and not re.match(SESSION_ID_PATTERN, session_id):
        raise ValueError(f"a session id must be {SESSION_ID_RULE}")
    name = chosen.name if producer is None else producer
    if not 1 <= len(name) <= 128:
        raise ValueError("a producer's name must be 1 to 128 characters long")
    if side not in ("app", "vendor"):
        raise ValueError("side must be app or vendor: who this program is")
    is_own = isinstance(client, str)
    if not is_own and (api_key is not None or rest_url is not None):
        raise ValueError("api_key and rest_url go with a URL; a client has its own")
    used = Client(client, rest_url, api_key) if isinstance(client, str) else client
    memory = CallMemory(
        used,
        is_own,
        chosen,
        session_id,
        side=side,
        producer=name,
        config=config_of(user_id, config),
        keep_typed=keep_typed,
        ends=end,
        queue_kind=PhoneQueue if chosen is TWILIO_MEDIA_STREAMS else FrameQueue,
    )
    wrap(connection, memory)
    setattr(connection, MEMORY, memory)
    return connection


def phone(connection: C, client: Client | str | CallMemory, session_id: str | None = None, **options: Any) -> C:
    """Report to the memory how far a phone has played the agent's audio. Returns the same connection.

    The connection is the phone's media stream (Twilio, SignalWire, Telnyx, Plivo, Vonage). In place of a client and an
    id, `client` may be the memory of another connection of the call. All else is as with `tee`.
    """
    if isinstance(client, CallMemory):
        session_id, client = client.session_id, client.client
        if session_id is None:
            raise ValueError("the session of this memory has no id yet: give both connections a session_id")
    return tee(connection, client, session_id, dialect=TWILIO_MEDIA_STREAMS.name, **options)


def memory_of(connection: object) -> CallMemory:
    """Return the memory of a connection from `tee`. Raises `TypeError` for any other."""
    memory = getattr(connection, MEMORY, None)
    if not isinstance(memory, CallMemory):
        raise TypeError("this connection has no memory: voicemem.tee(connection, …) gives it one")
    return memory
