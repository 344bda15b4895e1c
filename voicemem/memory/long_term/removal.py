"""Removal of memories: those that a client names or a policy selects, expired ones, and those of an erased user.

Memories may be kept longer than their call (`memories_ttl_seconds`): when the call expires, they move from the journal
of the session to that of the user, in one step. Their evidence stays, marked as no longer readable.
"""

import asyncio
import logging
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from typing import Annotated, ClassVar, NamedTuple

import msgspec
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.config.session import parse_config
from voicemem.errors import Refused, StoreUnavailable
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.records import Namespace, added_event, changed_row, details_of
from voicemem.memory.search import MAX_QUERY
from voicemem.protocol.memories import GivenKind, Topics
from voicemem.protocol.types import Integer, Natural, fields_given
from voicemem.search.words import query_words
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.sessions.retention import erase_user
from voicemem.store.memories import MAX_ROWS, MemoryRow
from voicemem.store.memory_filters import AnyOf, Between, MemoryFilter, Tags
from voicemem.store.port import Store
from voicemem.store.streams import Stream

LOG = logging.getLogger("voicemem")
DAY_MS = 86_400_000
PAGE = 500
MAX_ASKED_WORDS = 10
"""The most words of a query; each is searched for by itself, since a memory must have all of them."""
EXPIRED_AT_ONCE = 100
MIN_PAUSE_S = 0.05


Days = Annotated[float, Meta(ge=0, le=100_000)]


class ForgetPolicy(Struct, frozen=True, kw_only=True):
    """A policy of forgetting: which of the memories that match `among` are removed, superseded ones included.

    Without any other field, all are. A `query` selects those that have all of its words. The rest are limits, which
    spare pinned memories and those of `keep_ids`: with both ages a memory must exceed both, or be older than
    `hard_age_multiplier` times the first. `budget` is the most that are kept, those used last.
    """

    among: MemoryFilter
    query: str | None = None
    max_age_days: float | None = None
    max_inactive_days: float | None = None
    hard_age_multiplier: float = 12.0
    budget: int | None = None
    keep_ids: frozenset[str] = frozenset()


class ForgetMemories(Struct, frozen=True, forbid_unknown_fields=True):
    """A request to forget memories of a user: those that match all conditions, or `everything`.

    A `query` selects those that have all of its words, `before` those created earlier, in Unix ms. The limits
    `max_age_days`, `max_inactive_days` and `budget` (how many to keep) spare pinned ones. `linked` includes the other
    id of the same person; with `dry_run` nothing is forgotten. Null is refused, since without a condition more is
    forgotten.
    """

    NEVER_NULL: ClassVar = (
        *("query", "kinds", "topics", "before", "namespace"),
        *("max_age_days", "max_inactive_days", "budget", "everything", "linked", "dry_run"),
    )

    query: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)] | UnsetType = UNSET
    kinds: Annotated[tuple[GivenKind, ...], Meta(min_length=1)] | UnsetType = UNSET
    topics: Annotated[Topics, Meta(min_length=1)] | UnsetType = UNSET
    before: Integer | UnsetType = UNSET
    namespace: Namespace | UnsetType = UNSET
    max_age_days: Days | UnsetType = UNSET
    max_inactive_days: Days | UnsetType = UNSET
    budget: Natural | UnsetType = UNSET
    everything: bool | UnsetType = UNSET
    linked: bool | UnsetType = UNSET
    dry_run: bool = False


def policy_of(body: ForgetMemories, project: str, user_id: str) -> ForgetPolicy:
    """Return the policy of a request. Raises `Refused` unless it has conditions or `everything`, and not both."""
    fields = fields_given(body)
    narrower = fields.keys() - {"namespace", "everything", "linked", "dry_run"}
    if not narrower and not fields.get("everything"):
        names = "query, kinds, topics, before, max_age_days, max_inactive_days, budget"
        raise Refused("missing_field", f'The body must have one of {names}; everything is {{"everything": true}}.')
    if narrower and "everything" in fields:
        raise Refused("invalid_field", f"With `everything` there must be no other condition: `{min(narrower)}`")
    among = MemoryFilter(
        project=project,
        user_ids=AnyOf((user_id,)),
        namespaces=AnyOf((fields["namespace"],)) if "namespace" in fields else None,
        kinds=AnyOf(fields["kinds"]) if "kinds" in fields else None,
        topics=Tags(any=fields["topics"]) if "topics" in fields else None,
        created=Between(None, fields["before"]) if "before" in fields else None,
        of_ids_alone=not fields.get("linked"),
    )
    limits = {name: fields[name] for name in ("query", "max_age_days", "max_inactive_days", "budget") if name in fields}
    return ForgetPolicy(among=among, **limits)


