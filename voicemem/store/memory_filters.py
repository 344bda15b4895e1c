"""Filters of memories, and the SQL of their conditions over the rows of `memories m`."""

from collections.abc import Sequence
from typing import Any, NamedTuple

from msgspec import Struct
from msgspec.structs import replace

from voicemem.store.database import Connection
from voicemem.store.scopes import FIRST_MS, LAST_MS, QueryScope, find_linked

TAG_END = "\n"
"""The character around each topic and entity in their columns; none contains it."""
MAX_IDS = 2


class AnyOf(Struct, frozen=True):
    """A condition: the field has one of these values; None is a field that is not set."""

    values: tuple[str | None, ...]


class NoneOf(Struct, frozen=True):
    """A condition: the field has none of these values; one that is not set has none but None."""

    values: tuple[str | None, ...]


class StartsWith(Struct, frozen=True):
    prefix: str


Condition = AnyOf | NoneOf | StartsWith


class Tags(Struct, frozen=True, kw_only=True):
    any: tuple[str, ...] | None = None
    """At least one of these; None: any or none."""
    all: tuple[str, ...] = ()
    none: tuple[str, ...] = ()


class Between(NamedTuple):
    """A span of time, without its end `until_ms`. None: open."""

    since_ms: int | None = None
    until_ms: int | None = None

    @property
    def bounds(self) -> tuple[int, int]:
        return FIRST_MS if self.since_ms is None else self.since_ms, LAST_MS if self.until_ms is None else self.until_ms


class MemoryFilter(Struct, frozen=True, kw_only=True):
    """A filter of memories: those of a project for which all conditions hold. Removed ones are never found.

    The id of a user includes the other id of the same person, unless it is `of_ids_alone`.
    """

    project: str
    namespaces: Condition | None = None
    user_ids: Condition | None = None
    session_ids: Condition | None = None
    kinds: Condition | None = None
    topics: Tags | None = None
    entities: Tags | None = None
    created: Between | None = None
    accessed: Between | None = None
    """When it was accessed last; if never, `created_ms` counts."""
    event: Between | None = None
    """When it happened. One without `event_at` is never within bounds, as with `said`."""
    said: Between | None = None
    pinned: bool | None = None
    as_of_ms: int | None = None
    """Only memories that existed, and were not superseded, at this time."""
    with_superseded: bool = False
    unexpired_at_ms: int | None = None
    """Without memories whose `expires_ms` is over at this time."""
    after: tuple[int, str] | None = None
    """The (created_ms, id) of the last memory of the previous page."""
    limit: int = 100
    of_ids_alone: bool = False


def scope_in(query: MemoryFilter) -> QueryScope:
    """Return the part of a filter that is one project, namespace, session, and person."""
    users = query.user_ids.values if isinstance(query.user_ids, AnyOf) else ()
    user_ids = tuple(one for one in users if one is not None)
    is_person = 0 < len(user_ids) == len(users) <= MAX_IDS
    namespace, session_id = map(single_value, (query.namespaces, query.session_ids))
    return QueryScope(query.project, namespace, user_ids if is_person else (), session_id)


def single_value(condition: Condition | None) -> str | None:
    return condition.values[0] if isinstance(condition, AnyOf) and len(condition.values) == 1 else None


def with_linked(connection: Connection, query: MemoryFilter) -> MemoryFilter:
    """Return the filter with the other ids of the persons whose ids it names."""
    users = query.user_ids
    if query.of_ids_alone or not isinstance(users, AnyOf | NoneOf):
        return query
    ids = [one for one in users.values if one is not None]
    linked = find_linked(connection, query.project, ids) if ids else ()
    return replace(query, user_ids=type(users)(tuple(dict.fromkeys((*users.values, *linked))))) if linked else query


IS_THERE = "exists (select 1 from streams t where t.key = m.stream and t.state <> 'erased')"
"""True for a memory `m` of a stream that is not erased."""
IS_SUPERSEDED = """
    exists (select 1 from superseded s join streams t on t.key = s.stream and t.state <> 'erased'
    where s.project = m.project and s.old_id = m.id and s.created_ms <= coalesce(cast(:as_of as bigint), s.created_ms))
"""


class Conditions:
    """The conditions of a filter as SQL over `memories m`, and the values of its parameters."""

    def __init__(self, query: MemoryFilter) -> None:
        self.users: tuple[str, Sequence[str]] | None = None
        """The condition for memories of two ids, and those for each of the two."""
        self.values: dict[str, Any] = {"project": query.project}
        self.clauses = ["m.project = :project and m.removed_ms is null", IS_THERE]
        if query.pinned is not None:  # SQLite looks at them in this order: first what is true of few
            self.clauses.append(f"m.pinned = {self.value(query.pinned)}")
        fields = (
            ("m.kind", query.kinds),
            ("m.namespace", query.namespaces),
            (OF_USER, query.user_ids),
            ("m.session_id", query.session_ids),
        )
        self.clauses += [self.clause_of(column, condition) for column, condition in fields if condition is not None]
        for column, tags in (("m.topics", query.topics), ("m.entities", query.entities)):
            if tags is not None:
                self.clauses += [self.has_tag(column, tag) for tag in tags.all]
                self.clauses += [f"not {self.has_tag(column, tag)}" for tag in tags.none]
                if tags.any is not None:
                    self.clauses.append(f"({' or '.join(self.has_tag(column, tag) for tag in tags.any) or 'false'})")
        spans = (
            ("m.created_ms", query.created),
            ("coalesce(m.last_accessed_ms, m.created_ms)", query.accessed),
            ("m.event_ms", query.event),
            ("m.said_ms", query.said),
        )
        for expression, span in spans:
            if span is not None:
                since, until = map(self.value, span.bounds)
                self.clauses.append(f"{expression} >= {since} and {expression} < {until}")
        if query.as_of_ms is not None:
            self.clauses.append(f"m.created_ms <= {self.value(query.as_of_ms)}")
        if query.unexpired_at_ms is not None:
            self.clauses.append(f"(m.expires_ms is null or m.expires_ms > {self.value(query.unexpired_at_ms)})")
        if not query.with_superseded:
            self.values["as_of"] = query.as_of_ms
            self.clauses.append(f"not {IS_SUPERSEDED}")

    @property
    def sql(self) -> str:
        return " and ".join(self.clauses)

    def value(self, value: Any) -> str:
        name = f"v{len(self.values)}"
        self.values[name] = value
        return f":{name}"

    def clause_of(self, column: str, condition: Condition) -> str:
        match condition:
            case StartsWith(prefix):
                return f"substr({column}, 1, {len(prefix)}) = {self.value(prefix)}"
            case AnyOf((str() as value,)):
                return f"{column} = {self.value(value)}"
            case AnyOf((str() as one, str() as other)) if column == OF_USER:
                each = [f"{column} = {self.value(one)}", f"{column} = {self.value(other)}"]
                self.users = self.is_among(column, (one, other)), each
                return self.users[0]
            case AnyOf(values):
                clause = self.is_among(column, values)
                return f"({clause} or {column} is null)" if None in values else clause
            case NoneOf(values):
                clause = f"not ({self.is_among(column, values)})"
                return f"{column} is not null and {clause}" if None in values else f"({column} is null or {clause})"

    def is_among(self, column: str, values: Sequence[str | None]) -> str:
        some = [value for value in values if value is not None]
        return f"{column} in {self.value(some)}" if some else "false"

    def has_tag(self, column: str, tag: str) -> str:
        return f"strpos({column}, {self.value(f'{TAG_END}{tag}{TAG_END}')}) > 0"


OF_USER = "m.user_id"
