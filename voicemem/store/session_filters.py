"""Filters of sessions, and the SQL of their conditions over the rows of `streams s`."""

from collections.abc import Sequence
from hashlib import sha256
from typing import Any, Literal

import msgspec
from msgspec import Struct

from voicemem.store.database import Connection
from voicemem.store.records import CLIENT_ID_LABEL
from voicemem.store.scopes import find_linked, list_of_two
from voicemem.store.streams import SESSION_KIND


class SessionFilter(Struct, frozen=True, kw_only=True):
    """A filter of sessions: those for which all conditions hold.

    `label` is a name and its value. `after` is the (started_ms, key) of the last session of the previous page.
    `interrupted`, `slow_ms` (the longest end-to-end latency is at least that) and `outcome` are compared with the
    figures saved last. `webhook` means sessions with any delivery in that state. `keys` are the candidates. `user_id`
    includes the other id of the same person, unless it is `of_id_alone`.
    """

    project: str
    state: str | None = None
    user_id: str | None = None
    label: tuple[str, str] | None = None
    started_after: int | None = None
    started_before: int | None = None
    channel: str | None = None
    interrupted: bool | None = None
    slow_ms: int | None = None
    outcome: str | None = None
    webhook: Literal["failed", "pending"] | None = None
    keys: tuple[int, ...] | None = None
    after: tuple[int, int] | None = None
    limit: int = 100
    of_id_alone: bool = False
    linked_id: str | None = None
    """The other id of the same person, which the store looks up."""


IN_PROJECT = "s.project = :project and s.kind = :kind"
IS_LISTED = f"{IN_PROJECT} and s.state <> 'erased'"
"""The condition of the index by start. If a state is requested, the index by state leads to fewer sessions."""
NEWEST_FIRST = "started_ms desc, key desc"
OF_USER, OF_LINKED, OF_EITHER = "s.user_id = :user_id", "s.user_id = :linked_id", "s.user_id in :user_ids"
CONDITIONS = {
    "state": "s.state = :state",
    "user_id": OF_USER,
    "channel": "s.channel = :channel",
    "started_after": "s.started_ms > :started_after",
    "started_before": "s.started_ms < :started_before",
    "interrupted": "(coalesce(s.interruptions, 0) > 0) = :interrupted",
    "slow_ms": "s.slowest_ms >= :slow_ms",
    "outcome": "s.outcome = :outcome",
    "webhook": "exists (select 1 from deliveries x where x.stream = s.key and x.state = :webhook)",
    "keys": "s.key in :keys",
    "after": "(s.started_ms, s.key) < (:after_ms, :after_key)",
}
HAS_LABEL = {
    "sqlite": "exists (select 1 from json_each(s.config, '$.labels') l where l.key = :label and l.value = :value)",
    "postgresql": "exists (select 1 from labels l where l.stream = s.key and l.digest = :digest)",
}
HAS_CLIENT_ID = f"""case when json_valid(cast(s.config as text))
    then json_extract(cast(s.config as text), '$.labels."{CLIENT_ID_LABEL}"') end = :value"""
"""Condition for the one label that has an index on SQLite."""


def label_digest(name: str, value: str) -> bytes:
    """Return a digest that finds the sessions with a label: name and value are too long for an index."""
    return sha256(msgspec.json.encode([name, value])).digest()


def is_scan(query: SessionFilter) -> bool:
    """Return whether a list is found by reading rows, possibly all of a project's, and not by an index."""
    checked = (query.channel, query.interrupted, query.slow_ms, query.outcome, query.webhook, query.keys)
    has_label = query.label is not None and query.label[0] != CLIENT_ID_LABEL
    return has_label or any(condition is not None for condition in checked)


def conditions_of(query: SessionFilter, engine: str) -> tuple[str, dict[str, Any]]:
    clauses, values = clauses_of(query, engine, ("label", *CONDITIONS))
    listed = IN_PROJECT if query.state in ("running", "ended") else IS_LISTED
    return " and ".join([listed, *clauses]), {"project": query.project, "kind": SESSION_KIND, **values}


def with_linked(connection: Connection, query: SessionFilter) -> SessionFilter:
    """Return the filter with the other id of the user's person, if there is one."""
    if query.user_id is None or query.of_id_alone:
        return query
    linked = find_linked(connection, query.project, [query.user_id])
    return msgspec.structs.replace(query, linked_id=linked[0]) if linked else query


def in_order(sql: str, query: SessionFilter, limit: str) -> str:
    """Return a query that lists sessions in order, by an index also for two ids of one person."""
    if query.linked_id is None:
        return sql
    return list_of_two(sql, OF_EITHER, (OF_USER, OF_LINKED), NEWEST_FIRST, f":{limit}")


def clauses_of(query: SessionFilter, engine: str, fields: Sequence[str]) -> tuple[list[str], dict[str, Any]]:
    clauses: list[str] = []
    values: dict[str, Any] = {}
    for field in fields:
        value: Any = getattr(query, field)
        if value is None:
            continue
        if field == "label":
            by_index = engine == "sqlite" and value[0] == CLIENT_ID_LABEL
            clauses.append(HAS_CLIENT_ID if by_index else HAS_LABEL[engine])
            values |= {"label": value[0], "value": value[1], "digest": label_digest(*value)}
            continue
        if field == "user_id" and query.linked_id is not None:
            clauses.append(OF_EITHER)
            ids = [value, query.linked_id]
            values |= {"user_ids": ids, "user_id": value, "linked_id": query.linked_id}
            continue
        clauses.append(CONDITIONS[field])
        if field == "after":
            values |= {"after_ms": value[0], "after_key": value[1]}
        else:
            values[field] = list(value) if field == "keys" else value
    return clauses, values