class Candidate(NamedTuple):
    """A memory as a policy sees it."""

    used_ms: int
    created_ms: int
    id: str
    pinned: bool


async def forget(long_term: LongTermMemory, project: str, policy: ForgetPolicy, dry_run: bool = False) -> list[str]:
    """Remove memories with their texts. Return the ids of those that were, or with `dry_run` would be, removed.

    Raises `Refused` (`invalid_field` for a query without words), `StoreUnavailable`.
    """
    among = structs.replace(policy.among, project=project, with_superseded=True, unexpired_at_ms=None)
    if policy.query is not None:
        candidates = await find_all_words(long_term, among, policy.query)
    else:
        candidates, filter = list[Candidate](), structs.replace(among, limit=PAGE)
        while page := await long_term.store.memories.list_memories(filter):
            candidates += map(candidate_of, page)
            filter = structs.replace(filter, after=(page[-1].created_ms, page[-1].id))
    has_limits = (policy.max_age_days, policy.max_inactive_days, policy.budget) != (None, None, None)
    chosen = select(candidates, policy, long_term.clock()) if has_limits else [one.id for one in candidates]
    chosen = [id for id in chosen if id not in policy.keep_ids]
    if dry_run:
        return chosen
    removed: list[str] = []
    for first in range(0, len(chosen), PAGE):
        removed += await long_term.remove(project, chosen[first : first + PAGE], "forgotten")
    return removed


async def find_all_words(long_term: LongTermMemory, among: MemoryFilter, query: str) -> list[Candidate]:
    """Return the memories that have all words of a query. Raises `Refused` (`invalid_field`)."""
    words = query_words(query, in_all_forms=False)
    if not 0 < len(words) <= MAX_ASKED_WORDS:
        detail = f"What to forget must be named in 1 to {MAX_ASKED_WORDS} words: `query`"
        raise Refused("invalid_field", detail)
    candidates: dict[str, Candidate] | None = None
    for word in words:
        rows = await long_term.store.memories.find_memories_by_words(among, [word], 10_000)
        have = {row.id: candidate_of(row) for row, _ in rows}
        candidates = have if candidates is None else {id: one for id, one in candidates.items() if id in have}
    return list((candidates or {}).values())


def candidate_of(row: MemoryRow) -> Candidate:
    used_ms = row.created_ms if row.last_accessed_ms is None else row.last_accessed_ms
    return Candidate(used_ms, row.created_ms, row.id, row.pinned)


def select(candidates: Sequence[Candidate], policy: ForgetPolicy, now_ms: int) -> list[str]:
    free = [one for one in candidates if not one.pinned and one.id not in policy.keep_ids]
    chosen = [one for one in free if is_over(one, policy, now_ms)]
    if policy.budget is not None:
        gone = {one.id for one in chosen}
        kept = sorted((one for one in free if one.id not in gone), reverse=True)
        chosen += kept[policy.budget :]
    return [one.id for one in chosen]


def is_over(one: Candidate, policy: ForgetPolicy, now_ms: int) -> bool:
    age, inactive = (now_ms - one.created_ms) / DAY_MS, (now_ms - one.used_ms) / DAY_MS
    max_age, max_inactive = policy.max_age_days, policy.max_inactive_days
    if max_age is not None and max_inactive is not None:
        return age > max_age * policy.hard_age_multiplier or (age > max_age and inactive > max_inactive)
    return (max_age is not None and age > max_age) or (max_inactive is not None and inactive > max_inactive)


class ErasedUser(NamedTuple):
    """The result of an erasure: the number of sessions, and the other id of the same person if that remains."""

    sessions: int
    linked: str | None


async def erase_person(long_term: LongTermMemory, project: str, user_id: str, linked: bool) -> ErasedUser:
    """Erase a user's documents, memories and sessions, and with `linked` also those of the person's other id.

    The link is removed last, so that an interrupted erasure can be repeated.
    """
    linked_id, sessions = await long_term.store.users.find_linked(project, user_id), 0
    if linked_id is not None and linked:
        await forget_user(long_term, project, linked_id)
        sessions += await erase_user(long_term.store, long_term.read_models, project, linked_id, long_term.clock)
    sessions += await erase_user(long_term.store, long_term.read_models, project, user_id, long_term.clock)
    await forget_user(long_term, project, user_id)
    return ErasedUser(sessions, None if linked else linked_id)


