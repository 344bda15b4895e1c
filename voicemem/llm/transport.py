"""Requests to LLMs over aiohttp connections that obey the address guard, and the words for how they fail.

Nothing is sent twice (a caller on the phone cannot wait), and nothing is read from the environment.
"""

import asyncio
import io
from collections.abc import AsyncGenerator, Mapping
from http import HTTPStatus
from types import SimpleNamespace

import aiohttp
import msgspec

from voicemem.errors import LlmFailed
from voicemem.llm.endpoints import LlmEndpoint
from voicemem.protocol.types import JsonObject
from voicemem.security.address_guard import direct_session, error_word

RESERVED_HEADERS = frozenset(
    (
        *("connection", "content-encoding", "content-length", "expect", "host", "keep-alive"),
        *("te", "trailer", "transfer-encoding", "upgrade"),
    )
)
"""Headers that a session cannot set; the same holds for `Authorization` if it gives a key."""
PIECE_BYTES = 64 * 1024
"""A longer body is sent in pieces: one large write would hold up the event loop."""
OWN_WORDS = {"reset": "dropped", "bad_answer": "invalid_answer"}


class LlmResponse:
    def __init__(self, answer: aiohttp.ClientResponse, deadline: float) -> None:
        self.answer = answer
        self.deadline = deadline
        """By the clock of the event loop."""

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The body, piece by piece as it arrives. Raises `LlmFailed`."""
        loop = asyncio.get_running_loop()
        try:
            async for piece in self.answer.content.iter_any():
                if loop.time() > self.deadline:  # what has come already is not waited for
                    raise LlmFailed("timeout")
                yield piece
        except (aiohttp.ClientError, OSError) as error:
            raise failure(error) from None

    def close(self) -> None:
        """Close the connection, unless the whole body was read."""
        self.answer.close()


class LlmTransport:
    """Sends requests to LLMs over one connector, which it owns."""

    def __init__(self, connector: aiohttp.TCPConnector, connect_s: float, read_s: float) -> None:
        # The connector has no limit, so no request waits for a free connection: `connect` bounds the way to the server.
        self.connect_s, self.read_s = connect_s, read_s
        self.session = direct_session(connector, aiohttp.ClientTimeout())

    async def close(self) -> None:
        await self.session.close()

    async def send(
        self, endpoint: LlmEndpoint, body: JsonObject | None, extra_headers: Mapping[str, str], total_s: float
    ) -> LlmResponse:
        """The answer to a body, or to a GET without one; its own body is not yet read. Raises `LlmFailed`.

        `total_s` is for all of it, however steadily it comes.
        """
        headers = request_headers(endpoint, extra_headers)
        if not all(value.isascii() for value in headers.values()):
            raise LlmFailed("invalid_key")
        content = None if body is None else msgspec.json.encode(body)
        timeout = aiohttp.ClientTimeout(total=total_s, connect=self.connect_s, sock_read=self.read_s)
        deadline = asyncio.get_running_loop().time() + total_s
        while True:
            context = SimpleNamespace(reused=False)
            try:
                answer = await self.session.request(
                    "GET" if content is None else "POST",
                    endpoint.request_url,
                    data=io.BytesIO(content) if content is not None and len(content) > PIECE_BYTES else content,
                    headers=headers,
                    allow_redirects=False,
                    timeout=timeout,
                    trace_request_ctx=context,
                )
            except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
                # The server may have closed an idle connection just as it was reused: only a fresh one decides. Each
                # failure takes one idle connection out of the pool, so the loop ends after the last of them.
                if isinstance(error, aiohttp.ClientConnectorError) or not context.reused:
                    raise failure(error) from None
            except (aiohttp.ClientError, OSError, ValueError) as error:
                raise failure(error) from None
            else:
                return checked(answer, deadline)


def checked(answer: aiohttp.ClientResponse, deadline: float) -> LlmResponse:
    """An answer with a body that can be read. Raises `LlmFailed`."""
    if answer.status >= HTTPStatus.MULTIPLE_CHOICES:
        answer.close()  # the text of an error may be long, and is never shown
        raise LlmFailed(answer.status)
    if answer.headers.get("Content-Encoding", "identity").lower() != "identity":
        answer.close()  # none other was asked for, and a few bytes of one could unpack to as many megabytes
        raise LlmFailed("invalid_answer")
    return LlmResponse(answer, deadline)


def request_headers(endpoint: LlmEndpoint, extra_headers: Mapping[str, str]) -> dict[str, str]:
    """The headers of one request. Ours win over the session's."""
    ours = {
        **extra_headers,
        "Accept": "application/json",
        "Accept-Encoding": "identity",
        "Content-Type": "application/json",
        "User-Agent": "voicemem",
    }
    if endpoint.api_key:
        ours["Authorization"] = f"Bearer {endpoint.api_key}"
    taken = {name.lower() for name in ours} | RESERVED_HEADERS
    return {name: value for name, value in endpoint.headers.items() if name.lower() not in taken} | ours


def failure(error: Exception) -> LlmFailed:
    """The failure to report for an error of a connection."""
    word = error_word(error)
    return LlmFailed(OWN_WORDS.get(word, word))
