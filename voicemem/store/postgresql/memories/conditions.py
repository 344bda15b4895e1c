"""A filter of memories as SQL over `memories m`."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.store.ports.memories import (
    TAG_END,
    AnyOf,
    Condition,
    MemoryFilter,
    NoneOf,
    StartsWith,
    Tags,
    single_scope,
)
from voicemem.store.postgresql.memories.rows import IS_THERE

IS_SUPERSEDED = """
    exists (select 1 from superseded s join streams t on t.key = s.stream
    and t.state <> 'erased' where s.project = m.project and s.old_id = m.id
    and s.created_ms <= coalesce({as_of}::bigint, s.created_ms))
"""


class Parameters:
    """The values of a query, each of which has the number at which it was added."""

    def __init__(self, *values: Any) -> None:
        self.values = list(values)

    def add(self, value: Any) -> str:
        """What stands for a value in the query."""
        self.values.append(value)
        return f"${len(self.values)}"

    def texts(self, values: Sequence[str | None]) -> str:
        return f"{self.add([value for value in values if value is not None])}::text[]"


def conditions(wanted: MemoryFilter, given: Parameters) -> str:
    """The where clause of a filter, without its page."""
    found = [f"m.project = {given.add(wanted.project)} and m.removed_ms is null", IS_THERE]
    for column, condition in (
        ("m.namespace", wanted.namespaces),
        ("m.user_id", wanted.user_ids),
        ("m.session_id", wanted.session_ids),
        ("m.kind", wanted.kinds),
    ):
        found += [] if condition is None else [clause_of(column, condition, given)]
    for column, tags in (("m.topics", wanted.topics), ("m.entities", wanted.entities)):
        found += [] if tags is None else clauses_of_tags(column, tags, given)
    for expression, span in (
        ("m.created_ms", wanted.created),
        ("coalesce(m.last_accessed_ms, m.created_ms)", wanted.accessed),
        ("m.event_ms", wanted.event),
        ("m.said_ms", wanted.said),
    ):
        if span is not None:
            since, until = span.bounds
            found.append(f"{expression} >= {given.add(since)} and {expression} < {given.add(until)}")
    if wanted.pinned is not None:
        found.append(f"m.pinned = {given.add(wanted.pinned)}")
    if wanted.as_of_ms is not None:
        found.append(f"m.created_ms <= {given.add(wanted.as_of_ms)}")
    if wanted.unexpired_at_ms is not None:
        found.append(f"(m.expires_ms is null or m.expires_ms > {given.add(wanted.unexpired_at_ms)})")
    if not wanted.with_superseded:
        found.append("not " + IS_SUPERSEDED.format(as_of=given.add(wanted.as_of_ms)))
    return " and ".join(found)


def clause_of(column: str, condition: Condition, given: Parameters) -> str:
    match condition:
        case StartsWith(prefix):
            return f"starts_with({column}, {given.add(prefix)})"
        case AnyOf((str() as value,)):
            return f"{column} = {given.add(value)}"
        case AnyOf(values):
            clause = f"{column} = any({given.texts(values)})"
            return f"({clause} or {column} is null)" if None in values else clause
        case NoneOf(values):
            clause = f"{column} <> all({given.texts(values)})"
            return f"{column} is not null and {clause}" if None in values else f"({column} is null or {clause})"


def clauses_of_tags(column: str, tags: Tags, given: Parameters) -> list[str]:
    found = [has(column, tag, given) for tag in tags.all]
    found += [f"not {has(column, tag, given)}" for tag in tags.none]
    if tags.any is not None:
        found.append(f"({' or '.join(has(column, tag, given) for tag in tags.any) or 'false'})")
    return found


def has(column: str, tag: str, given: Parameters) -> str:
    return f"position({given.add(f'{TAG_END}{tag}{TAG_END}')} in {column}) > 0"


def scope_of(wanted: MemoryFilter, given: Parameters) -> str:
    """The memories among which the rarity of words counts."""
    found = ["removed_ms is null"]
    for column, value in zip(("project", "namespace", "user_id", "session_id"), single_scope(wanted), strict=True):
        found += [] if value is None else [f"{column} = {given.add(value)}"]
    return " and ".join(found)
