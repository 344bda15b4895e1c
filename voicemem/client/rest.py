"""The REST API, as a client calls it: answers as JSON, errors as exceptions."""

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

TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""Statuses that may be others soon."""


class RestClient:
    """Calls one server. `url` is its root; a path in it stays in front."""

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
        """One request, once. Raises `RequestRefused` for an error answer, `Unreachable` when none came."""
        if self.http is None:
            timeout = aiohttp.ClientTimeout(total=self.options.request_timeout_s)
            self.http = aiohttp.ClientSession(headers=self.headers, timeout=timeout)
        url = URL(self.url + path, encoded=True).update_query(query or {})
        try:
            async with self.http.request(method, url, data=body, allow_redirects=False) as response:
                raw = await response.read()
        except (aiohttp.ClientError, OSError, TimeoutError) as error:
            raise Unreachable(f"{method} {url.path} failed: {error or type(error).__name__}") from None
        return decode_answer(response.status, raw)

    async def get(self, path: str, query: Mapping[str, str]) -> Any:
        """A GET, tried again when the connection fails. Raises `RequestRefused`, `Unreachable`."""
        backoff = Backoff(self.options)
        for _ in range(self.options.read_attempts - 1):
            try:
                return await self.request("GET", path, query)
            except Unreachable:
                await asyncio.sleep(backoff.next_s())
        return await self.request("GET", path, query)


def decode_answer(status: int, raw: bytes) -> Any:
    """The JSON of an answer. Raises `RequestRefused`."""
    try:
        body = msgspec.json.decode(raw)
    except (msgspec.DecodeError, UnicodeDecodeError):
        body = None
    if 200 <= status < 300 and body is not None:
        return body
    problem = body if isinstance(body, dict) else {}
    detail = problem.get("detail", "The answer is none of voicemem's.")
    raise RequestRefused(str(problem.get("reason", f"http_{status}")), str(detail), status)


def session_path(session_id: str, rest: str = "") -> str:
    return f"/v1/sessions/{quote(session_id, safe='')}{rest}"


def query_params(given: Mapping[str, Any]) -> dict[str, str]:
    """Arguments as query parameters; what is None is left out, lists get commas."""
    return {name: query_text(value) for name, value in given.items() if value is not None}


def query_text(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return ",".join(value) if isinstance(value, list | tuple) else str(value)
