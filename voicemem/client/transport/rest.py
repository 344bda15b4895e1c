"""The REST API for a client: JSON answers, exports as lines, and errors as exceptions."""

import asyncio
import re
from collections.abc import AsyncGenerator, Callable, Coroutine, Mapping
from contextlib import aclosing
from functools import partial
from typing import Any, Literal, TypedDict
from urllib.parse import quote, urlsplit

import aiohttp
import msgspec
from yarl import URL

from voicemem.client.errors import ClientError, Closed, RequestRefused, Unreachable
from voicemem.client.options import Backoff, Options
from voicemem.client.transport.failures import TIMED_OUT, display_url, unreachable
from voicemem.protocol.codec import MALFORMED
from voicemem.protocol.types import JsonObject

CLOSE_TIMEOUT_S = 1.0
NO_CONTENT = 204
Query = Mapping[str, Any] | None
Headers = Mapping[str, str] | None
SILENCE_S = 60.0
"""How long an export may pause before it counts as lost."""


class RestClient:
    """Sends requests to one server. `url` is its root, and may have a path."""

    def __init__(self, url: str, key: str | None, options: Options) -> None:
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.options = options
        self.http: aiohttp.ClientSession | None = None
        self.closed = False

    async def close(self) -> None:
        """Close the connections. Later requests raise `Closed`."""
        self.closed = True
        if self.http is not None:
            await asyncio.wait({asyncio.ensure_future(self.http.close())}, timeout=CLOSE_TIMEOUT_S)

    def session(self) -> aiohttp.ClientSession:
        """Return the HTTP session, which is created at its first use. Raises `Closed`."""
        if self.closed:
            raise Closed
        if self.http is None:
            self.http = aiohttp.ClientSession(headers=self.headers)
        return self.http

    async def request(
        self,
        method: str,
        path: str,
        query: Query = None,
        body: Any = None,
        timeout_s: float | None = None,
        headers: Headers = None,
        is_json: bool = True,
    ) -> Any:
        """Send one request, without retries. A `body` that is not bytes is sent as JSON.

        Raises `RequestRefused` for an error, `Unreachable` if no answer came, `Closed`.
        """
        http = self.session()
        data = body if isinstance(body, bytes | None) else msgspec.json.encode(body)
        timeout_s = self.options.request_timeout_s if timeout_s is None else timeout_s
        timeout = aiohttp.ClientTimeout(total=timeout_s)
        url = self.address(path, query)
        try:
            async with http.request(
                method, url, data=data, headers=headers, allow_redirects=False, timeout=timeout
            ) as response:
                status, raw = response.status, await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(url, error, timeout_s, method) from None
        return raw.decode() if status == 200 and not is_json else decode_answer(status, raw)

    async def send(self, method: str, path: str, body: Any = None, headers: Headers = None) -> JsonObject:
        """Send one request within `read_timeout_s`, and return the answer's object. Raises as `request`."""
        answer: JsonObject = await self.request(method, path, None, body, self.options.read_timeout_s, headers)
        return answer

    async def export(self, session_id: str, form: str) -> str:
        """Read a call as a document within `read_timeout_s`. Raises as `request`."""
        path, timeout_s = session_path(session_id, "/export"), self.options.read_timeout_s
        return str(await self.request("GET", path, {"format": form}, timeout_s=timeout_s, is_json=False))

    async def lines(self, path: str, query: Mapping[str, Any]) -> AsyncGenerator[Any, None]:
        """GET an answer of JSON lines, of any length, line by line, without retries. Raises as `request`."""
        http = self.session()
        timeout_s = self.options.request_timeout_s
        timeout = aiohttp.ClientTimeout(total=None, sock_connect=timeout_s, sock_read=SILENCE_S)
        url = self.address(path, query)
        rest = b""
        try:
            async with http.get(url, allow_redirects=False, timeout=timeout) as response:
                if response.status != 200:
                    decode_answer(response.status, await response.read())
                async for piece in response.content.iter_any():
                    *whole, rest = (rest + piece).split(b"\n")
                    for line in whole:
                        yield decode_answer(response.status, line)
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(url, error, SILENCE_S, "GET") from None

    def address(self, path: str, query: Query = None) -> URL:
        return URL(self.url + path, encoded=True).update_query(query_params(query or {}))

    async def get(
        self, path: str, query: Query = None, timeout_s: float | None = None, headers: Headers = None
    ) -> JsonObject:
        """GET within `timeout_s` (`read_timeout_s` by default), whatever the network does.

        Raises `RequestRefused`, `Unreachable`, `Closed`.

        There are up to `read_attempts` attempts. The next begins when the last has failed, or has used its share of the
        time; it then runs in parallel, because the last one's connection may be dead. The first answer counts.
        """
        running: set[asyncio.Task[Any]] = set()
        timeout_s = self.options.read_timeout_s if timeout_s is None else timeout_s
        try:
            async with asyncio.timeout(timeout_s):
                request = partial(self.request, "GET", path, query, timeout_s=timeout_s, headers=headers)
                answer: JsonObject = await self.first_answer(request, timeout_s / self.options.read_attempts, running)
                return answer
        except TimeoutError:
            url = display_url(self.address(path))
            raise Unreachable(f"GET {url}: {TIMED_OUT} after {timeout_s:g} s.") from None
        finally:
            for task in running:
                task.cancel()
            await asyncio.gather(*running, return_exceptions=True)

    async def first_answer(
        self, request: Callable[[], Coroutine[Any, Any, Any]], share_s: float, running: set[asyncio.Task[Any]]
    ) -> Any:
        """Make the attempts. Those still running when this ends are in `running`."""
        backoff, failure = Backoff(self.options), Unreachable("No attempt was made.")
        for later in reversed(range(self.options.read_attempts)):
            running.add(asyncio.create_task(request()))
            while running:
                done, _ = await asyncio.wait(
                    running, timeout=share_s if later else None, return_when=asyncio.FIRST_COMPLETED
                )
                if not done:
                    break
                running -= done
                for error, attempt in [(attempt.exception(), attempt) for attempt in done]:
                    if not isinstance(error, Unreachable):
                        return attempt.result()
                    failure = error
            if later and not running:
                await asyncio.sleep(backoff.next_s(share_s / 2))
        raise failure


