"""Working memory over REST: the document of a session."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import msgspec

from voicemem.client.transport.rest import RestClient, query_params
from voicemem.protocol.types import JsonObject


class Documents:
    """The document that a session works on: its own, or its user's.

    Each request takes at most `read_timeout_s`. A change is sent once: after `Unreachable` it is not known whether it
    was stored. With `expected`, the version that the document should have, it is safe to try again. All raise
    `RequestRefused` (`precondition_failed` for another version), `Unreachable`, `Closed`.
    """

    def __init__(self, rest: RestClient, path: str, timeout_s: float) -> None:
        self._rest = rest
        self._path = path
        self._timeout_s = timeout_s

    async def read(self, version: int | None = None) -> JsonObject:
        """The document, or a version of it: `content`, `form`, `version`, `updated_ms`."""
        answer: JsonObject = await self._rest.get(self._path, query_params({"version": version}), self._timeout_s)
        return answer

    async def append(self, content: str | Mapping[str, Any], expected: int | None = None) -> JsonObject:
        """Merge an object into the document, or add a text below it; returns the new document."""
        return await self._change("PATCH", {"content": content}, expected)

    async def replace(self, content: str | Mapping[str, Any], expected: int | None = None) -> JsonObject:
        """Replace the document; returns the new one."""
        return await self._change("PUT", {"content": content}, expected)

    async def clear(self, expected: int | None = None) -> JsonObject:
        """Empty the document; returns the new one."""
        return await self._change("DELETE", None, expected)

    async def tools(self) -> list[JsonObject]:
        """The tools with which an LLM maintains the document, as OpenAI defines tools."""
        answer = await self._rest.get(f"{self._path}/tools", {}, self._timeout_s)
        tools: list[JsonObject] = answer["tools"]
        return tools

    async def execute(self, tool_call: Mapping[str, Any]) -> JsonObject:
        """Execute an LLM's tool call; returns the tool message."""
        return await self._send("POST", f"{self._path}/tools", tool_call, {})

    async def _change(self, method: str, body: Mapping[str, Any] | None, expected: int | None) -> JsonObject:
        headers = {} if expected is None else {"If-Match": f'"{expected}"'}
        return await self._send(method, self._path, body, headers)

    async def _send(
        self, method: str, path: str, body: Mapping[str, Any] | None, headers: Mapping[str, str]
    ) -> JsonObject:
        raw = None if body is None else msgspec.json.encode(body)
        answer: JsonObject = await self._rest.request(method, path, None, raw, self._timeout_s, headers)
        return answer
