"""Reading of a live tail: server-sent events, resumed after every lost connection."""

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import aiohttp
import msgspec
from yarl import URL

from voicemem.client.errors import RequestRefused, is_transient
from voicemem.client.options import Backoff, Options
from voicemem.client.transport.failures import unreachable
from voicemem.client.transport.rest import NO_CONTENT, decode_answer, session_path
from voicemem.protocol.sse import EVENT_STREAM, Decoder, TooLong

CONNECT_TIMEOUT_S = 10.0
SILENCE_S = 45.0
"""After this long without a byte the connection counts as lost; the server sends at least a comment every 15 s."""
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""The most bytes of one event, so that a faulty or false server cannot fill the memory."""


class TailEvent(NamedTuple):
    """One event of a tail, with decoded data; a reader resumes after its id. Without a name it has only the id."""

    last_event_id: str | None
    event: str
    data: dict[str, Any]


class TailReader:
    """Reads the tail at an address. With `single_session` it is the tail of one session, and ends with it."""

    def __init__(self, address: URL, key: str | None, single_session: bool, options: Options | None = None) -> None:
        self.address = address
        self.headers = {"Accept": EVENT_STREAM, **({"Authorization": f"Bearer {key}"} if key else {})}
        self.single_session = single_session
        self.backoff = Backoff(options or Options())
        self.last_event_id: str | None = None
        self.ever_connected = False

    async def events(self) -> AsyncGenerator[TailEvent, None]:
        """Yield the events of the tail, each once, until its end.

        Raises `RequestRefused`, and `Unreachable` if the first attempt gets no answer; later attempts are repeated.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=SILENCE_S)
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as http:
            while True:
                try:
                    async with aclosing(self.read_once(http)) as events:
                        async for event in events:
                            yield event
                            if self.single_session and event.event == "end":
                                return
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    if not self.ever_connected:
                        is_connecting = isinstance(error, aiohttp.ConnectionTimeoutError)
                        timeout_s = CONNECT_TIMEOUT_S if is_connecting else SILENCE_S
                        raise unreachable(self.address, error, timeout_s, "GET") from None
                except RequestRefused as refused:
                    if refused.status == NO_CONTENT:
                        return
                    if not (self.ever_connected and is_transient(refused.code, refused.status)):
                        raise
                await asyncio.sleep(self.backoff.next_s())

    async def read_once(self, http: aiohttp.ClientSession) -> AsyncGenerator[TailEvent, None]:
        """Yield the events of one connection. Raises `RequestRefused`, even when the server cuts the tail."""
        headers = {} if self.last_event_id is None else {"Last-Event-ID": self.last_event_id}
        async with http.get(self.address, headers=headers, allow_redirects=False) as response:
            if response.status == NO_CONTENT:
                raise RequestRefused("over", "Nothing more comes.", NO_CONTENT)
            if response.status != 200:
                decode_answer(response.status, await response.read())
            self.ever_connected = True
            self.backoff.reset()
            decoder = Decoder(MAX_EVENT_BYTES)
            try:
                async for piece in response.content.iter_any():
                    for fed in decoder.feed(piece):
                        event = TailEvent(fed.id, fed.event, msgspec.json.decode(fed.data or b"{}"))
                        self.last_event_id = event.last_event_id or self.last_event_id
                        if event.event in ("goaway", "error"):
                            raise RequestRefused(str(event.data["reason"]), str(event.data["detail"]))
                        if event.event:
                            yield event
            except TooLong:
                raise RequestRefused("too_big", "An event of the tail is larger than 64 MiB.") from None


def tail_url(url: str, session_id: str | None, query: Mapping[str, str]) -> URL:
    """Return the address of a session's tail, or without `session_id` of several'. `url` is the API's root."""
    path = "/v1/events" if session_id is None else session_path(session_id, "/events")
    return URL(url.rstrip("/") + path, encoded=True).update_query(query)
