"""A live tail of several sessions, which finds the sessions to follow as they start."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping

import msgspec

from voicemem.sessions.tails.cursor import join_pairs
from voicemem.sessions.tails.known_keys import KnownKeys
from voicemem.sessions.tails.session import FollowedSession, Tail, TailEnd, TailItem, TailSources, TailView
from voicemem.store.records import LIST_BYTES, SessionFilter
from voicemem.store.streams import Stream

MAX_FOLLOWED = 256
"""Sessions that one tail follows at a time, at most: a place names each of them, and must fit into a header."""
LIST_PAGE = 1000
"""Keys, or sessions, in a page of a list."""
LIST_EVERY = 20
"""Looks at which are new until the next one at which are running, on a store of several nodes: nobody here is told of
an older session that matches only now, or is reopened, on another node."""
LOAD_PAGE = 50
"""New sessions that are loaded at a time; each may have a large configuration."""


class TailOfSeveral(Tail):
    """Follows the sessions that match a filter: those that are running when it begins, and those that start later.

    Each is sent from its start; with the state `ended`, once it has ended. A session in `known` that is not followed
    was sent to its end, or did not match when it was looked at.
    """

    is_endless = True

    def __init__(
        self,
        sources: TailSources,
        view: TailView,
        followed: list[FollowedSession],
        wanted: SessionFilter,
        known: KnownKeys,
    ) -> None:
        super().__init__(sources, view, followed)
        self.wanted = wanted
        self.known = known
        self.polls = 0
        self.found: dict[int, Stream] = {}
        """Sessions that match, that a commit has named, and that are not followed yet."""

    @property
    def poll_s(self) -> float:
        """New sessions are looked for more often where other nodes begin some, of which no commit here tells."""
        return super().poll_s if self.store.is_exclusive else super().poll_s / 2

    @property
    def cursor(self) -> str:
        seen = [key for key in self.known.recent if key not in self.followed]
        pairs = [session.pair for session in self.followed.values()]
        return join_pairs(self.incarnation, self.known.settled_floor, pairs, seen)

    @property
    def has_room(self) -> bool:
        """Whether it may follow one more session."""
        return len(self.followed) < MAX_FOLLOWED

    def notify(self, streams: Mapping[int, Stream]) -> None:
        super().notify(streams)
        for key, stream in streams.items():
            room = len(self.followed) + len(self.found) < MAX_FOLLOWED
            if room and key not in self.followed and stream.state == "running" and matches(stream, self.wanted):
                self.found[key] = stream
                self.notified.set()

    def is_too_early(self, stream: Stream) -> bool:
        return self.wanted.state == "ended" and stream.state != "ended"

    def finish(self, session: FollowedSession, state: str, reason: str | None) -> TailItem:
        del self.followed[session.stream.key]
        return TailItem(self.cursor, TailEnd(session.stream.id, state, reason))

    async def watch(self) -> AsyncIterator[list[TailItem]]:
        yield [TailItem(self.cursor, None)]
        async for items in super().watch():
            yield items

    async def wait(self, at_most_s: float) -> None:
        await super().wait(at_most_s)
        await self.follow_found()

    async def poll(self) -> None:
        self.dirty_keys.update(self.unwatched_keys())
        if await self.find_new_sessions():
            self.known.finish_look()
        self.polls += 1
        if not self.store.is_exclusive and self.polls % LIST_EVERY == 0:
            async for page in self.running_pages():
                self.follow_known(page)

    async def running_pages(self) -> AsyncIterator[list[Stream]]:
        """All running sessions that match, the newest first, in pages of `LIST_BYTES` of configurations at most."""
        wanted = SessionFilter(
            project=self.wanted.project,
            state="running",
            user_id=self.wanted.user_id,
            label=self.wanted.label,
            limit=LIST_PAGE,
        )
        has_more = True
        while has_more:
            page, has_more = await self.store.list_page(wanted, LIST_BYTES)
            yield page
            if page:
                wanted = msgspec.structs.replace(wanted, after=(page[-1].started_ms, page[-1].key))

    async def find_new_sessions(self) -> bool:
        """Follow the sessions that have started, in the order of their keys.

        Returns False if some may be left that must wait until others are over.
        """
        after = self.known.floor
        while self.has_room:
            keys = await self.store.list_keys_after(self.wanted.project, after, LIST_PAGE)
            new = [key for key in keys if key not in self.known]
            for first in range(0, len(new), LOAD_PAGE):
                if not await self.examine(new[first : first + LOAD_PAGE]):
                    return False
            if len(keys) < LIST_PAGE:
                return True
            after = keys[-1]
            self.known.forget(after)
        return False

    async def examine(self, keys: list[int]) -> bool:
        """Follow those of these new sessions that match; returns False if there is no room for all of them."""
        for stream in await self.store.find_sessions(self.wanted.project, keys):
            if stream.state != "erased" and matches(stream, self.wanted):
                if not self.has_room:
                    return False
                self.follow(stream)
            self.known.add(stream.key)
        return True

    async def follow_found(self) -> None:
        """Follow the sessions that commits have named: new ones, and older ones that match only now."""
        if not self.found:
            return
        found, self.found = self.found, {}
        self.follow_known([stream for _, stream in sorted(found.items())])
        if any(key not in self.known for key in found):
            await self.find_new_sessions()

    def follow_known(self, streams: list[Stream]) -> None:
        """Follow those of these sessions that are known already, as far as there is room; new ones are examined."""
        for stream in streams:
            if stream.key in self.known and stream.key not in self.followed and self.has_room:
                self.follow(stream)

    def follow(self, stream: Stream) -> None:
        self.followed[stream.key] = FollowedSession(stream)
        self.dirty_keys.add(stream.key)


def matches(stream: Stream, wanted: SessionFilter) -> bool:
    """Whether a session matches a filter, leaving its `state` aside."""
    if stream.project != wanted.project:
        return False
    if wanted.user_id is not None and stream.config.get("user_id") != wanted.user_id:
        return False
    return wanted.label is None or wanted.label in stream.config.get("labels", {}).items()
