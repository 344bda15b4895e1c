"""One live tail: the journals or memories of sessions as they grow.

A tail keeps no queue: when it is woken, it reads what comes after its place, from the store or from the memory that all
share. So a slow reader delays no other and costs one item, and nothing is missed or sent twice. A reader that returns
with its place resumes.
"""

import asyncio
import re
from collections.abc import AsyncIterator, Callable, Iterable, Mapping, Sequence, Set
from contextlib import nullcontext, suppress
from typing import Annotated, NamedTuple

from msgspec import Meta, Raw, Struct

from voicemem.errors import Refused, SessionQuarantined
from voicemem.protocol.codec import on_one_line
from voicemem.protocol.types import SessionId
from voicemem.sessions.tails.followed import CallReader, DetailsReader, FollowedSessions, Reader, TurnChange
from voicemem.store.port import Store
from voicemem.store.streams import Stream, may_reopen
from voicemem.transcript.diff import Upsert

TAIL_PAGE = 500
"""Entries read at a time."""
SMALL_PAGE = 8
"""Entries that a tail reads without waiting in the fair queue."""
YIELD_EVERY = 32
"""Sessions that a tail looks at before others get their turn."""
PAGE_PAUSE_S = 0.05
"""The interval at which the page's tails look again: people see no difference, and each look takes time from ingest."""
POLL_S = 0.5
"""How often tails look for changes that no commit of the recorder reports, such as closes and changes over REST."""
KEY_POSITION = r"\d{1,16}-\d{1,16}"
SESSION_CURSOR = re.compile(rf"([0-9a-f]{{1,64}})\.({KEY_POSITION})\Z", re.ASCII)
SEVERAL_CURSOR = re.compile(rf"([0-9a-f]{{1,64}})\.(\d{{1,16}})((?:_{KEY_POSITION}|_\d{{1,16}})*)\Z", re.ASCII)
JournaledJson = Annotated[Raw, Meta(extra_json_schema={"$ref": "#/components/schemas/JournaledEvent"})]


class TailView(NamedTuple):
    """The view of a tail: the journal, or with `messages` the memory, with `unfinished` also what is in progress.

    With `call` it also sends the turns, the rest of the memory, and whether the session runs.
    """

    messages: bool = False
    unfinished: bool = False
    call: bool = False


class TailEntry(Struct, frozen=True):
    """An entry of the journal of a followed session."""

    session_id: SessionId
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    event: JournaledJson


class MemoryChange(Struct, frozen=True):
    """Changes of the memory, up to a position, since the last item of the session."""

    session_id: str
    position: int
    removed: list[str]
    upserts: list[Upsert]


class SessionOver(Struct, frozen=True):
    """The last item of a session."""

    session_id: SessionId
    state: Annotated[str, Meta(extra_json_schema={"enum": ["ended", "erased"]})]
    reason: str | None


class TailItem(NamedTuple):
    """One item of a tail, and the place from which a reader that has it resumes; the first item may be a place only."""

    cursor: str
    content: Struct | TurnChange | None


class FollowedSession:
    """A session in a tail, which was sent up to position `position`."""

    def __init__(self, stream: Stream, at: int = 0) -> None:
        self.stream = stream
        self.reader: Reader | None = None
        """The reader of its memory; None before the first item, and in a tail of journals."""
        self.call: CallReader | None = None
        """The reader of the rest, in a tail of a call."""
        self.move(at)

    def move(self, position: int) -> None:
        self.position = position
        self.pair = format_pair(self.stream.key, position)  # every item of any session in its tail names it


class TailSources(NamedTuple):
    """The sources of tails. `clock` returns Unix ms; tails end when `draining` is set.

    `page_lock` is held to read a large page: hundreds of tails may have one to read, make and send at the same moment.
    """

    store: Store
    followed: FollowedSessions
    memory_details: DetailsReader
    clock: Callable[[], int]
    draining: asyncio.Event
    page_lock: asyncio.Lock