async def forget_user(long_term: LongTermMemory, project: str, user_id: str) -> None:
    """Forget the remaining memories of a user whose sessions are erased: a session may have had another user before."""
    among = MemoryFilter(project=project, user_ids=AnyOf((user_id,)), of_ids_alone=True)
    await forget(long_term, project, ForgetPolicy(among=among))


# Expiry


async def remove_expired(long_term: LongTermMemory) -> int:
    """Remove some of the memories whose `expires_at` has passed. Return their number. Raises `StoreUnavailable`."""
    rows = await long_term.store.memories.find_expired_memories(long_term.clock(), EXPIRED_AT_ONCE)
    return len(await long_term.remove_rows(rows, "expired"))


async def expire_memories_forever(long_term: LongTermMemory) -> None:
    """Background task: remove expired memories, and note which were used."""
    while True:
        removed = 0
        with suppress(StoreUnavailable):  # what is due now is still due later
            await long_term.note_used()
            removed = await remove_expired(long_term)
        if removed:
            LOG.info("%d memories were removed at their expires_at", removed)
        await asyncio.sleep(MIN_PAUSE_S if removed == EXPIRED_AT_ONCE else 5.0)


class MemoryKeeper:
    """Moves memories to their user, just before their session is erased because its `ttl_seconds` have passed."""

    def __init__(self, store: Store) -> None:
        self.store = store

    async def keep(self, key: int, now_ms: int) -> int:
        """Move the memories of a session that should be kept. Return their number. Raises `StoreUnavailable`.

        Those of a session without a user are erased with it: no one could request their erasure later.
        """
        count, after = 0, ""
        while rows := await self.store.memories.list_memories_of(key, after, MAX_ROWS):
            session = await self.find_session(rows[0])
            ttl_s = None if session is None else parse_config(session.config).memories_ttl_seconds
            if session is None or session.ended_ms is None or ttl_s is None:
                break
            expires_ms = session.ended_ms + int(ttl_s * 1000)
            if expires_ms <= now_ms:
                break
            count += await self.move(session, rows, expires_ms, now_ms)
            after = rows[-1].id
        return count

    async def find_session(self, row: MemoryRow) -> Stream | None:
        """Return the session whose journal holds a memory; None once it is erased."""
        sessions = await self.store.journal.find_sessions(row.project, [row.key])
        return sessions[0] if sessions and sessions[0].state != "erased" else None

    async def move(self, session: Stream, rows: Sequence[MemoryRow], expires_ms: int, now_ms: int) -> int:
        """Move some memories, again if they change meanwhile. Return the number that moved."""
        ids, moved = {row.id for row in rows}, 0
        for _ in range(MAX_APPEND_ATTEMPTS):
            by_user: defaultdict[str, list[MemoryRow]] = defaultdict(list)
            for row in rows:
                user_id = row.user_id or parse_config(session.config).user_id
                if user_id is not None and row.id in ids:
                    by_user[user_id].append(outlived(row, session, user_id, expires_ms))
            for user_id, of_user in by_user.items():
                payloads = [msgspec.json.encode(added_event(row, None)) for row in of_user]
                if await self.store.memories.move_memories(session.key, user_id, payloads, of_user, now_ms):
                    moved += len(of_user)
                    ids -= {row.id for row in of_user}
            if not ids or not by_user or await self.find_session(rows[0]) is None:
                return moved
            rows = await self.store.memories.find_memories(session.project, sorted(ids))
            rows = [row for row in rows if row.key == session.key and row.removed_ms is None]
        raise StoreUnavailable("Memories change faster than they can be moved to their user.")


def outlived(row: MemoryRow, session: Stream, user_id: str, expires_ms: int) -> MemoryRow:
    """Return the row of a memory whose session is erased; it expires by `expires_ms`, even if it is pinned."""
    evidence = tuple(
        structs.replace(one, evidence="expired") if one.session_id == session.id else one
        for one in details_of(row).evidence
    )
    ends = expires_ms if row.expires_ms is None else min(row.expires_ms, expires_ms)
    return structs.replace(changed_row(row, {"evidence": evidence}), user_id=user_id, expires_ms=ends)
