"""Scopes: the owners of messages and memories, as conditions of queries and as words of full-text indexes.

Two ids may be one person's (`store.users`). So before a user's scope becomes a condition, the other id is looked up, in
the same transaction; the condition differs only if there is one.
"""

import json
from collections.abc import Sequence
from hashlib import blake2b
from typing import Any, NamedTuple

from voicemem.store.database import Connection
from voicemem.store.streams import USER_KIND, Stream

NAMESPACE_LABEL = "namespace"
"""The label of a session that says which namespace its messages are in."""
FIRST_MS, LAST_MS = -(2**62), 2**62
SELECT_LINKED = f"""
    select user_id from streams where project = :project and kind = '{USER_KIND}' and id in :ids
    and user_id is not null
"""
"""The row of a user's own stream names the other id of the same person."""


def find_linked(connection: Connection, project: str, user_ids: Sequence[str]) -> list[str]:
    """Return the other ids of the persons with these ids; nearly always none."""
    return [linked_id for (linked_id,) in connection.rows(SELECT_LINKED, project=project, ids=user_ids)]


def list_of_two(query: str, either: str, each: Sequence[str], order: str, limit: str) -> str:
    """Return a query that lists by a condition of two values, as two lists that an index gives in order."""
    one, other = (query.replace(either, condition) for condition in each)
    return (
        f"select * from (select * from ({one}) a union all select * from ({other}) b) c order by {order} limit {limit}"
    )


class Scope(NamedTuple):
    """The owner of a message, or the owners that a search covers: everyone where a part is None."""

    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None

    @property
    def owner(self) -> tuple[str | None, ...]:
        """The values that memories with the same text must share to be one; the owner is a user, else a session."""
        return self.project, self.namespace, self.user_id, self.session_id if self.user_id is None else None

    def query(self, linked_ids: Sequence[str] = ()) -> "QueryScope":
        """Return the scope of a query; `linked_ids` are other ids of the user's person."""
        user_ids = () if self.user_id is None else (self.user_id, *linked_ids)
        return QueryScope(self.project, self.namespace, user_ids, self.session_id)


class QueryScope(NamedTuple):
    """The scope of a query, which finds only rows that match all parts that are set (`Users.query_scope`)."""

    project: str
    namespace: str | None = None
    user_ids: tuple[str, ...] = ()
    """All ids of one person; empty for everyone's."""
    session_id: str | None = None

    def includes(self, stream: Stream) -> bool:
        """Return whether the messages of a session are in this scope."""
        return (
            self.project == stream.project
            and (not self.user_ids or stream.config.get("user_id") in self.user_ids)
            and self.session_id in (None, stream.id)
            and self.namespace in (None, scope_of(stream).namespace)
        )

    def conditions(self, table: str = "", prefix: str = "") -> tuple[list[str], dict[str, Any]]:
        """Return the scope's conditions on columns of a table, and their values, whose names begin with `prefix`."""
        values: dict[str, Any] = {"project": self.project, "namespace": self.namespace, "session_id": self.session_id}
        if len(self.user_ids) == 1:
            values["user_id"] = self.user_ids[0]
        values = {name: value for name, value in values.items() if value is not None}
        clauses = [f"{table}{name} = :{prefix}{name}" for name in values]
        if len(self.user_ids) > 1:
            clauses.append(f"{table}user_id in :{prefix}user_ids")
            values["user_ids"] = list(self.user_ids)
        return clauses, {f"{prefix}{name}": value for name, value in values.items()}


def scope_of(stream: Stream) -> Scope:
    labels = stream.config.get("labels") or {}
    return Scope(stream.project, labels.get(NAMESPACE_LABEL), stream.config.get("user_id"), stream.id)


def scope_terms(scope: Scope, secret: bytes) -> list[str]:
    """Return one word for each part of a scope that is set; no two parts have the same word."""
    project, *parts = scope
    words = [
        scope_term(kind, project, value, secret) for kind, value in zip("nus", parts, strict=True) if value is not None
    ]
    return [scope_term("p", project, "", secret), *words]


def query_terms(scope: QueryScope, secret: bytes) -> list[tuple[str, ...]]:
    """Return the words of a scope that a query looks up, one of each group.

    Each names its project, so the project's own word is needed only alone. A search reads all texts with a word, which
    may be a whole project's, to find out how rare it is.
    """
    parts = {"n": (scope.namespace,), "u": scope.user_ids, "s": (scope.session_id,)}
    groups = [
        tuple(scope_term(kind, scope.project, value, secret) for value in values if value is not None)
        for kind, values in parts.items()
    ]
    return [group for group in groups if group] or [(scope_term("p", scope.project, "", secret),)]


def scope_term(kind: str, project: str, value: str, secret: bytes) -> str:
    """Return the word for a part of a scope. It ends with a digit, so that stemming leaves it as it is."""
    name = json.dumps([kind, project, *([value] if value else [])]).encode()
    return f"{kind}{blake2b(name, digest_size=16, key=secret).hexdigest()}0"