def required(rest: RestClient | None) -> RestClient:
    if rest is None:
        raise ClientError("no_rest_url", "This needs the URL of the REST API: Client(ingest_url, rest_url).")
    return rest


def check_rest_url(url: str) -> str:
    """Return the root URL of a REST API. Raises `ValueError` if it is invalid."""
    parts = urlsplit(url)
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.port == 0 or re.search(r"[\s?#]", url):
        raise ValueError("the REST URL must begin with http:// or https:// and a host, and have no query")
    return url


def decode_answer(status: int, raw: bytes) -> Any:
    """Decode an answer; None for one without content. Raises `RequestRefused` unless it is a success."""
    body = decode_json(raw)
    if 200 <= status < 300 and (body is not None or (status == NO_CONTENT and not raw)):
        return body
    problem = body if isinstance(body, dict) else {}
    detail = problem.get("detail", f"The answer, with HTTP status {status}, did not come from voicemem's REST API.")
    raise RequestRefused(str(problem.get("reason", f"http_{status}")), str(detail), status, problem)


def decode_json(raw: bytes | bytearray) -> Any:
    """Decode an answer; None if it is not JSON."""
    try:
        return msgspec.json.decode(raw)
    except MALFORMED:
        return None


def in_path(id: str) -> str:
    """Return an id as a path segment; `.` and `..` are encoded, because they would be removed."""
    return quote(id, safe="") if id.strip(".") else id.replace(".", "%2E")


def session_path(session_id: str, rest: str = "") -> str:
    """Return the path of a session, or of something in it."""
    return f"/v1/sessions/{in_path(session_id)}{rest}"


def user_path(user_id: str, rest: str = "") -> str:
    """Return the path of a user, likewise."""
    return f"/v1/users/{in_path(user_id)}{rest}"


def query_params(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Return arguments as query parameters: None is left out, list items are joined with commas."""
    query: dict[str, str] = {}
    for name, value in arguments.items():
        if isinstance(value, list | tuple):
            query[name] = ",".join(map(str, value))
        elif value is not None:
            query[name] = str(value).lower() if isinstance(value, bool) else str(value)
    return query


class CallFilters(TypedDict, total=False):
    """Filters of the exported calls. Times are Unix ms."""

    state: Literal["running", "ended"]
    user_id: str
    label: str
    started_after: int
    started_before: int


async def read_lines(rest: RestClient, path: str, query: Mapping[str, Any]) -> AsyncGenerator[JsonObject, None]:
    """Yield the lines of an export; the last one has the type `end`. Raises `Unreachable` if that does not come."""
    async with aclosing(rest.lines(path, query)) as lines:
        async for line in lines:
            yield line
            if line["type"] == "end":
                return
    raise Unreachable(f"GET {display_url(rest.address(path))}: the export was cut short.")
