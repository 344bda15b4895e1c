"""The open tails of a service, and those that follow several sessions, which they find as these start.

The hub begins the tails, and wakes them at every commit.
"""

from bisect import bisect_left, insort
from collections.abc import AsyncGenerator, AsyncIterator, Iterable, Mapping, Set

from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.sessions.recording.commits import CommitFeed
from voicemem.sessions.tails.tail import (
    FollowedSession,
    Tail,
    TailItem,
    TailSources,
    TailView,
    join_pairs,
    parse_session_cursor,
    parse_several_cursor,
)
from voicemem.store.append_rules import AppendResult
from voicemem.store.scopes import QueryScope, Scope
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream

LOOK_BACK = 256
"""Keys below the newest among which late ones are still found, however long ago these became visible."""
MOST_SEEN = 4_096
"""Keys that became visible in the last `SETTLED_AFTER` looks, at most: many sessions may begin while one is slow."""
MAX_NAMED = 32
"""Keys that a place names, at most, apart from those of followed sessions: it must fit into a header."""
SETTLED_AFTER = 20
"""Looks after which a key need not be named in a place any more: whatever is below it has become visible."""
MAX_FOLLOWED = 256
"""Sessions that one tail follows at a time, at most: a place names each of them, and must fit into a header."""
LIST_PAGE = 1000
"""Keys, or sessions, in a page of a list."""
LIST_EVERY = 20
"""On a store of several nodes, every so many looks for new sessions, the running ones are listed too: nothing here
reports an older session that matches only now, or is reopened, on another node."""
LOAD_PAGE = 50
"""New sessions that are loaded at a time; each may have a large configuration."""


class KnownKeys:
    """The sessions that a tail knows already, by key, in bounded memory: up to `floor`, and those in `seen` above it.

    A session is new when its key is not known. Clocks play no part, nor is the highest key enough: a lower one may
    become visible after it.
    """

    def __init__(self, floor: int = 0, seen: Iterable[int] = ()) -> None:
        self.floor = floor
        self.seen: list[int] = []
        """In order; at most `LOOK_BACK` and recent ones, `MOST_SEEN` in all, after `forget`."""
        self.first_looks: dict[int, int] = {}
        """By key, at which look it was seen first."""
        self.looks = 0
        self.settled = 0
        """How many of the first keys in `seen` have settled."""
        for key in seen:
            self.add(key)

    def __contains__(self, key: int) -> bool:
        return key <= self.floor or key in self.first_looks

    @property
    def settled_floor(self) -> int:
        """A key up to which everything is known, and nothing more is expected to become visible."""
        return self.seen[self.settled - 1] if self.settled else self.floor

    @property
    def recent(self) -> list[int]:
        """The known keys above `settled_floor`."""
        return self.seen[self.settled :]

    def add(self, key: int) -> None:
        if key in self:
            return
        self.settled = min(self.settled, bisect_left(self.seen, key))
        insort(self.seen, key)
        self.first_looks[key] = self.looks
        self.settle()

    def is_old(self, key: int) -> bool:
        """Return whether a key was seen so long ago that whatever is below it has become visible."""
        return self.looks - self.first_looks[key] >= SETTLED_AFTER

    def settle(self) -> None:
        """Move `settled` on, over keys that are old enough, and over the lowest where too many are recent."""
        while self.settled < len(self.seen) and (
            self.is_old(self.seen[self.settled]) or len(self.seen) - self.settled > MAX_NAMED
        ):
            self.settled += 1

    def finish_look(self) -> None:
        """Note that everything visible was looked at, and is known."""
        self.looks += 1
        self.settle()
        self.forget(self.seen[-1] if self.seen else 0)

    def forget(self, up_to: int) -> None:
        """Forget the lowest keys of those that are old enough, if all that is visible up to this key is known."""
        most, count = min(len(self.seen) - LOOK_BACK, bisect_left(self.seen, up_to + 1)), 0
        while count < most and (len(self.seen) - count > MOST_SEEN or self.is_old(self.seen[count])):
            count += 1
        if count > 0:
            self.floor = self.seen[count - 1]
            for key in self.seen[:count]:
                del self.first_looks[key]
            del self.seen[:count]
            self.settled = max(0, self.settled - count)


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
        session_filter: SessionFilter,
        scope: QueryScope,
        known: KnownKeys,
    ) -> None:
        """`scope` is that of the filter."""
        super().__init__(sources, view, followed)
        self.session_filter = session_filter
        self.scope = scope
        self.known = known
        self.awaits_end = session_filter.state == "ended"
        if not self.store.is_exclusive:  # no commit here reports the sessions of other nodes
            self.poll_s /= 2
        self.polls = 0
        self.named: dict[int, Stream] = {}
        """Matching sessions that a commit has named, and that are not followed yet."""

    @property
    def cursor(self) -> str:
        seen = [key for key in self.known.recent if key not in self.followed]
        pairs = [session.pair for session in self.followed.values()]
        return join_pairs(self.incarnation, self.known.settled_floor, pairs, seen)

    @property
    def has_room(self) -> bool:
        return len(self.followed) < MAX_FOLLOWED

    def notify(self, streams: Mapping[int, Stream]) -> None:
        super().notify(streams)
        for key, stream in streams.items():
            room = len(self.followed) + len(self.named) < MAX_FOLLOWED
            if room and key not in self.followed and stream.state == "running" and self.matches(stream):
                self.named[key] = stream
                self.notified.set()

    async def watch(self) -> AsyncIterator[list[TailItem]]:
        yield [TailItem(self.cursor, None)]
        async for items in super().watch():
            yield items

    async def wait(self, at_most_s: float) -> None:
        await super().wait(at_most_s)
        matching, self.named = self.named, {}  # new sessions, and older ones that match only now
        self.follow_known([stream for _, stream in sorted(matching.items())])
        if any(key not in self.known for key in matching):
            await self.find_new_sessions()

    async def poll(self) -> None:
        await super().poll()
        if await self.find_new_sessions():
            self.known.finish_look()
        self.polls += 1
        if not self.store.is_exclusive and self.polls % LIST_EVERY == 0:
            async for page in self.running_pages():
                self.follow_known(page)

    def running_pages(self) -> AsyncIterator[list[Stream]]:
        """Return all running sessions that match, by pages."""
        return self.store.journal.list_pages(replace(self.session_filter, state="running", limit=LIST_PAGE))

    async def find_new_sessions(self) -> bool:
        """Follow sessions that have started, by key. Return False if some may be left until others are over."""
        after = self.known.floor
        while self.has_room:
            keys = await self.store.journal.list_keys_after(self.session_filter.project, after, LIST_PAGE)
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
        """Follow those of these new sessions that match; return False if there is no room for all of them."""
        for stream in await self.store.journal.find_sessions(self.session_filter.project, keys):
            if stream.state != "erased" and self.matches(stream):
                if not self.has_room:
                    return False
                self.follow(stream)
            self.known.add(stream.key)
        return True

    def follow_known(self, streams: list[Stream]) -> None:
        """Follow those of these sessions that are known already, as far as there is room; new ones are examined."""
        for stream in streams:
            if stream.key in self.known and stream.key not in self.followed and self.has_room:
                self.follow(stream)

    def follow(self, stream: Stream) -> None:
        self.followed[stream.key] = FollowedSession(stream)
        self.dirty_keys.add(stream.key)

    def matches(self, stream: Stream) -> bool:
        """Return whether a session matches the filter, leaving its `state` aside."""
        label = self.session_filter.label
        has_label = label is None or label in stream.config.get("labels", {}).items()
        return has_label and self.scope.includes(stream)


