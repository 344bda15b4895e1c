"""In whose journal a memory stands: its session's, its user's, or that of the project."""

from __future__ import annotations

from typing import NamedTuple

from voicemem.errors import Refused
from voicemem.store.port import Journal
from voicemem.store.ports.heard_index import scope_of
from voicemem.store.ports.memories import AnyOf, MemoryFilter, MemoryRow
from voicemem.store.streams import SESSION_KIND, Stream

NOBODY = ""
"""Stands for the user of memories that have none: nobody can have this id."""


class MemoryOwner(NamedTuple):
    """Whose a memory is. Without a user its session owns it, and without both the project."""

    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None

    @property
    def key(self) -> tuple[str | None, ...]:
        """What two memories that say the same must have in common to be one."""
        return (self.project, self.namespace, self.user_id, None if self.user_id is not None else self.session_id)

    @property
    def filter(self) -> MemoryFilter:
        """The memories of the same owner."""
        project, namespace, user_id, session_id = self.key
        assert project is not None
        return MemoryFilter(
            project=project,
            namespaces=AnyOf((namespace,)),
            user_ids=AnyOf((user_id,)),
            session_ids=None if user_id is not None else AnyOf((session_id,)),
        )


async def settle_owner(journal: Journal, given: MemoryOwner) -> tuple[MemoryOwner, Stream | None]:
    """Whose a memory is that was given with these, and the session in whose journal it stands, if it does in one.

    That is a session that is there, and whose user has no other id: erasing a user must find all that is the user's.
    Its user and namespace are the memory's, where none is given.
    """
    if given.session_id is None:
        return given, None
    stream = await journal.find_session(given.project, given.session_id)
    if stream is None or stream.kind != SESSION_KIND:
        return given, None
    scope = scope_of(stream)
    if given.user_id not in (None, scope.user_id):
        return given, None
    namespace = scope.namespace if given.namespace is None else given.namespace
    return given._replace(namespace=namespace, user_id=scope.user_id), stream


async def ensure_stream(journal: Journal, owner: MemoryOwner, session: Stream | None, now_ms: int) -> Stream:
    """The stream in whose journal a memory of this owner stands, as it is now.

    Raises `Refused` (`unknown_session`) for a session that was erased meanwhile.
    """
    if session is None:
        return await journal.ensure_user(owner.project, owner.user_id or NOBODY, now_ms)
    current = await journal.find_session(owner.project, session.id)
    if current is None or current.key != session.key:
        raise Refused("unknown_session")
    return current


async def stream_of(journal: Journal, row: MemoryRow) -> Stream | None:
    """The stream in whose journal a memory stands; None if it is gone."""
    session = None if row.session_id is None else await journal.find_session(row.project, row.session_id)
    if session is not None and session.key == row.key:
        return session
    user = await journal.find_user(row.project, row.user_id or NOBODY)
    return user if user is not None and user.key == row.key else None
