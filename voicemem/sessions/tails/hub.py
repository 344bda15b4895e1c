"""The open tails of a service: begins them, and wakes them at every commit."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Iterable, Set

from voicemem.errors import Refused
from voicemem.sessions.recording.commit_feed import CommitFeed
from voicemem.sessions.tails.cursor import parse_session_cursor, parse_several_cursor
from voicemem.sessions.tails.known_keys import LOOK_BACK, KnownKeys
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
        self.open_tails: set[Tail] = set()

    async def watch(self, tail: Tail) -> AsyncGenerator[list[TailItem], None]:
        """The items of a tail, each as soon as it is journaled; see `Tail.watch`."""
        if not self.open_tails:
            self.feed.subscribe(self.notify)
        self.open_tails.add(tail)
        try:
            async for items in tail.watch():
                yield items
        finally:
            self.open_tails.discard(tail)
            if not self.open_tails:
                self.feed.unsubscribe(self.notify)

    def notify(self, appended: Iterable[AppendResult]) -> None:
        """Wake the tails that follow these sessions, or are to follow them from now on."""
        streams = {result.stream.key: result.stream for result in appended}
        for tail in self.open_tails:
            tail.notify(streams)

    def followed_keys(self) -> set[int]:
        """The keys of all sessions that any tail follows."""
        return {key for tail in self.open_tails for key in tail.followed}

    def notify_keys(self, keys: Set[int]) -> None:
        """Wake the tails that follow these sessions."""
        for tail in self.open_tails:
            tail.notify_keys(keys)

    async def tail_session(self, stream: Stream, view: TailView, cursor: str | None, after: int = 0) -> Tail:
        """A tail of one session, from a place, or else from a position.

        Raises `Refused` (`invalid_position`, `other_incarnation`).
        """
        if cursor is not None:
            after = parse_session_cursor(self.store.directory.incarnation, stream.key, cursor)
            if after > stream.position:
                raise Refused("invalid_position")
        return Tail(self.sources, view, [FollowedSession(stream, after)])

    async def tail_several(self, wanted: SessionFilter, view: TailView, cursor: str | None) -> Tail:
        """A tail of the sessions that match, from a place, or else from now.

        From now, it follows the sessions that are running and all that start later. From a place, it also follows the
        sessions that started since. Raises `Refused` (`invalid_position`, `other_incarnation`, `too_many_sessions`).
        """
        tail = await (self.begin_several(wanted, view) if cursor is None else self.resume_several(wanted, view, cursor))
        running = 0
        async for page in tail.running_pages():
            running += len(page)
            if cursor is None and running > MAX_FOLLOWED:
                raise Refused("too_many_sessions")
            tail.follow_known(page)
        tail.followed = dict(sorted(tail.followed.items()))  # told of in the order in which they began
        await tail.find_new_sessions()
        return tail

    async def begin_several(self, wanted: SessionFilter, view: TailView) -> TailOfSeveral:
        """A tail that knows all sessions there are."""
        keys = await self.store.list_newest_keys(wanted.project, LOOK_BACK + 1)
        known = KnownKeys(keys[LOOK_BACK] if len(keys) > LOOK_BACK else 0, keys[:LOOK_BACK])
        return TailOfSeveral(self.sources, view, [], wanted, known)

    async def resume_several(self, wanted: SessionFilter, view: TailView, cursor: str) -> TailOfSeveral:
        """A tail that goes on at a place. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
        floor, positions, seen = parse_several_cursor(self.store.directory.incarnation, cursor)
        named = {floor, *positions, *seen} - {0}
        streams = {stream.key: stream for stream in await self.store.find_sessions(wanted.project, [*named])}
        if named != streams.keys() or any(
            position > streams[key].position and streams[key].state != "erased" for key, position in positions.items()
        ):
            raise Refused("invalid_position")
        followed = [FollowedSession(streams[key], position) for key, position in positions.items()]
        return TailOfSeveral(self.sources, view, followed, wanted, KnownKeys(floor, [*seen, *positions]))
