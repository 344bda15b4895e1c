"""The upkeep of the index of heard messages, in the background.

Commits only note which sessions have changed. Their heard messages are read a little later, and written to the index in
transactions of its own. If a process ends before that, the next check finds these sessions by position: the index
knows up to which position it has each journal.
"""

import asyncio
import logging
from collections import OrderedDict
from collections.abc import AsyncIterator, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple
from weakref import WeakValueDictionary

from msgspec import structs

from voicemem.errors import SessionQuarantined, StoreUnavailable
from voicemem.runtime import Clock, NodeIdentity, entries_of
from voicemem.search.passages import Passage, has_open_messages, passages_in, turns_after
from voicemem.sessions.off_loop import check_budget
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.commits import CommitFeed
from voicemem.store.port import Store
from voicemem.store.scopes import scope_of
from voicemem.store.streams import SESSION_KIND, Stream
from voicemem.store.transcript_index import TranscriptUpdate
from voicemem.transcript.messages import Forgotten

LOG = logging.getLogger("voicemem")
ROUND_S = 0.5
RUNNING_INTERVAL_MS = 60_000
"""The time from the start of a session to its first indexing, and between two passes while it runs; a search within
its scope does not wait so long."""
SESSIONS_AT_ONCE = 25
MAX_INDEXED_FIRST = 50
"""The most sessions that are indexed before a search whose scope has them."""
CHECKED_AT_ONCE = 200
MAX_PAUSE_S = 1.0
PAUSE_FACTOR, LEAST_FACTOR, WAITING_FEW = 9, 4, 1_000
"""The pause after a step, as a multiple of it, while events come in or webhooks go out: calls have priority. It is one
less for each `WAITING_FEW` sessions that are due, down to `LEAST_FACTOR`: each of thousands of ends has a webhook."""
CHECK_INTERVAL_S = 300.0
"""The time between two checks of all sessions on a store with several nodes, one of which may have died."""
MAX_WAITING, TAKEN_TOGETHER = 5_000, 500
"""The most sessions that wait in memory, and that are indexed between two checks of which are due."""
MAX_KNOWN = 10_000
"""Sessions whose indexed part is remembered; any other is indexed anew as a whole when it changes."""
MADE_AT_ONCE = 1024 * 1024
"""The most characters of messages in one update, more or less: a call may have a hundred times as many."""


class Indexed(NamedTuple):
    """The indexed part of a session: its position, and the turns that later events may still change."""

    position: int
    unheard_turns: frozenset[int]
    forgotten: Forgotten | None


class Heard(NamedTuple):
    """The messages heard in a session, or a part of them, and what is indexed once all are in the index."""

    update: TranscriptUpdate
    indexed: Indexed
    read_model: ReadModel
    """It is kept to make the next part from."""


