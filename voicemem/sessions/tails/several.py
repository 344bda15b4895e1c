"""A live tail of several sessions: which ones it follows, and since when."""

from __future__ import annotations

from collections.abc import AsyncIterator

from voicemem.sessions.tails import cursor
from voicemem.sessions.tails.cursor import Several
from voicemem.sessions.tails.session import End, Followed, Sources, Tail, Told, View
from voicemem.store.records import StreamFilter
from voicemem.store.streams import Stream

MOST_SESSIONS = 256
"""Followed at a time by one tail: its places name each of them, and go into a header."""
LISTED = 1000
SLACK_MS = 5_000
"""New sessions are looked for from so long before the newest that is known."""


class TailOfSeveral(Tail):
    """Follows those that match a filter: each that runs when it begins, or starts later, is told whole.

    With the state `ended`, a session is told once it has. `frontier` is the key up to which all were looked at: what is
    over and below it was told, or is not wanted.
    """

    endless = True

    def __init__(self, sources: Sources, view: View, followed: list[Followed], wanted: StreamFilter) -> None:
        super().__init__(sources, view, followed)
        self.wanted = wanted
        self.frontier = 0
        self.seen_ms = 0
        """When the newest session that was looked at began, Unix ms."""
        self.found: dict[int, Stream] = {}
        """Sessions that match, were rung for, and are not followed."""

    @property
    def place(self) -> str:
        positions = {key: one.at for key, one in self.followed.items()}
        return cursor.write_several(self.store.incarnation, Several(self.frontier, positions))

    def ring(self, stream: Stream) -> None:
        super().ring(stream)
        room = len(self.followed) + len(self.found) < MOST_SESSIONS
        if room and stream.key not in self.followed and matches(stream, self.wanted):
            self.found[stream.key] = stream
            self.rung.set()

    def holds_back(self, stream: Stream) -> bool:
        return self.wanted.state == "ended" and stream.state != "ended"

    def finish(self, one: Followed, state: str, reason: str | None) -> Told:
        del self.followed[one.stream.key]
        return Told(self.place, End(one.stream.id, state, reason))

    async def tell(self) -> AsyncIterator[list[Told]]:
        yield [Told(self.place, None)]
        async for told in super().tell():
            yield told

    async def wait(self, at_most_s: float) -> None:
        await super().wait(at_most_s)
        await self.take_found()

    async def listed(self, some: StreamFilter) -> list[Stream]:
        """Those of some sessions that match, by key."""
        found: list[Stream] = []
        after = None
        while True:
            page = await self.store.streams(
                StreamFilter(
                    project=some.project,
                    state=some.state,
                    started_after=some.started_after,
                    user_id=self.wanted.user_id,
                    label=self.wanted.label,
                    after=after,
                    limit=LISTED,
                )
            )
            found += page
            if len(page) < LISTED:
                return sorted(found, key=lambda stream: stream.key)
            after = page[-1].started_ms, page[-1].key

    async def look(self) -> None:
        self.changed.update(self.followed)
        await self.look_for_new()

    async def look_for_new(self) -> None:
        """Follow what has begun; beyond the bound it waits until another one is over."""
        if len(self.followed) >= MOST_SESSIONS:
            return
        since = StreamFilter(project=self.wanted.project, started_after=self.seen_ms - SLACK_MS)
        self.admit([stream for stream in await self.listed(since) if stream.key > self.frontier])

    async def take_found(self) -> None:
        """Follow what was rung for: what is new, and older sessions that match only now."""
        if not self.found:
            return
        found, self.found = self.found, {}
        self.admit([stream for key, stream in sorted(found.items()) if key <= self.frontier])
        if max(found) > self.frontier:
            await self.look_for_new()

    def admit(self, streams: list[Stream]) -> None:
        """Follow these, as far as there is room."""
        for stream in streams:
            if stream.key in self.followed:
                continue
            if len(self.followed) >= MOST_SESSIONS:
                return
            self.followed[stream.key] = Followed(stream)
            self.changed.add(stream.key)
            self.see([stream])

    def see(self, streams: list[Stream]) -> None:
        """Note how far sessions were looked at."""
        self.frontier = max([self.frontier, *(stream.key for stream in streams)])
        self.seen_ms = max([self.seen_ms, *(stream.started_ms for stream in streams)])


def matches(stream: Stream, wanted: StreamFilter) -> bool:
    """Whether a session that runs is one of those wanted, whatever their state is to be."""
    if stream.project != wanted.project or stream.state != "running":
        return False
    if wanted.user_id is not None and stream.config.get("user_id") != wanted.user_id:
        return False
    return wanted.label is None or wanted.label in stream.config.get("labels", {}).items()
