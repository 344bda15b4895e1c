"""Long-term memories, over REST."""

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from voicemem.client.transport.rest import RestClient, in_path, session_path, user_path
from voicemem.protocol.types import JsonObject


class MemoryFields(TypedDict, total=False):
    """Fields of a memory besides its text; missing ones get the server's defaults."""

    kind: str
    id: str | None
    user_id: str | None
    namespace: str | None
    session_id: str | None
    topics: Sequence[str]
    entities: Sequence[str]
    event_at: str | None
    said_at: int
    expires_at: int | None
    confidence: float
    pinned: bool
    supersedes: Sequence[str]
    metadata: Mapping[str, Any] | None
    source: str


class ListParams(TypedDict, total=False):
    """Filters of a list of memories."""

    kind: str
    topic: str
    entity: str
    namespace: str
    pinned: bool
    superseded: bool
    as_of: int
    limit: int
    cursor: str


class ForgetParams(TypedDict, total=False):
    """Filters of the memories to forget."""

    query: str
    kinds: Sequence[str]
    topics: Sequence[str]
    before: int
    namespace: str
    max_age_days: float
    max_inactive_days: float
    budget: int
    everything: bool
    linked: bool
    dry_run: bool


class Memories:
    """The memories of the project that the key opens.

    Each request takes at most `read_timeout_s`. A change is sent once: after `Unreachable` it may or may not be stored,
    and is safe to send again. All methods raise `RequestRefused`, `Unreachable`, `Closed`.
    """

    def __init__(self, rest: RestClient) -> None:
        self._rest = rest

    async def add(self, text: str, **fields: Unpack[MemoryFields]) -> JsonObject:
        """Keep a memory, unless its owner already has it in the same words. Returns the stored memory."""
        return dict((await self._rest.send("POST", "/v1/memories", {"text": text, **fields}))["memories"][0])

    async def read(self, memory_id: str, evidence: bool = False) -> JsonObject:
        """Return a memory; with `evidence`, also its source messages, as heard."""
        return await self._rest.get(memory_path(memory_id), {"evidence": evidence or None})

    async def change(self, /, memory_id: str, **fields: Any) -> JsonObject:
        """Change the given fields; None removes a value. Returns the memory."""
        return await self._rest.send("PATCH", memory_path(memory_id), fields)

    async def remove(self, memory_id: str) -> None:
        """Remove a memory and its text."""
        await self._rest.send("DELETE", memory_path(memory_id))

    async def of_user(self, user_id: str, **params: Unpack[ListParams]) -> JsonObject:
        """Return a page of a user's memories, the newest first: `memories`, `next_cursor`."""
        return await self._rest.get(user_path(user_id, "/memories"), params)

    async def of_session(self, session_id: str, **params: Unpack[ListParams]) -> JsonObject:
        """Return a page of a session's memories, likewise."""
        return await self._rest.get(session_path(session_id, "/memories"), params)

    async def forget(self, user_id: str, **params: Unpack[ForgetParams]) -> JsonObject:
        """Forget memories of a user for good; with `dry_run`, only list them. Returns `ids`."""
        return await self._rest.send("POST", user_path(user_id, "/memories/forget"), params)

    async def link(self, user_id: str, same_as: str) -> None:
        """Link two ids of one person: reads of either id then include both."""
        await self._rest.send("PUT", user_path(user_id, "/same-as"), {"user_id": same_as})

    async def unlink(self, user_id: str) -> None:
        """Undo a link, from either of the two ids."""
        await self._rest.send("DELETE", user_path(user_id, "/same-as"))


def memory_path(memory_id: str) -> str:
    return f"/v1/memories/{in_path(memory_id)}"
