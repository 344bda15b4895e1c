"""The REST API for a client: answers as JSON, errors as exceptions."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any
from urllib.parse import quote

import aiohttp
import msgspec
from yarl import URL

from voicemem.client.errors import RequestRefused, Unreachable
from voicemem.client.options import Backoff, Options


class RestClient:
    """Sends requests to one server. `url` is its root; a path in it is kept."""

    def __init__(self, url: str, key: str | None, options: Options) -> None:
        self.url = url.rstrip("/")
        self.headers = {"Authorization": f"Bearer {key}"} if key else {}
        self.options = options
        self.http: aiohttp.ClientSession | None = None

    async def close(self) -> None:
        if self.http is not None:
            await self.http.close()

    async def request(
        self, method: str, path: str, query: Mapping[str, str] | None = None, body: bytes | None = None
    ) -> Any:
        """Send one request, without retries. Raises `RequestRefused` for an error, `Unreachable` if no answer came."""
        if self.http is None:
            timeout = aiohttp.ClientTimeout(total=self.options.request_timeout_s)
            self.http = aiohttp.ClientSession(headers=self.headers, timeout=timeout)
        url = URL(self.url + path, encoded=True).update_query(query or {})
        try:
            async with self.http.request(method, url, data=body, allow_redirects=False) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise unreachable(method, url, error) from None
        return decode_answer(response.status, raw)

    async def get(self, path: str, query: Mapping[str, str]) -> Any:
        """GET, retried when the connection fails. Raises `RequestRefused`, `Unreachable`."""
        backoff = Backoff(self.options)
        for _ in range(self.options.read_attempts - 1):
            try:
                return await self.request("GET", path, query)
            except Unreachable:
                await asyncio.sleep(backoff.next_s())
        return await self.request("GET", path, query)


def unreachable(method: str, url: URL, error: Exception) -> Unreachable:
    """The exception for a request without an answer."""
    if isinstance(error, aiohttp.ClientConnectorError):  # its own text speaks of "ssl:default", also without TLS
        reason = error.os_error.strerror or error.os_error
        return Unreachable(f"The connection to {error.host}:{error.port} failed: {reason}.")
    return Unreachable(f"{method} {url.path} failed: {error or type(error).__name__}")


def decode_answer(status: int, raw: bytes) -> Any:
    """The JSON of an answer. Raises `RequestRefused` unless the answer is a success with JSON."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if 200 <= status < 300 and body is not None:
        return body
    problem = body if isinstance(body, dict) else {}
    detail = problem.get("detail", f"The answer, with HTTP status {status}, did not come from voicemem's REST API.")
    raise RequestRefused(str(problem.get("reason", f"http_{status}")), str(detail), status)


def session_path(session_id: str, rest: str = "") -> str:
    """The path of a session, or of something in it; the id is quoted."""
    return f"/v1/sessions/{quote(session_id, safe='')}{rest}"


def query_params(arguments: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as query parameters: None is left out, the items of a list are joined with commas."""
    return {name: query_text(value) for name, value in arguments.items() if value is not None}


def query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
