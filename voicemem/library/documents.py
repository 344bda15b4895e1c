"""Working memory in voicemem without a server."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from typing import Any

from voicemem.documents.tools import ChatToolCall
from voicemem.library.arguments import check_arguments, converted, json_value, plain_json
from voicemem.memory.working_memory import DocumentChange, DocumentOwner, DocumentView, VersionRecord, WorkingMemory
from voicemem.protocol.types import JsonObject


class Documents:
    """The document that a session works on, or that of a user; `owner` says whose it is now."""

    def __init__(self, working_memory: WorkingMemory, owner: Callable[[], Awaitable[DocumentOwner]]) -> None:
        self.working_memory = working_memory
        self.owner = owner

    async def read(self, version: int | None = None) -> DocumentView:
        """The document as it is, or as it was at a version: `content`, `form`, `version`, `updated_ms`."""
        return await self.working_memory.read_document(await self.owner(), check_arguments(version=version).version)

    async def versions(self, before: int | None = None, limit: int = 100) -> list[VersionRecord]:
        """What made each version, the newest first: `version`, `operation`, `updated_ms`."""
        given = check_arguments(before=before, limit=limit)
        return await self.working_memory.versions(await self.owner(), given.before, given.limit or 100)

    async def append(self, content: Any, expected: int | None = None) -> DocumentView:
        """Merge into it, or put below it; with `expected`, only when it is of this version (`precondition_failed`)."""
        return await self.change(DocumentChange("append", content_of(content)), expected)

    async def replace(self, content: Any, expected: int | None = None) -> DocumentView:
        """Put this into its place."""
        return await self.change(DocumentChange("replace", content_of(content)), expected)

    async def clear(self, expected: int | None = None) -> DocumentView:
        return await self.change(DocumentChange("clear"), expected)

    async def change(self, change: DocumentChange, expected: int | None) -> DocumentView:
        wanted = check_arguments(expected=expected).expected
        versions = None if wanted is None else (wanted,)
        return await self.working_memory.change(await self.owner(), change, versions)

    async def tools(self) -> list[JsonObject]:
        """OpenAI's definitions of the tools by which an LLM keeps it."""
        return await self.working_memory.tool_definitions(await self.owner())

    async def execute(self, tool_call: Mapping[str, Any]) -> JsonObject:
        """Do what an LLM's tool call says; the tool message."""
        return await self.working_memory.execute_tool(
            await self.owner(), converted(plain_json(tool_call), ChatToolCall)
        )


def content_of(given: Any) -> str | JsonObject:
    """What stands in a document, a text or an object. Raises `Refused`."""
    content: str | JsonObject = converted(json_value(given), str | JsonObject)  # type: ignore[arg-type]
    return content
