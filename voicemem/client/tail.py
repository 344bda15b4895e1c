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
from voicemem.client.rest import PASSING, answer_of, session_path

SILENCE_S = 45.0
"""The server says something every 15 s."""
PASSING_CODES = frozenset({"draining", "store_unavailable", "internal"})
"""Of tails that were cut, and may go on soon."""
OVER = 204


class Told(NamedTuple):
    """One server-sent event; its reader goes on after `place`. Without a name it is only the place."""

    place: str | None
    event: str
    data: dict[str, Any]


class Follower:
    """Follows the tail at an address. `lone`: it is of one session, and over with it."""

    def __init__(self, address: URL, key: str | None, lone: bool, options: Options | None = None) -> None:
        self.address = address
        self.headers = {"Accept": "text/event-stream", **({"Authorization": f"Bearer {key}"} if key else {})}
        self.lone = lone
        self.backoff = Backoff(options or Options())
        self.place: str | None = None
        self.reached = False
        """Whether there ever was an answer."""

    async def told(self) -> AsyncGenerator[Told, None]:
        """What the tail tells, each thing once, until it is over.

        Raises `RequestRefused`, and `Unreachable` when there never was an answer.
        """
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=10.0, sock_read=SILENCE_S)
        async with aiohttp.ClientSession(headers=self.headers, timeout=timeout) as http:
            while True:
                try:
                    async with aclosing(self.once(http)) as telling:
                        async for told in telling:
                            yield told
                            if self.lone and told.event == "end":
                                return
                except (aiohttp.ClientError, OSError, TimeoutError) as error:
                    if not self.reached:
                        raise Unreachable(f"GET {self.address.path} failed: {error or type(error).__name__}") from None
                except RequestRefused as refused:
                    if refused.status == OVER:
                        return
                    if not (self.reached and (refused.status in PASSING or refused.code in PASSING_CODES)):
                        raise
                await asyncio.sleep(self.backoff.next_s())

    async def once(self, http: aiohttp.ClientSession) -> AsyncGenerator[Told, None]:
        """What is told over one connection. Raises `RequestRefused` also when the tail is cut."""
        headers = {} if self.place is None else {"Last-Event-ID": self.place}
        async with http.get(self.address, headers=headers, allow_redirects=False) as response:
            if response.status == OVER:
                raise RequestRefused("over", "Nothing more comes.", OVER)
            if response.status != 200:
                answer_of(response.status, await response.read())
            self.reached = True
            self.backoff.reset()
            block = b""
            async for piece in response.content.iter_any():
                *blocks, block = (block + piece).split(b"\n\n")
                for told in map(told_by, blocks):
                    self.place = told.place or self.place
                    if told.event in ("goaway", "error"):
                        raise RequestRefused(str(told.data["reason"]), str(told.data["detail"]))
                    if told.event:
                        yield told


def told_by(block: bytes) -> Told:
    """A server-sent event, without the empty line that ends it."""
    fields = dict(line.split(b": ", 1) for line in block.split(b"\n") if b": " in line)
    data = msgspec.json.decode(fields.get(b"data", b"{}"))
    place = fields.get(b"id")
    return Told(None if place is None else place.decode(), fields.get(b"event", b"").decode(), data)


def tail_of(url: str, session_id: str | None, query: Mapping[str, str]) -> URL:
    """The address of a session's tail, else of several, at the server with this root."""
    path = "/v1/events" if session_id is None else session_path(session_id, "/events")
    return URL(url.rstrip("/") + path, encoded=True).update_query(query)
