"""Users as persons: which two ids are one person's, and which users were erased.

A link is in the rows of both users' own streams, as the `user_id` of their configurations. Their journals have only
the link's id: whatever names a person must be erased with that person. An erased user leaves a keyed hash, so that no
session is given to the user afterwards.
"""

import hmac
from collections.abc import Mapping, Sequence

import msgspec

from voicemem.errors import Refused
from voicemem.protocol.events import UserLinked, UserUnlinked
from voicemem.protocol.types import JsonObject
from voicemem.store.database import Connection, Port, reads_inline, writes
from voicemem.store.scopes import QueryScope, Scope, find_linked
from voicemem.store.stream_changes import SELECT_STREAM_KEY, Conflict, StreamRows, config_bytes, new_stream
from voicemem.store.streams import ERASED_USER_KIND, SESSION_KIND, USER_KIND, Stream, mark_erased

ITSELF = "An id is one person by itself: name another id in `user_id`."
REVERSED = "These two ids are linked already, from the other one: nothing is left to do."
TAKEN = "An id has at most one other id of the same person. {} has one: DELETE its link first, or leave the two apart."
SELECT_LINKED_KEY = f"""
    select o.key from streams u join streams o on o.project = u.project and o.kind = u.kind and o.id = u.user_id
    where u.key = :key and u.kind = '{USER_KIND}'
"""
SELECT_IS_KNOWN = f"""
    select 1 where exists (
        select 1 from streams where project = :project and kind = '{USER_KIND}' and id = :user_id
    ) or exists (
        select 1 from streams where project = :project and kind = '{SESSION_KIND}' and user_id = :user_id
        and state <> 'erased'
    )
"""


class Users(Port):
    """The ids of users: links between two ids of one person, and marks of erased ids."""

    @reads_inline
    def find_linked(self, connection: Connection, project: str, user_id: str) -> str | None:
        """The other id of the same person, if there is one."""
        return next(iter(find_linked(connection, project, [user_id])), None)

    async def query_scope(self, scope: Scope) -> QueryScope:
        """Return the scope of a query with all ids of the user's person."""
        linked_id = None if scope.user_id is None else await self.find_linked(scope.project, scope.user_id)
        return scope.query(() if linked_id is None else (linked_id,))

    @writes
    def link(
        self, connection: Connection, project: str, user_id: str, other_id: str, link_id: str, now_ms: int
    ) -> bool:
        """Link two ids of one person, in one step; False if the same request has linked them already.

        Raises `Refused` (`user_conflict`), `QuotaExceeded`.
        """
        if user_id == other_id:
            raise Refused("user_conflict", ITSELF)
        rows: StreamRows = connection.streams
        user, other = lock_users(rows, project, (user_id, other_id))
        if user is not None and user.config.get("user_id") == other_id:
            if user.config.get("reversed"):
                raise Refused("user_conflict", REVERSED)
            return False
        for stream, name in ((user, "The id of the path"), (other, "The id in `user_id`")):
            if stream is not None and stream.config:
                raise Refused("user_conflict", TAKEN.format(name))
        rows.admit_bytes(project)
        user, other = user or rows.add_user(project, user_id, now_ms), other or rows.add_user(project, other_id, now_ms)
        event = UserLinked(link_id=link_id)
        set_link(rows, user, {"user_id": other_id, "link_id": link_id}, event, now_ms)
        set_link(rows, other, {"user_id": user_id, "link_id": link_id, "reversed": True}, event, now_ms)
        return True

    @writes
    def unlink(self, connection: Connection, project: str, user_id: str, now_ms: int) -> bool:
        """Remove the link of an id, from either side; False if it has none."""
        rows: StreamRows = connection.streams
        row = connection.row(SELECT_STREAM_KEY, project=project, kind=USER_KIND, id=user_id)
        user = None if row is None else lock_with_linked_user(rows, row[0])
        if user is None or not user.config:
            return False
        event = UserUnlinked(link_id=user.config["link_id"], reason="removed")
        unlink_other(rows, user, event, now_ms)
        set_link(rows, user, {}, event, now_ms)
        return True

    @writes
    def mark_erased(self, connection: Connection, project: str, user_id: str, now_ms: int) -> None:
        """Mark a user as erased: a session is given to the user before that, or not at all.

        The mark is a row without content, under a hash of the id.
        """
        rows: StreamRows = connection.streams
        digest = digest_of(self.database.identity, project, user_id)
        mark = lock_mark(rows, project, digest)
        if mark is None:
            mark = new_stream(project, ERASED_USER_KIND, digest, {}, now_ms)
            mark_erased(mark, now_ms)
            rows.add_stream(mark)
        else:
            mark.ended_ms = now_ms
            rows.save_stream(mark)


def digest_of(identity: Mapping[str, bytes], project: str, user_id: str) -> str:
    """Return the hash under which the erasure of a user is recorded."""
    return hmac.digest(identity["cursor_secret"], f"erased user\0{project}\0{user_id}".encode(), "sha256").hex()


# In a transaction that writes


def lock_mark(rows: StreamRows, project: str, digest: str) -> Stream | None:
    """Return the mark of an erasure; no other transaction sets it, or relies on it, until this one is over."""
    rows.connection.lock(f"user {digest}")
    return rows.find_by_name(project, ERASED_USER_KIND, digest)


def refuse_erased_user(rows: StreamRows, stream: Stream, user_id: str, identity: Mapping[str, bytes]) -> None:
    """Raise `Refused` (`user_erased`) if a session may not be given to a user, since the user was erased.

    It may not until someone has the id again, and never if the session began before the erasure.
    """
    mark = lock_mark(rows, stream.project, digest_of(identity, stream.project, user_id))
    if mark is None or mark.ended_ms is None:
        return
    is_known = rows.connection.row(SELECT_IS_KNOWN, project=stream.project, user_id=user_id) is not None
    if stream.started_ms <= mark.ended_ms or not is_known:
        raise Refused("user_erased")


def lock_with_linked_user(rows: StreamRows, key: int) -> Stream | None:
    """Return a stream, locked together with that of the person's other id, in the order that everyone uses."""
    linked = rows.connection.row(SELECT_LINKED_KEY, key=key)
    for one in sorted({key, *(linked or ())}):
        rows.stream(one)
    return rows.stream(key)


def lock_users(rows: StreamRows, project: str, user_ids: Sequence[str]) -> list[Stream | None]:
    """Return the streams of users, None where there is none, locked in the same order."""
    keys = [rows.connection.row(SELECT_STREAM_KEY, project=project, kind=USER_KIND, id=one) for one in user_ids]
    streams = {row[0]: rows.stream(row[0]) for row in sorted(row for row in keys if row is not None)}
    if any(one is None or one.state == "erased" for one in streams.values()):
        raise Conflict  # erased since it was found
    return [None if row is None else streams[row[0]] for row in keys]


def unlink_other(rows: StreamRows, user: Stream, event: UserUnlinked, now_ms: int) -> None:
    """Remove the link of a user from the row of the other id; the caller removes it from the user's own."""
    other = rows.find_by_name(user.project, USER_KIND, user.config["user_id"])
    if other is not None:
        set_link(rows, other, {}, event, now_ms)


def set_link(rows: StreamRows, user: Stream, link: JsonObject, event: UserLinked | UserUnlinked, now_ms: int) -> None:
    """Replace the other id of the person in a user's row, and journal that."""
    if rows.counts_stored:
        rows.count_stored(user.key, config_bytes(link) - config_bytes(user.config))
    user.config = link
    rows.append_server_event(user, now_ms, msgspec.json.encode(event))
    rows.save_stream(user)