class TranscriptIndexer:
    def __init__(
        self, store: Store, read_models: ReadModelCache, feed: CommitFeed, clock: Clock, node: NodeIdentity
    ) -> None:
        self.node = node
        self.feed = feed
        self.count_payloads: Callable[[], int] = lambda: 0
        """How many webhook payloads were made. Attempts do not count: one whose receiver hangs is no work."""
        self.store = store
        self.read_models = read_models
        self.clock = clock
        self.changed: dict[int, Stream] = {}
        """Sessions that have changed since they were indexed, by key."""
        feed.collectors.append(self.changed)
        self.indexing: dict[int, Stream] = {}
        self.not_before: dict[int, int] = {}
        """When a running session may be indexed again, Unix ms."""
        self.known: OrderedDict[int, Indexed] = OrderedDict()
        self.running_interval_ms = RUNNING_INTERVAL_MS
        self.due, self.max_waiting = 0, MAX_WAITING
        """How many sessions were due at the last check, and how many may wait in memory."""
        self.left_out: int | None = None
        """The lowest key of the sessions that did not fit in memory: a check of the journals finds them."""
        self.checked_resets: int | None = None
        """How often the index had been reset when all sessions were last checked; None before."""
        self.listeners: list[Callable[[Iterable[int]], None]] = []
        """Called with the keys of the sessions that were indexed."""
        self.turns: WeakValueDictionary[str, asyncio.Lock] = WeakValueDictionary()
        """By project; held while its sessions are indexed, so that no older update follows a newer one."""

    @property
    def is_complete(self) -> bool:
        """True if all sessions were checked since the index was opened or reset."""
        return self.left_out is None and self.checked_resets == self.store.transcript_index.index_resets

    def note(self, stream: Stream) -> None:
        """Let a session be indexed soon, in which the service itself has journaled something."""
        if stream.kind == SESSION_KIND:
            self.changed[stream.key] = stream
            self.not_before.pop(stream.key, None)

    async def index_due(self) -> None:
        """Index sessions until none is due. Raises `StoreUnavailable`."""
        while keys := await self.find_due():
            for first in range(0, min(len(keys), TAKEN_TOGETHER), SESSIONS_AT_ONCE):
                step = self.begin_step()
                await self.index(keys[first : first + SESSIONS_AT_ONCE])
                await self.pause_after(step)

    async def find_due(self) -> list[int]:
        """Return the keys of the sessions that are due, the oldest first; those beyond `max_waiting` are left out."""
        now = self.clock()
        async for key, when in entries_of(self.not_before):
            if when <= now:
                self.not_before.pop(key, None)
        keys = list[int]()
        async for key, stream in entries_of(self.changed):
            is_new = key not in self.known and now < stream.started_ms + self.running_interval_ms
            if stream.state != "running" or not (is_new or key in self.not_before):
                keys.append(key)
        for key in keys[self.max_waiting :]:
            self.changed.pop(key, None)
            self.left_out = key if self.left_out is None else min(key, self.left_out)
        self.due = len(keys)
        return keys[: self.max_waiting]

    def begin_step(self) -> tuple[float, int]:
        """Return when a step of indexing begins, and how much work for calls was done before it."""
        return asyncio.get_running_loop().time(), self.feed.commits + self.count_payloads()

    async def pause_after(self, step: tuple[float, int]) -> None:
        begun, done = step
        is_quiet = self.feed.commits + self.count_payloads() == done
        factor = 1 if is_quiet else max(LEAST_FACTOR, PAUSE_FACTOR - self.due // WAITING_FEW)
        await asyncio.sleep(min(MAX_PAUSE_S, factor * (asyncio.get_running_loop().time() - begun)))

    async def index_first(self, concerns: Callable[[Stream], bool]) -> None:
        """Index the changed sessions in the scope of a search, before it runs. Raises `StoreUnavailable`."""
        keys = list[int]()
        async for key, stream in entries_of(self.changed):
            if len(keys) < MAX_INDEXED_FIRST and concerns(stream):
                keys.append(key)
        await self.index([*keys, *(key for key, stream in self.indexing.items() if concerns(stream))])

    async def index(self, keys: Iterable[int]) -> None:
        """Index the changed ones of these sessions, and wait for those in progress. Raises `StoreUnavailable`."""
        by_project = dict[str, list[int]]()
        for key in keys:
            stream = self.changed.get(key) or self.indexing.get(key)
            if stream is not None:
                by_project.setdefault(stream.project, []).append(key)
        for project, some in by_project.items():
            await self.index_project(project, some)

    async def index_project(self, project: str, keys: Sequence[int]) -> None:
        """Index the changed ones of these sessions of a project; other projects do not wait for it."""
        async with self.turns.setdefault(project, asyncio.Lock()):
            streams = [self.changed.pop(key) for key in keys if key in self.changed]
            self.indexing |= {stream.key: stream for stream in streams}
            try:
                incomplete = await self.index_streams(streams)
                if incomplete:
                    for key in incomplete:
                        self.known.pop(key, None)
                    await self.index_streams([stream for stream in streams if stream.key in incomplete])
            except BaseException:
                for stream in streams:
                    self.changed.setdefault(stream.key, stream)
                raise
            finally:
                for stream in streams:
                    del self.indexing[stream.key]
            now = self.clock()
            self.not_before |= {s.key: now + self.running_interval_ms for s in streams if s.state == "running"}

    async def index_streams(self, streams: Sequence[Stream]) -> set[int]:
        """Write what was heard in these sessions to the index. Return the keys of those that it needs as a whole."""
        updates, after, incomplete = [], dict[int, Indexed](), set[int]()
        for stream in streams:
            with suppress(SessionQuarantined):
                heard = await self.hear(stream)
                while heard.update.rest and stream.key not in incomplete:
                    incomplete.update(await self.store.transcript_index.index_messages([heard.update]))
                    heard = await self.hear(stream, heard)
                updates.append(heard.update)
                after[stream.key] = heard.indexed
            await asyncio.sleep(0)  # small calls are read on the event loop: other tasks run in between
        if not updates:
            return set()
        incomplete.update(await self.store.transcript_index.index_messages(updates))
        for listener in self.listeners:
            listener(update.key for update in updates)
        for stream in streams:
            if stream.key in after and stream.key not in incomplete:
                self.known.pop(stream.key, None)
                if stream.state == "running":
                    self.known[stream.key] = after[stream.key]
                    if len(self.known) > MAX_KNOWN:
                        self.known.popitem(last=False)
        return incomplete

    async def hear(self, stream: Stream, before: Heard | None = None) -> Heard:
        """Return the next part of the messages heard in a session. Raises `SessionQuarantined`, `StoreUnavailable`."""
        make = partial(heard_messages, stream, self.known.get(stream.key), before)
        position = stream.position if before is None else before.update.position
        return await self.read_models.compute_as_of(
            stream.key, position, make, background=True, or_later=True, owner=stream.project
        )

    # Sessions that were missed

    async def catch_up(self) -> None:
        """Index all sessions that have grown since they were indexed. Raises `StoreUnavailable`."""
        resets, count, step = self.store.transcript_index.index_resets, 0, self.begin_step()
        first = 1 if self.left_out is None else self.left_out
        if self.checked_resets != resets:
            self.known.clear()
            first = 1
        self.left_out = self.checked_resets = None  # if the store fails, all are checked again
        async for looked_at, done in self.check_all(first - 1):
            count += done
            if looked_at:
                await self.find_due()  # so that no more wait than may
            await self.pause_after(step)
            step = self.begin_step()
        if count:
            total = await self.store.transcript_index.count_sessions_to_index()
            LOG.info("%d of %d sessions were not in the index of heard messages, and are now", count, total)
        if self.store.transcript_index.index_resets == resets:
            self.checked_resets = resets

    async def check_all(self, after: int | None = 0) -> AsyncIterator[tuple[int, int]]:
        """Check all sessions after a key, and index those that are behind; yield the numbers of both in each step."""
        while after is not None:
            check = await self.store.transcript_index.check_index(after, CHECKED_AT_ONCE)
            for first in range(0, len(check.behind), SESSIONS_AT_ONCE):
                some = check.behind[first : first + SESSIONS_AT_ONCE]
                for stream in some:
                    self.changed.setdefault(stream.key, stream)
                await self.index([stream.key for stream in some])
                yield 0, len(some)
            yield check.looked_at, 0
            after = check.through_key


def heard_messages(stream: Stream, known: Indexed | None, before: Heard | None, read_model: ReadModel) -> Heard:
    """Return the messages heard in a session: all, or those of turns that may have changed since they were indexed.

    A large number comes in parts. Events between two parts are in the next update.
    """
    if before is None:
        before = Heard(*all_to_hear(stream, known, read_model), read_model)
    state, update, size = read_model.state, before.update, 0
    passages, unheard = dict[int, list[Passage]](), set(before.indexed.unheard_turns)
    for number in update.rest:
        if size >= MADE_AT_ONCE:
            break
        check_budget()
        state.release()
        passages[number] = passages_in(state, number)
        size += sum(len(one.text) for one in passages[number])
        if has_open_messages(state, number):
            unheard.add(number)
    rest = update.rest[len(passages) :]
    update = structs.replace(update, turns=passages, rest=rest, continues=bool(update.turns))
    return Heard(update, before.indexed._replace(unheard_turns=frozenset(unheard)), read_model)


def all_to_hear(stream: Stream, known: Indexed | None, read_model: ReadModel) -> tuple[TranscriptUpdate, Indexed]:
    """Return an update whose turns are all still to come, and what is indexed after it."""
    state, position = read_model.state, read_model.position
    changed = set(read_model.turns_changed_since(position if known is None else known.position))
    if known is None or known.forgotten != state.forgotten:
        turns, since = set(state.turn_numbers), None
    else:
        turns, since = changed | known.unheard_turns, known.position
        turns |= {later for number in turns for later in turns_after(state, number)}
    update = TranscriptUpdate(stream.key, position, scope_of(stream), stream.started_ms, {}, since, rest=sorted(turns))
    return update, Indexed(position, frozenset(), state.forgotten)


async def index_forever(indexer: TranscriptIndexer) -> None:
    """Background task: index the sessions that were missed, then those that change."""
    next_check = 0.0
    time = asyncio.get_running_loop().time
    while True:
        with suppress(StoreUnavailable):  # the sessions still wait
            await indexer.index_due()
            if next_check <= time() or not indexer.is_complete:
                index, lease_ms = indexer.store.transcript_index, int(CHECK_INTERVAL_S * 1000)
                node, now = indexer.node.token, indexer.clock()
                if indexer.left_out is not None or await index.claim_index_check(node, now, lease_ms):
                    await indexer.catch_up()
                else:  # another node does it
                    indexer.checked_resets = index.index_resets
                next_check = float("inf") if indexer.store.is_exclusive else time() + CHECK_INTERVAL_S
        await asyncio.sleep(ROUND_S)
