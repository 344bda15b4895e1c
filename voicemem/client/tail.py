"""A live tail, as a client follows it: server-sent events, gone on with after every lost connection."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, NamedTuple

import aiohttp
import msgspec
from yarl import URL

from voicemem.client.errors import RequestRefused, Unreachable
from voicemem.client.options import Backoff, Options
from voicemem.client.rest import TRANSIENT_STATUSES, decode_answer, session_path
from voicemem.protocol.sse import EVENT_STREAM, Decoder, SseEvent, TooLong

SILENCE_S = 45.0
"""The server says something every 15 s."""
TRANSIENT_TAIL_CODES = frozenset({"draining", "store_unavailable", "internal"})
"""Of tails that were cut, and may go on soon."""
NO_CONTENT = 204
MAX_EVENT_BYTES = 64 * 1024 * 1024
"""Of one event, so that a server, or what poses as one, cannot fill the memory."""


class TailEvent(NamedTuple):
    """One event of a tail, its data decoded; a reader that connects again goes on behind `last_event_id`."""

    last_event_id: str | None
    event: str
    data: dict[str, Any]


class TailReader:
    """Follows the tail at an address. `lone`: it is of one session, and over with it."""

    def __init__(self, address: URL, key: str | None, single_session: bool, options: Options | None = None) -> None:
        self.address = address
        self.headers = {"Accept": EVENT_STREAM, **({"Authorization": f"Bearer {key}"} if key else {})}
        self.single_session = single_session
        self.backoff = Backoff(options or Options())
        self.last_event_id: str | None = None
        self.ever_connected = False
        """Whether there ever was an answer."""

    async def events(self) -> AsyncGenerator[TailEvent, None]:
        """What the tail tells, each thing once, until it is over.

        Raises `RequestRefused`, and `Unreachable` when there never was an answer.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENCE_S)
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
                        raise Unreachable(f"GET {self.address.path} failed: {error or type(error).__name__}") from None
                except RequestRefused as refused:
                    if refused.status == NO_CONTENT:
                        return
                    if not (
                        self.ever_connected
                        and (refused.status in TRANSIENT_STATUSES or refused.code in TRANSIENT_TAIL_CODES)
                    ):
                        raise
                await asyncio.sleep(self.backoff.next_s())

    async def read_once(self, http: aiohttp.ClientSession) -> AsyncGenerator[TailEvent, None]:
        """The events of one connection. Raises `RequestRefused` also when the tail is cut."""
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
                    for event in map(parse_event, decoder.feed(piece)):
                        self.last_event_id = event.last_event_id or self.last_event_id
                        if event.event in ("goaway", "error"):
                            raise RequestRefused(str(event.data["reason"]), str(event.data["detail"]))
                        if event.event:
                            yield event
            except TooLong:
                raise RequestRefused("too_big", "An event of the tail is larger than 64 MiB.") from None


def parse_event(event: SseEvent) -> TailEvent:
    """Decode the data of an event; one without a name only says where the tail stands."""
    return TailEvent(event.id, event.event, msgspec.json.decode(event.data or b"{}"))


def tail_url(url: str, session_id: str | None, query: Mapping[str, str]) -> URL:
    """The address of a session's tail, else of several, at the server with this root."""
    path = "/v1/events" if session_id is None else session_path(session_id, "/events")
    return URL(url.rstrip("/") + path, encoded=True).update_query(query)
