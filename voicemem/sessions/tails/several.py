"""A live tail of several sessions, which finds the sessions to follow as they start."""

from __future__ import annotations

from collections.abc import AsyncIterator

from voicemem.sessions.tails.cursor import SeveralCursor, format_several_cursor
from voicemem.sessions.tails.session import FollowedSession, Tail, TailEnd, TailItem, TailSources, TailView
from voicemem.store.records import SessionFilter
from voicemem.store.streams import Stream

MAX_FOLLOWED = 256
"""Sessions that one tail follows at a time, at most: a place names each of them, and must fit into a header."""
LIST_PAGE = 1000
"""Sessions in a page of a list."""
START_SLACK_MS = 5_000
"""New sessions are looked for from this long before the start of the newest known one, since starts may be committed
out of order."""


class TailOfSeveral(Tail):
    """Follows the sessions that match a filter: those that are running when it begins, and those that start later.

    Each is sent from its start; with the state `ended`, once it has ended. `frontier` is the key up to which all
    sessions were examined: one at or below it that is not followed was sent to its end, or does not match.
    """

    is_endless = True

    def __init__(
        self, sources: TailSources, view: TailView, followed: list[FollowedSession], wanted: SessionFilter
    ) -> None:
        super().__init__(sources, view, followed)
        self.wanted = wanted
        self.frontier = 0
        self.newest_start_ms = 0
        """When the newest session that was examined started, Unix ms."""
        self.found: dict[int, Stream] = {}
        """Sessions that match, that a commit has named, and that are not followed yet."""

    @property
    def cursor(self) -> str:
        positions = {key: session.position for key, session in self.followed.items()}
        return format_several_cursor(self.store.incarnation, SeveralCursor(self.frontier, positions))

    def notify(self, stream: Stream) -> None:
        super().notify(stream)
        room = len(self.followed) + len(self.found) < MAX_FOLLOWED
        if room and stream.key not in self.followed and matches(stream, self.wanted):
            self.found[stream.key] = stream
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

    async def list_matching(self, some: SessionFilter) -> list[Stream]:
        """All sessions that match both the filter of the tail and `some`, by key."""
        streams: list[Stream] = []
        after = None
        while True:
            page = await self.store.list_sessions(
                SessionFilter(
                    project=some.project,
                    state=some.state,
                    started_after=some.started_after,
                    user_id=self.wanted.user_id,
                    label=self.wanted.label,
                    after=after,
                    limit=LIST_PAGE,
                )
            )
            streams += page
            if len(page) < LIST_PAGE:
                return sorted(streams, key=lambda stream: stream.key)
            after = page[-1].started_ms, page[-1].key

    async def poll(self) -> None:
        self.dirty_keys.update(self.followed)
        await self.find_new_sessions()

    async def find_new_sessions(self) -> None:
        """Follow sessions that have started; those beyond the bound wait until others are over."""
        if len(self.followed) >= MAX_FOLLOWED:
            return
        since = SessionFilter(project=self.wanted.project, started_after=self.newest_start_ms - START_SLACK_MS)
        self.follow_sessions([stream for stream in await self.list_matching(since) if stream.key > self.frontier])

    async def follow_found(self) -> None:
        """Follow the sessions that commits have named: new ones, and older ones that match only now."""
        if not self.found:
            return
        found, self.found = self.found, {}
        self.follow_sessions([stream for key, stream in sorted(found.items()) if key <= self.frontier])
        if max(found) > self.frontier:
            await self.find_new_sessions()

    def follow_sessions(self, streams: list[Stream]) -> None:
        """Follow these sessions, as far as there is room."""
        for stream in streams:
            if stream.key in self.followed:
                continue
            if len(self.followed) >= MAX_FOLLOWED:
                return
            self.followed[stream.key] = FollowedSession(stream)
            self.dirty_keys.add(stream.key)
            self.advance_frontier([stream])

    def advance_frontier(self, streams: list[Stream]) -> None:
        """Note that these sessions were examined."""
        self.frontier = max([self.frontier, *(stream.key for stream in streams)])
        self.newest_start_ms = max([self.newest_start_ms, *(stream.started_ms for stream in streams)])


def matches(stream: Stream, wanted: SessionFilter) -> bool:
    """Whether a running session matches a filter, leaving its `state` aside."""
    if stream.project != wanted.project or stream.state != "running":
        return False
    if wanted.user_id is not None and stream.config.get("user_id") != wanted.user_id:
        return False
    return wanted.label is None or wanted.label in stream.config.get("labels", {}).items()
