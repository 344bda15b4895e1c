"""A filter of memories as SQL over `memories m`, and as a query of its words."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from voicemem.search.words import QueryWord
from voicemem.store.ports.heard_index import HeardScope, asked_terms
from voicemem.store.ports.memories import TAG_END, AnyOf, Condition, MemoryFilter, NoneOf, StartsWith, Tags
from voicemem.store.sqlite.memories.rows import IS_THERE

Clause = tuple[str, tuple[Any, ...]]
IS_SUPERSEDED = """
    exists (select 1 from superseded s join streams t on t.key = s.stream and t.state != 'erased'
    where s.project = m.project and s.old_id = m.id and s.created_ms <= ifnull(?, s.created_ms))
"""


def conditions(wanted: MemoryFilter) -> tuple[str, list[Any]]:
    """The where clause of a filter, without its page, and the values of its parameters."""
    found: list[Clause] = [("m.project = ? and m.removed_ms is null", (wanted.project,)), (IS_THERE, ())]
    for column, condition in (
        ("m.namespace", wanted.namespaces),
        ("m.user_id", wanted.user_ids),
        ("m.session_id", wanted.session_ids),
        ("m.kind", wanted.kinds),
    ):
        found += [] if condition is None else [clause_of(column, condition)]
    for column, tags in (("m.topics", wanted.topics), ("m.entities", wanted.entities)):
        found += [] if tags is None else clauses_of_tags(column, tags)
    for expression, span in (
        ("m.created_ms", wanted.created),
        ("ifnull(m.last_accessed_ms, m.created_ms)", wanted.accessed),
        ("m.event_ms", wanted.event),
        ("m.said_ms", wanted.said),
    ):
        found += [] if span is None else [(f"{expression} >= ? and {expression} < ?", span.bounds)]
    if wanted.pinned is not None:
        found.append(("m.pinned = ?", (int(wanted.pinned),)))
    if wanted.as_of_ms is not None:
        found.append(("m.created_ms <= ?", (wanted.as_of_ms,)))
    if wanted.unexpired_at_ms is not None:
        found.append(("(m.expires_ms is null or m.expires_ms > ?)", (wanted.unexpired_at_ms,)))
    if not wanted.with_superseded:
        found.append((f"not {IS_SUPERSEDED}", (wanted.as_of_ms,)))
    return " and ".join(clause for clause, _ in found), [value for _, values in found for value in values]


def clause_of(column: str, condition: Condition) -> Clause:
    match condition:
        case StartsWith(prefix):  # as bytes: a text ends at its first NUL for SQLite's `length`
            given = prefix.encode()
            return f"substr(cast({column} as blob), 1, {len(given)}) = ?", (given,)
        case AnyOf((str() as value,)):
            return f"{column} = ?", (value,)
        case AnyOf(values):
            clause, given_values = is_among(column, values)
            return (f"({clause} or {column} is null)" if None in values else clause), given_values
        case NoneOf(values):
            clause, given_values = is_among(column, values)
            unset = (
                f"{column} is not null and not {clause}" if None in values else f"({column} is null or not {clause})"
            )
            return unset, given_values


def is_among(column: str, values: Sequence[str | None]) -> Clause:
    given = tuple(value for value in values if value is not None)
    return f"{column} in ({', '.join('?' * len(given))})", given


def clauses_of_tags(column: str, tags: Tags) -> list[Clause]:
    has = f"instr({column}, ?) > 0"
    found: list[Clause] = [(has, (marked(tag),)) for tag in tags.all]
    found += [(f"not {has}", (marked(tag),)) for tag in tags.none]
    if tags.any is not None:
        either = " or ".join([has] * len(tags.any)) or "false"
        found.append((f"({either})", tuple(map(marked, tags.any))))
    return found


def marked(tag: str) -> str:
    return f"{TAG_END}{tag}{TAG_END}"


def match_expression(scope: HeardScope, words: Sequence[QueryWord], secret: bytes) -> str:
    """The query in the language of FTS5. The scope is part of it, so that nothing outside is looked at."""
    terms = " AND ".join(f'scope : "{term}"' for term in asked_terms(scope, secret))
    asked = " OR ".join(f'"{word.text}"{" *" if word.is_prefix else ""}' for word in words)
    return f"{terms} AND {{said about}} : ({asked})"
