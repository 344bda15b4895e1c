"""Working memory, without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from voicemem.documents.document import ChatToolCall
from voicemem.library.arguments import check_arguments, converted, json_value, plain_json
from voicemem.memory.working_memory import DocumentChange, DocumentOwner, DocumentView, VersionRecord, WorkingMemory
from voicemem.protocol.types import JsonObject


class Documents:
    """The document of a session or a user; `owner` returns whose it is at the moment."""

    def __init__(self, working_memory: WorkingMemory, owner: Callable[[], Awaitable[DocumentOwner]]) -> None:
        self.working_memory = working_memory
        self.owner = owner

    async def read(self, version: int | None = None) -> DocumentView:
        """The document, or a version of it: `content`, `form`, `version`, `updated_ms`."""
        return await self.working_memory.read_document(await self.owner(), check_arguments(version=version).version)

    async def versions(self, before: int | None = None, limit: int = 100) -> list[VersionRecord]:
        """What made each version, the newest first: `version`, `operation`, `updated_ms`."""
        checked = check_arguments(before=before, limit=limit)
        return await self.working_memory.versions(await self.owner(), checked.before, checked.limit or 100)

    async def append(self, content: Any, expected: int | None = None) -> DocumentView:
        """Merge an object into the document, or add a text below it; returns the new document.

        With `expected`, only if the document has this version (else `precondition_failed`).
        """
        return await self._change(DocumentChange("append", content_of(content)), expected)

    async def replace(self, content: Any, expected: int | None = None) -> DocumentView:
        """Replace the document; `expected` as in `append`."""
        return await self._change(DocumentChange("replace", content_of(content)), expected)

    async def clear(self, expected: int | None = None) -> DocumentView:
        """Empty the document; `expected` as in `append`."""
        return await self._change(DocumentChange("clear"), expected)

    async def _change(self, change: DocumentChange, expected: int | None) -> DocumentView:
        version = check_arguments(expected=expected).expected
        versions = None if version is None else (version,)
        return await self.working_memory.change(await self.owner(), change, versions)

    async def tools(self) -> list[JsonObject]:
        """The tools with which an LLM maintains the document, as OpenAI defines tools."""
        return await self.working_memory.tool_definitions(await self.owner())

    async def execute(self, tool_call: Mapping[str, Any]) -> JsonObject:
        """Execute an LLM's tool call; returns the tool message."""
        return await self.working_memory.execute_tool(
            await self.owner(), converted(plain_json(tool_call), ChatToolCall)
        )


def content_of(value: Any) -> str | JsonObject:
    """The content of a document, a text or an object. Raises `Refused`."""
    content: str | JsonObject = converted(json_value(value), str | JsonObject)  # type: ignore[arg-type]
    return content