class Tail:
    """Follows one session. `watch` may be called once."""

    is_endless = False
    """True if it continues when it follows no session any more."""

    def __init__(self, sources: TailSources, view: TailView, followed: list[FollowedSession]) -> None:
        self.sources = sources
        self.store = sources.store
        self.incarnation = sources.store.directory.incarnation
        """The incarnation in which its positions are valid; the tail ends when it changes."""
        self.view = view
        self.followed = {session.stream.key: session for session in followed}
        self.notified = asyncio.Event()
        self.dirty_keys = set(self.followed)
        """Keys of sessions that may have more to send."""
        self.poll_s = POLL_S
        self.awaits_end = False
        """True if it sends sessions that have ended only."""

    @property
    def cursor(self) -> str:
        ((key, session),) = self.followed.items()
        return format_session_cursor(self.incarnation, key, session.position)

    @property
    def is_finished(self) -> bool:
        """True if everything was sent and nothing can follow."""
        now = self.sources.clock()
        return all(
            is_closed_for_good(session.stream, now) and session.position >= session.stream.position
            for session in self.followed.values()
        )

    def notify(self, streams: Mapping[int, Stream]) -> None:
        """Note that something was journaled in these sessions, by key, and wake the tail if it follows any."""
        self.notify_keys(streams.keys())

    def notify_keys(self, keys: Set[int]) -> None:
        """Note that something was journaled in the sessions of these keys. It costs the shorter of both lists."""
        followed = self.followed.keys() & keys
        if followed:
            self.dirty_keys |= followed
            self.notified.set()

    async def poll(self) -> None:
        """Note which sessions may have changed without a notification, once every `poll_s`.

        On a store that several nodes may share, a watcher polls the ends of journals for all tails. So there a tail
        only looks at sessions that it could not read last time, and at those that may soon be closed for good.
        """
        self.dirty_keys.update(
            key
            for key, session in self.followed.items()
            if self.store.is_exclusive
            or session.stream.state != "running"
            or session.position < session.stream.position
        )

    def finish(self, session: FollowedSession, state: str, reason: str | None) -> TailItem:
        """Return the last item; in a tail of one session, a reader that resumes there gets the same item again."""
        place = None if self.is_endless else self.cursor
        del self.followed[session.stream.key]
        return TailItem(place or self.cursor, SessionOver(session.stream.id, state, reason))

    async def watch(self) -> AsyncIterator[list[TailItem]]:
        """Yield items as they come, and an empty list every `poll_s`, until the session or the service ends, or the
        store becomes another incarnation.

        Raises `StoreUnavailable`, and `SessionQuarantined` in a tail of one session.
        """
        time = asyncio.get_running_loop().time
        poll_at = time() + self.poll_s
        while not self.sources.draining.is_set() and self.store.directory.incarnation == self.incarnation:
            looked_at = time()
            async for items in self.read_changed():
                yield items
            if not (self.followed or self.is_endless):
                return
            if not self.dirty_keys:
                await self.wait(poll_at - time())
            if self.view.call:
                # On the same beat for all, so that of ten who watch a call nine find its changes already compared.
                await asyncio.sleep(max(0.0, (looked_at // PAGE_PAUSE_S + 1) * PAGE_PAUSE_S - time()))
            if time() >= poll_at:
                await self.poll()
                poll_at = time() + self.poll_s
                yield []

    async def wait(self, at_most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self.notified.wait()
        self.notified.clear()

    async def read_changed(self) -> AsyncIterator[list[TailItem]]:
        """Yield the next page of each session that may have more; those with further pages stay in `dirty_keys`."""
        keys, self.dirty_keys = sorted(self.dirty_keys), set()
        for count, key in enumerate(keys, 1):
            if count % YIELD_EVERY == 0:
                await asyncio.sleep(0)  # most of them are found without waiting for the store
            session = self.followed.get(key)
            if session is None:
                continue
            stream = await self.store.journal.find_session(session.stream.project, session.stream.id)
            if stream is None:
                yield [self.finish(session, "erased", None)]
                continue
            session.stream = stream
            if self.awaits_end and stream.state != "ended":
                continue
            before = session.position
            if before < stream.position or self.view.call:
                try:
                    items = await self.read_items(session)
                except SessionQuarantined:
                    if not self.is_endless:
                        raise
                    continue  # it is looked at again at each poll, and holds up none of the others
                if items:
                    yield items
            if session.position >= stream.position and is_closed_for_good(stream, self.sources.clock()):
                yield [self.finish(session, stream.state, stream.reason)]
            elif before < session.position < stream.position:
                self.dirty_keys.add(key)

    async def read_items(self, session: FollowedSession) -> list[TailItem]:
        if self.view.call:
            return await self.read_call(session)
        return await (self.read_changes(session) if self.view.messages else self.read_entries(session))

    async def read_call(self, session: FollowedSession) -> list[TailItem]:
        """Return the changes of a call; messages come last, as only they move the reader's place."""
        if session.call is None:
            session.call = CallReader(self.sources.followed.read_turns(session.stream.key), self.sources.memory_details)
        contents, place = await session.call.read_changes(session.stream), self.cursor
        is_behind = session.position < session.stream.position
        messages = await self.read_changes(session) if is_behind else []
        return [*(TailItem(place, content) for content in contents), *messages]

    async def read_entries(self, session: FollowedSession) -> list[TailItem]:
        items = []
        is_small = session.stream.position - session.position <= SMALL_PAGE
        async with nullcontext() if is_small else self.sources.page_lock:
            rows = await self.store.journal.read_rows(session.stream.key, session.position, TAIL_PAGE)
        for row in rows:
            session.move(row.position)
            event = on_one_line(row.payload)
            entry = TailEntry(session.stream.id, row.position, row.producer, row.seq, row.received_ms, event)
            items.append(TailItem(self.cursor, entry))
        return items

    async def read_changes(self, session: FollowedSession) -> list[TailItem]:
        """Return the changes of a memory as one item, so that its reader has the history at its position."""
        if session.reader is None:
            session.reader = await self.sources.followed.read_memory(
                session.stream.key, self.view.unfinished, session.position
            )
        changes = await session.reader.read_changes(session.stream)
        session.move(max(session.position, session.reader.position))
        if not changes:
            return []
        change = MemoryChange(session.stream.id, session.position, changes.removed, changes.upserts)
        return [TailItem(self.cursor, change)]


def is_closed_for_good(stream: Stream, now_ms: int) -> bool:
    return stream.state == "ended" and not may_reopen(stream, now_ms)


class SeveralCursor(NamedTuple):
    """A place in several sessions.

    `floor` is the key up to which all of them are known, `positions` has those followed, `seen` other known ones above.
    """

    floor: int
    positions: dict[int, int]
    seen: Sequence[int] = ()


def format_session_cursor(incarnation: str, key: int, position: int) -> str:
    return f"{incarnation}.{key}-{position}"


def parse_session_cursor(incarnation: str, key: int, cursor: str) -> int:
    """Return the position in a place of this session. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
    place_key, position = parse_pair(match_cursor(SESSION_CURSOR, incarnation, cursor)[2])
    if place_key != key:
        raise Refused("invalid_position", "The position belongs to another session.")
    return position


def format_pair(key: int, position: int) -> str:
    """Return a followed session in a place of several."""
    return f"_{key}-{position}"


def join_pairs(incarnation: str, floor: int, pairs: Iterable[str], seen: Sequence[int]) -> str:
    """Return a place in several sessions, with their pairs as `format_pair` makes them."""
    return f"{incarnation}.{floor}{''.join(pairs)}{''.join(f'_{key}' for key in seen)}"


def parse_several_cursor(incarnation: str, cursor: str) -> SeveralCursor:
    """Parse a cursor of `join_pairs`. Raises `Refused` (`invalid_position`, `other_incarnation`)."""
    match = match_cursor(SEVERAL_CURSOR, incarnation, cursor)
    parts = match[3].split("_")[1:]
    positions = dict(parse_pair(part) for part in parts if "-" in part)
    return SeveralCursor(int(match[2]), positions, tuple(int(part) for part in parts if "-" not in part))


def match_cursor(form: re.Pattern[str], incarnation: str, cursor: str) -> re.Match[str]:
    match = form.match(cursor)
    if match is None:
        raise Refused("invalid_position")
    if match[1] != incarnation:
        raise Refused("other_incarnation")
    return match


def parse_pair(text: str) -> tuple[int, int]:
    key, _, position = text.partition("-")
    return int(key), int(position)
