"""The open tails of a service: begins them, and wakes them at every commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from voicemem.errors import Refused
from voicemem.sessions.commit_feed import CommitFeed
from voicemem.sessions.tails import cursor
from voicemem.sessions.tails.session import FollowedSession, Tail, TailItem, TailSources, TailView
from voicemem.sessions.tails.several import MAX_FOLLOWED, TailOfSeveral
from voicemem.store.records import AppendResult, SessionFilter
from voicemem.store.streams import Stream


class TailHub:
    """The open tails. It subscribes to commits only while there are any."""

    def __init__(self, sources: TailSources, feed: CommitFeed) -> None:
        self.sources = sources
        self.store = sources.store
        self.feed = feed
        self.open: set[Tail] = set()

    async def tell(self, tail: Tail) -> AsyncGenerator[list[TailItem], None]:
        """The items of a tail, each as soon as it is journaled; see `Tail.tell`."""
        if not self.open:
            self.feed.subscribe(self.ring)
        self.open.add(tail)
        try:
            async for items in tail.tell():
                yield items
        finally:
            self.open.discard(tail)
            if not self.open:
                self.feed.unsubscribe(self.ring)

    def ring(self, appended: Iterable[AppendResult]) -> None:
        """Wake the tails that follow these sessions, or are to follow them from now on."""
        streams = {result.stream.key: result.stream for result in appended}
        for tail in self.open:
            for stream in streams.values():
                tail.ring(stream)

    async def of_one(self, stream: Stream, view: TailView, place: str | None, after: int = 0) -> Tail:
        """A tail of one session, from a place, or else from a position.

        Raises `Refused` (`invalid_position`, `other_incarnation`).
        """
        if place is not None:
            after = cursor.parse_session_cursor(self.store.incarnation, stream.key, place)
            if after > stream.position:
                raise Refused("invalid_position")
        return Tail(self.sources, view, [FollowedSession(stream, after)])

    async def tail_several(self, wanted: SessionFilter, view: TailView, place: str | None) -> Tail:
        """A tail of the sessions that match, from a place, or else from now.

        From now, it follows the sessions that are running and all that start later. From a place, it also follows the
        sessions that started since. Raises `Refused` (`invalid_position`, `other_incarnation`, `too_many_sessions`).
        """
        if place is None:
            tail = TailOfSeveral(self.sources, view, [], wanted)
            newest = await self.store.streams(SessionFilter(project=wanted.project, limit=1))
            tail.see(newest)
        else:
            frontier, positions = cursor.parse_several_cursor(self.store.incarnation, place)
            streams = await self.store.find_sessions(wanted.project, [frontier, *positions])
            if any(positions.get(stream.key, 0) > stream.position and stream.state != "erased" for stream in streams):
                raise Refused("invalid_position")
            followed = [FollowedSession(stream, positions[stream.key]) for stream in streams if stream.key in positions]
            tail = TailOfSeveral(self.sources, view, followed, wanted)
            tail.see([stream for stream in streams if stream.key == frontier])
        running = await tail.listed(SessionFilter(project=wanted.project, state="running"))
        if place is None and len(running) > MAX_FOLLOWED:
            raise Refused("too_many_sessions")
        tail.admit([stream for stream in running if stream.key <= tail.frontier])
        await tail.find_new_sessions()
        return tail
