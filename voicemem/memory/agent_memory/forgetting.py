"""Which memories a policy of agent-memory-server's forgets."""

from __future__ import annotations

from collections.abc import Collection, Iterable
from typing import Annotated

from msgspec import Meta, Struct

from voicemem.memory.agent_memory.models import MemoryType
from voicemem.memory.agent_memory.ranking import DAY_MS, Recency
from voicemem.memory.agent_memory.records import type_of
from voicemem.memory.long_term.records import Memory
from voicemem.protocol.types import Natural

MOST_LOOKED = 10_000
Looked = Annotated[int, Meta(ge=1, le=MOST_LOOKED)]
"""How many memories are looked at."""
Days = Annotated[float, Meta(ge=0, le=1_000_000)]
ONLY_RECENCY = Recency(semantic_weight=0.0, recency_weight=1.0)


class Policy(Struct, frozen=True, forbid_unknown_fields=True):
    """What to forget. Pinned memories are never forgotten.

    With both ages, what is old and was not accessed lately; and what is older than `max_age_days` times
    `hard_age_multiplier`. `budget`: how many of the rest are kept, those that are the most recent.
    """

    max_age_days: Days | None = None
    max_inactive_days: Days | None = None
    budget: Natural | None = None
    memory_type_allowlist: tuple[MemoryType, ...] | None = None
    """Only memories of these types."""
    hard_age_multiplier: Annotated[float, Meta(ge=0, le=1_000_000)] = 12.0


class ToForget(Struct, frozen=True):
    """A policy, and memories that stay whatever it says. The rest narrows it, as the query of the request does."""

    policy: Policy
    pinned_ids: tuple[str, ...] | None = None
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    limit: Looked | None = None
    dry_run: bool | None = None


class Forgotten(Struct, frozen=True):
    """How many memories were looked at, and which were deleted, or would be."""

    scanned: int
    deleted: int
    deleted_ids: list[str]
    dry_run: bool


def select(memories: Iterable[Memory], policy: Policy, now_ms: int, pinned_ids: Collection[str] = ()) -> list[str]:
    """The ids of the memories to forget, in their order."""
    considered = [one for one in memories if not one.pinned and one.id not in pinned_ids and is_of_type(one, policy)]
    forgotten = {one.id for one in considered if is_over(one, policy, now_ms)}
    if policy.budget is not None:
        left = [one for one in considered if one.id not in forgotten]
        left.sort(key=lambda one: -ONLY_RECENCY.score(one, 0.0, now_ms))
        forgotten |= {one.id for one in left[policy.budget :]}
    return [one.id for one in considered if one.id in forgotten]


def is_of_type(memory: Memory, policy: Policy) -> bool:
    return policy.memory_type_allowlist is None or type_of(memory) in policy.memory_type_allowlist


def is_over(memory: Memory, policy: Policy, now_ms: int) -> bool:
    """Whether a memory is too old, or was not accessed for too long."""
    age = (now_ms - memory.created_at) / DAY_MS
    accessed_ms = memory.created_at if memory.last_accessed is None else memory.last_accessed
    inactive = (now_ms - max(accessed_ms, memory.created_at)) / DAY_MS
    if policy.max_age_days is None:
        return policy.max_inactive_days is not None and inactive > policy.max_inactive_days
    if policy.max_inactive_days is None:
        return age > policy.max_age_days
    is_old = age > policy.max_age_days and inactive > policy.max_inactive_days
    return is_old or age > policy.max_age_days * policy.hard_age_multiplier
