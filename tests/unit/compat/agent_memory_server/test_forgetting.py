"""Which memories a policy of agent-memory-server's forgets."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

from tests.support.rows import every_row
from voicemem.compat.agent_memory_server.finding import DAY_MS, Recency, rerank
from voicemem.compat.agent_memory_server.long_term import Policy, select
from voicemem.compat.agent_memory_server.records import view_of
from voicemem.memory.long_term.records import Memory, to_memory
from voicemem.store.memories import MemoryRow

NOW = 1_790_000_000_000


def memory(id: str, age: float = 0.0, inactive: float | None = None, **more: Any) -> Memory:
    created = NOW - int(age * DAY_MS)
    accessed = None if inactive is None else NOW - int(inactive * DAY_MS)
    fields = {"kind": "fact", "text": id, "last_accessed_ms": accessed, **more}
    return to_memory(MemoryRow(key=1, position=1, id=id, project="p", created_ms=created, updated_ms=created, **fields))


MEMORIES = [
    memory("new"),
    memory("old", age=40),
    memory("old and used", age=40, inactive=1),
    memory("very old and used", age=400, inactive=1),
    memory("pinned", age=400, pinned=True),
    memory("episode", age=40, kind="episode"),
]


@every_row(
    ("policy", "expected"),
    [
        (Policy(), []),
        (Policy(max_age_days=30), ["old", "old and used", "very old and used", "episode"]),
        (Policy(max_inactive_days=30), ["old", "episode"]),
        (Policy(max_age_days=30, max_inactive_days=7), ["old", "very old and used", "episode"]),
        (Policy(max_age_days=30, max_inactive_days=7, hard_age_multiplier=100), ["old", "episode"]),
        (Policy(max_age_days=30, memory_type_allowlist=("episodic",)), ["episode"]),
        (Policy(max_age_days=30, memory_type_allowlist=()), []),
        (Policy(budget=3), ["old", "episode"]),
        (Policy(budget=0), ["new", "old", "old and used", "very old and used", "episode"]),
    ],
)
def test_what_a_policy_forgets(policy: Policy, expected: list[str]) -> None:
    """Pinned memories are never forgotten."""
    assert expected == select(MEMORIES, policy, NOW)
    assert [id for id in expected if id != "old"] == select(MEMORIES, policy, NOW, {"old"}) or policy.budget


def test_recency_orders_a_page() -> None:
    """How much it counts is the caller's to say; without it, the best fit is first."""
    page = [(memory("good", age=300), 1.0), (memory("fair", age=0), 0.9)]
    assert ["fair", "good"] == [one.id for one, _ in rerank(page, Recency(), NOW)]
    assert ["good", "fair"] == [one.id for one, _ in rerank(page, Recency(recency_weight=0.0), NOW)]


def test_a_memory_of_our_own_is_a_record() -> None:
    """One that no client gave has all that clients expect."""
    view = view_of(memory("x", age=1, inactive=0.5, topics=("a",), event_at="2026-05-03"), 0.25)
    assert ("semantic", ("a",), "2026-05-03T00:00:00Z", 0.75) == (
        view.memory_type, view.topics, view.event_date, view.dist
    )  # fmt: skip
    assert view.created_at < view.last_accessed
