"""Which older memories a new one makes out of date, without any cycle: a memory in one would never be found."""

from __future__ import annotations

from msgspec import structs

from voicemem.errors import Refused
from voicemem.memory.long_term.drafts import MemoryDraft
from voicemem.memory.long_term.owners import MemoryOwner
from voicemem.memory.long_term.plans import Plan, owner_of
from voicemem.store.ports.memories import Memories

CYCLE = "A memory cannot be out of date by itself, or by one that is out of date by it: `supersedes`"


async def check_superseded(store: Memories, draft: MemoryDraft, owner: MemoryOwner) -> tuple[str, ...]:
    """The ids of memories that a draft makes out of date, and that are there. Raises `Refused`."""
    if not draft.supersedes:
        return ()
    rows = await store.find_memories(owner.project, draft.supersedes)
    there = {row.id for row in rows if row.removed_ms is None and owner_of(row).key == owner.key}
    missing = [place for place, id in enumerate(draft.supersedes) if id not in there]
    if missing and draft.source != "extracted":
        raise Refused("invalid_field", f"The same owner has no memory with this id: `supersedes[{missing[0]}]`")
    return tuple(id for id in draft.supersedes if id in there)


async def without_cycles(store: Memories, plan: Plan, draft: MemoryDraft, id: str) -> MemoryDraft:
    """The draft of the memory `id`, without those that make it out of date itself. Raises `Refused`."""
    cycle = await find_cycle(store, plan, draft, id)
    if cycle and draft.source != "extracted":
        raise Refused("invalid_field", CYCLE)
    return structs.replace(draft, supersedes=tuple(old for old in draft.supersedes if old not in cycle))


async def find_cycle(store: Memories, plan: Plan, draft: MemoryDraft, id: str) -> set[str]:
    """Those that a draft makes out of date which, themselves or by others, do that to the memory `id`."""
    return {old for old in draft.supersedes if await reaches(store, plan, old, id)}


async def reaches(store: Memories, plan: Plan, first: str, last: str) -> bool:
    """Whether one memory makes another out of date, itself or by others between them."""
    seen, next_ids = set[str](), {first}
    while next_ids and last not in next_ids:
        seen |= next_ids
        stored = {row.id: row for row in await store.find_memories(plan.stream.project, sorted(next_ids))}
        rows = [plan.rows.get(one) or stored.get(one) for one in next_ids]
        next_ids = {old for row in rows if row is not None for old in row.supersedes} - seen
    return last in next_ids
