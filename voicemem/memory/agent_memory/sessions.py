"""The sessions that stand for working memories: found by their owners, listed, begun and erased."""

from __future__ import annotations

import re
import sys

from msgspec import structs

from voicemem.errors import Refused
from voicemem.memory.agent_memory.models import SessionList
from voicemem.memory.agent_memory.owners import (
    ID_LABEL,
    NAMESPACE_LABEL,
    Owner,
    config_of,
    covers,
    derived_id,
    is_expired,
    owner_of,
)
from voicemem.protocol.types import SESSION_ID_PATTERN, JsonObject
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.store.port import Store
from voicemem.store.records import SessionFilter
from voicemem.store.streams import Stream

MOST_LISTED = 10_000
MOST_SAME_ID = 100
"""Sessions of one id, of different users and namespaces, that are looked at."""
SESSION_ID = re.compile(SESSION_ID_PATTERN)


class OwnedSessions:
    """Sessions by the client's id, namespace and user."""

    def __init__(self, store: Store, read_models: ReadModelCache, sessions: Sessions) -> None:
        self.store = store
        self.read_models = read_models
        self.sessions = sessions
        self.clock = sessions.clock

    # Finding

    async def find(self, project: str, wanted: Owner) -> Stream | None:
        """The session of an owner: the one that is exactly his, else the only one that all that is given holds for."""
        plain = None
        if SESSION_ID.match(wanted.session_id):
            plain = await self.store.find_session(project, wanted.session_id)
        now_ms = self.clock()
        if plain is not None and owner_of(plain) == wanted and not is_expired(plain, now_ms):
            return plain
        labelled = await self.store.list_sessions(
            SessionFilter(project=project, label=(ID_LABEL, wanted.session_id), limit=MOST_SAME_ID)
        )
        several = {one.key: one for one in (plain, *labelled) if one is not None}
        known = [one for one in several.values() if covers(wanted, owner_of(one)) and not is_expired(one, now_ms)]
        exact = [one for one in known if owner_of(one) == wanted] or known
        return exact[0] if len(exact) == 1 else None

    async def get(self, project: str, wanted: Owner) -> Stream:
        """The same session. Raises `Refused` (`unknown_session`)."""
        stream = await self.find(project, wanted)
        if stream is None:
            raise Refused("unknown_session", "Session not found: there is no such working memory.")
        return stream

    async def list_ids(self, project: str, namespace: str | None, user_id: str | None, page: slice) -> SessionList:
        """The ids of a page of sessions, the newest first. Raises `Refused` (`invalid_query`)."""
        if page.stop > MOST_LISTED:
            raise Refused("invalid_query", "Only the newest 10,000 sessions are listed; narrow the list by user_id.")
        label = None if not namespace else (NAMESPACE_LABEL, namespace)
        wanted = SessionFilter(project=project, user_id=user_id or None, label=label, limit=page.start)
        total = await self.store.count_sessions(wanted)
        after = None
        if page.start:
            skipped, _ = await self.store.list_overviews(wanted, most_looks=sys.maxsize)
            if len(skipped) < page.start:
                return SessionList([], total)
            after = skipped[-1].started_ms, skipped[-1].key
        streams = await self.store.list_sessions(structs.replace(wanted, after=after, limit=page.stop - page.start))
        now_ms = self.clock()
        return SessionList([owner_of(one).session_id for one in streams if not is_expired(one, now_ms)], total)

    # Beginning and erasing

    async def create(self, project: str, owner: Owner, ttl_s: int | None, key_id: str | None) -> Stream:
        """Begin a session: under the client's id where that is free and can be one, else under one made from it."""
        config = config_of(owner, ttl_s)
        derived = derived_id(owner)
        ids = [owner.session_id] if SESSION_ID.match(owner.session_id) else []
        for session_id in (*ids, derived):
            stream = await self.create_as(project, owner, session_id, config, key_id)
            if stream is not None:
                return stream
        # Both ids were used before. Of several nodes that come here at once one gets the name.
        session_id = f"{derived}-{self.sessions.new_id()}"
        try:
            return (await self.sessions.create(project, session_id, config | {"name": derived}, key_id, True))[0]
        except Refused as refused:
            stream = await self.find(project, owner) if refused.code == "session_exists" else None
            if stream is None:
                raise
            return stream

    async def create_as(
        self, project: str, owner: Owner, session_id: str, config: JsonObject, key_id: str | None
    ) -> Stream | None:
        """Begin a session under an id, or find the owner's there; None when it is another's, was deleted or expires."""
        existing = await self.store.find_session(project, session_id)
        if existing is None:
            try:
                return (await self.sessions.create(project, session_id, config, key_id))[0]
            except Refused as refused:
                if refused.code not in ("session_exists", "session_erased"):
                    raise
            existing = await self.store.find_session(project, session_id)
        if existing is None or owner_of(existing) != owner or is_expired(existing, self.clock()):
            return None
        return existing

    async def delete(self, project: str, wanted: Owner) -> Stream | None:
        """Erase a session with all that came from it; None where there is none, or it is not clear which."""
        stream = await self.find(project, wanted)
        if stream is not None:
            await self.erase(stream)
        return stream

    async def erase(self, stream: Stream) -> None:
        await self.sessions.erase(stream)
        self.read_models.discard(stream.key)
