"""Scopes: whose a message or a memory is, as conditions of queries and as words of full-text indexes.

Two ids may be one person's (`store.users`). Every condition by user means both, and is made here.
"""

import json
from hashlib import blake2b
from typing import Any, NamedTuple

from voicemem.store.database import Connection
from voicemem.store.streams import USER_KIND, Stream

NAMESPACE_LABEL = "namespace"
"""The label of a session that says which namespace its messages are in."""
FIRST_MS, LAST_MS = -(2**62), 2**62
LINKED_ID = f"(select u.user_id from streams u where u.project = :project and u.kind = '{USER_KIND}' and u.id = {{}})"
"""The other id of the same person; null where there is none. The row of a user's own stream says so."""


SELECT_LINKED = f"select {LINKED_ID.format(':user_id')}"


def find_linked(connection: Connection, project: str, user_id: str | None) -> str | None:
    """The other id of the same person, if there is one."""
    linked_id: str | None = connection.one(SELECT_LINKED, project=project, user_id=user_id)[0]
    return linked_id


def is_of_person(column: str, user_id: str) -> str:
    """The condition of a column for the id in a parameter, and the other id of the same person."""
    return f"{column} in ({user_id}, coalesce({LINKED_ID.format(user_id)}, {user_id}))"


def list_of_person(query: str, column: str, user_id: str, order: str, limit: str) -> str:
    """A query that lists by `is_of_person`, as two lists that an index has in order."""
    either, linked = is_of_person(column, user_id), LINKED_ID.format(user_id)
    own, other = (query.replace(either, f"{column} = {one}") for one in (user_id, linked))
    return (
        f"select * from (select * from ({own}) a union all select * from ({other}) b) c order by {order} limit {limit}"
    )


class Scope(NamedTuple):
    """Whose a message is, or whose are meant: everyone's where a part is None."""

    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None

    def query(self, linked_id: str | None = None) -> "QueryScope":
        """The scope of a query; `linked_id` is the other id of the same person."""
        user_ids = tuple(one for one in (self.user_id, linked_id) if one is not None)
        return QueryScope(self.project, self.namespace, user_ids, self.session_id)


class QueryScope(NamedTuple):
    """The scope of a query, which finds only what agrees with all parts that are given (`Users.query_scope`)."""

    project: str
    namespace: str | None = None
    user_ids: tuple[str, ...] = ()
    """All ids of one person; empty for everyone's."""
    session_id: str | None = None

    def includes(self, scope: Scope) -> bool:
        return (
            self.project == scope.project
            and self.namespace in (None, scope.namespace)
            and (not self.user_ids or scope.user_id in self.user_ids)
            and self.session_id in (None, scope.session_id)
        )

    def conditions(self, table: str = "", prefix: str = "") -> tuple[list[str], dict[str, Any]]:
        """The scope as conditions of columns of its names, and their values, of which each begins with a prefix."""
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
    """One word for each part of a scope that is given, of which no two are alike."""
    project, *parts = scope
    words = [
        scope_term(kind, project, value, secret) for kind, value in zip("nus", parts, strict=True) if value is not None
    ]
    return [scope_term("p", project, "", secret), *words]


def query_terms(scope: QueryScope, secret: bytes) -> list[tuple[str, ...]]:
    """The words of a scope that a query looks up, one of each group.

    Each names its project, so that of the project is needed alone only. How rare a word is, a search finds out by going
    through all texts that have it, which may be a whole project.
    """
    parts = {"n": (scope.namespace,), "u": scope.user_ids, "s": (scope.session_id,)}
    groups = [
        tuple(scope_term(kind, scope.project, value, secret) for value in values if value is not None)
        for kind, values in parts.items()
    ]
    return [group for group in groups if group] or [(scope_term("p", scope.project, "", secret),)]


def scope_term(kind: str, project: str, value: str, secret: bytes) -> str:
    """The word for a part of a scope. It ends with a digit, so that stemming leaves it as it is."""
    name = json.dumps([kind, project, *([value] if value else [])]).encode()
    return f"{kind}{blake2b(name, digest_size=16, key=secret).hexdigest()}0"