class TailHub:
    """The open tails. It listens to commits only while there are any."""

    def __init__(self, sources: TailSources, feed: CommitFeed) -> None:
        self.sources = sources
        self.store = sources.store
        self.feed = feed
        self.open_tails: set[Tail] = set()

    async def watch(self, tail: Tail) -> AsyncGenerator[list[TailItem], None]:
        """Yield the items of a tail, each as soon as it is journaled; see `Tail.watch`."""
        if not self.open_tails:
            self.feed.listeners.append(self.notify)
        self.open_tails.add(tail)
        try:
            async for items in tail.watch():
                yield items
        finally:
            self.open_tails.discard(tail)
            if not self.open_tails:
                self.feed.listeners.remove(self.notify)

    def notify(self, appended: Iterable[AppendResult]) -> None:
        """Wake the tails that follow these sessions, or are to follow them from now on."""
        streams = {result.stream.key: result.stream for result in appended}
        for tail in self.open_tails:
            tail.notify(streams)

    def notify_keys(self, keys: Set[int]) -> None:
        for tail in self.open_tails:
            tail.notify_keys(keys)

    async def tail_session(self, stream: Stream, view: TailView, cursor: str | None, after: int = 0) -> Tail:
        """Return a tail from a place, or a position. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
        if cursor is not None:
            after = parse_session_cursor(self.store.directory.incarnation, stream.key, cursor)
            if after > stream.position:
                raise Refused("invalid_position")
        return Tail(self.sources, view, [FollowedSession(stream, after)])

    async def tail_several(self, session_filter: SessionFilter, view: TailView, cursor: str | None) -> Tail:
        """Return a tail of the sessions that match, from a place, or else from now.

        From now, it follows the sessions that are running and all that start later. From a place, it also follows the
        sessions that started since. Raises `Refused` (`invalid_position`, `other_incarnation`, `too_many_sessions`).
        """
        scope = await self.store.users.query_scope(Scope(session_filter.project, user_id=session_filter.user_id))
        followed = list[FollowedSession]()
        if cursor is None:
            keys = await self.store.journal.list_newest_keys(session_filter.project, LOOK_BACK + 1)
            known = KnownKeys(keys[LOOK_BACK] if len(keys) > LOOK_BACK else 0, keys[:LOOK_BACK])
        else:
            followed, known = await self.known_then(session_filter, cursor)
        tail = TailOfSeveral(self.sources, view, followed, session_filter, scope, known)
        running = 0
        async for page in tail.running_pages():
            running += len(page)
            if cursor is None and running > MAX_FOLLOWED:
                raise Refused("too_many_sessions")
            tail.follow_known(page)
        tail.followed = dict(sorted(tail.followed.items()))  # reported in the order in which they began
        await tail.find_new_sessions()
        return tail

    async def known_then(self, session_filter: SessionFilter, cursor: str) -> tuple[list[FollowedSession], KnownKeys]:
        """Return sessions followed and known at a place. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
        floor, positions, seen = parse_several_cursor(self.store.directory.incarnation, cursor)
        named = {floor, *positions, *seen} - {0}
        streams = {
            stream.key: stream for stream in await self.store.journal.find_sessions(session_filter.project, [*named])
        }
        if named != streams.keys() or any(
            position > streams[key].position and streams[key].state != "erased" for key, position in positions.items()
        ):
            raise Refused("invalid_position")
        followed = [FollowedSession(streams[key], position) for key, position in positions.items()]
        return followed, KnownKeys(floor, [*seen, *positions])
