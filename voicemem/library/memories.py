"""Memories that last beyond a call, without a server."""

from __future__ import annotations

from typing import Any

from msgspec import UNSET, structs

from voicemem.errors import Refused
from voicemem.library.arguments import check_arguments, check_user_id, converted, plain_json
from voicemem.memory.long_term.forgetting import ForgetMemories, forget, policy_of
from voicemem.memory.long_term.memories import LongTermMemory, MemoriesQuery, MemoryPage, list_filter, memory_page
from voicemem.memory.long_term.records import GivenMemory, KnownMemory, Memory, MemoryPatch, draft_of
from voicemem.store.memory_filters import AnyOf
from voicemem.store.port import Store
from voicemem.store.scopes import scope_of


class Memories:
    """The memories of a project. All methods raise `Refused` for whatever is invalid or not there."""

    def __init__(self, store: Store, long_term: LongTermMemory, project: str) -> None:
        self.store = store
        self.long_term = long_term
        self.project = project

    async def add(self, text: str, **fields: Any) -> Memory:
        """Keep a memory; returns it as it stands. What its owner has in the same words already is not kept twice."""
        given = converted(plain_json({"text": text, **fields}), GivenMemory)
        return (await self.long_term.add(self.project, [draft_of(given)]))[0]

    async def read(self, memory_id: str, evidence: bool = False) -> KnownMemory:
        """A memory; with `evidence`, its `lines` are the messages that it comes from, as they were heard."""
        memory = await self.long_term.find(self.project, check_id(memory_id))
        lines = await self.long_term.evidence(self.project, memory) if evidence else UNSET
        return KnownMemory(**structs.asdict(memory), lines=lines)

    async def change(self, memory_id: str, **fields: Any) -> Memory:
        """Change the fields that are given; None takes a value away. Returns the memory."""
        return await self.long_term.edit(self.project, check_id(memory_id), converted(plain_json(fields), MemoryPatch))

    async def remove(self, memory_id: str) -> None:
        """Remove a memory, and its text with it."""
        if not await self.long_term.remove(self.project, [check_id(memory_id)]):
            raise Refused("unknown_memory")

    async def of_user(self, user_id: str, **params: Any) -> MemoryPage:
        """A page of the memories of a user, the newest first: `memories`, `next_cursor`."""
        return await self._page(params, user_ids=AnyOf((check_user_id(user_id),)))

    async def of_session(self, session_id: str, **params: Any) -> MemoryPage:
        """The same of a session."""
        checked = check_arguments(session_id=session_id).session_id or ""
        stream = await self.store.find_session(self.project, checked)
        if stream is None:
            raise Refused("unknown_session")
        users = AnyOf(tuple({scope_of(stream).user_id, None}))
        return await self._page(params, user_ids=users, session_ids=AnyOf((checked,)))

    async def forget(self, user_id: str, **params: Any) -> list[str]:
        """Forget memories of a user for good; returns their ids. With `dry_run` it only says which."""
        given = converted(plain_json(params), ForgetMemories)
        policy = policy_of(given, self.project, check_user_id(user_id))
        return await forget(self.long_term, self.project, policy, given.dry_run)

    async def _page(self, params: dict[str, Any], **owner: AnyOf) -> MemoryPage:
        query = converted(plain_json(params), MemoriesQuery)
        return await memory_page(self.long_term, list_filter(self.project, query, **owner), query.cursor)


def check_id(memory_id: Any) -> str:
    if not isinstance(memory_id, str) or not 1 <= len(memory_id) <= 128:
        raise Refused("invalid_field", "The id of a memory is 1 to 128 characters.")
    return memory_id
