"""The live tails of a service: where they begin, and who rings for them."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable

from voicemem.errors import Refused
from voicemem.sessions.commit_feed import CommitFeed
from voicemem.sessions.tails import cursor
from voicemem.sessions.tails.session import Followed, Sources, Tail, Told, View
from voicemem.sessions.tails.several import MOST_SESSIONS, TailOfSeveral
from voicemem.store.records import Appended, StreamFilter
from voicemem.store.streams import Stream


class Tails:
    """The tails that are open. While there are none, nothing is done for them."""

    def __init__(self, sources: Sources, feed: CommitFeed) -> None:
        self.sources = sources
        self.store = sources.store
        self.feed = feed
        self.open: set[Tail] = set()

    async def tell(self, tail: Tail) -> AsyncGenerator[list[Told], None]:
        """What a tail tells, told as soon as it is journaled. See `Tail.tell`."""
        if not self.open:
            self.feed.subscribe(self.ring)
        self.open.add(tail)
        try:
            async for told in tail.tell():
                yield told
        finally:
            self.open.discard(tail)
            if not self.open:
                self.feed.unsubscribe(self.ring)

    def ring(self, appended: Iterable[Appended]) -> None:
        """Wake those who follow these sessions, or would."""
        streams = {result.stream.key: result.stream for result in appended}
        for tail in self.open:
            for stream in streams.values():
                tail.ring(stream)

    async def of_one(self, stream: Stream, view: View, place: str | None, after: int = 0) -> Tail:
        """A tail of one session, from a place, else from a position. Raises `Refused`."""
        if place is not None:
            after = cursor.read_one(self.store.incarnation, stream.key, place)
            if after > stream.position:
                raise Refused("invalid_position")
        return Tail(self.sources, view, [Followed(stream, after)])

    async def of_several(self, wanted: StreamFilter, view: View, place: str | None) -> Tail:
        """A tail of the sessions that match, from a place, else from now. Raises `Refused`."""
        if place is None:
            tail = TailOfSeveral(self.sources, view, [], wanted)
            newest = await self.store.streams(StreamFilter(project=wanted.project, limit=1))
            tail.see(newest)
        else:
            frontier, positions = cursor.read_several(self.store.incarnation, place)
            streams = await self.store.streams_of(wanted.project, [frontier, *positions])
            if any(positions.get(one.key, 0) > one.position and one.state != "erased" for one in streams):
                raise Refused("invalid_position")
            followed = [Followed(one, positions[one.key]) for one in streams if one.key in positions]
            tail = TailOfSeveral(self.sources, view, followed, wanted)
            tail.see([one for one in streams if one.key == frontier])
        running = await tail.listed(StreamFilter(project=wanted.project, state="running"))
        if place is None and len(running) > MOST_SESSIONS:
            raise Refused("too_many_sessions")
        tail.admit([stream for stream in running if stream.key <= tail.frontier])
        await tail.look_for_new()
        return tail
