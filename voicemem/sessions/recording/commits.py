"""Commits of waiting batches: one at a time in each commit shard, then their answers; the fold follows later."""

from __future__ import annotations

import asyncio
import logging
import re
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import InitVar, dataclass, field
from itertools import islice

from voicemem.config.session import patch_changes_outbound
from voicemem.errors import VoicememError
from voicemem.protocol.codec import DecodedEvent
from voicemem.runtime import Clock
from voicemem.security.audit import audit
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording.batches import EventBatch, ProducerLease
from voicemem.sessions.recording.redaction import Redaction
from voicemem.store.append_rules import AppendResult, Batch
from voicemem.store.journal import Journal
from voicemem.store.streams import EARLIEST_MS, Stream
from voicemem.telemetry import Telemetry

CommitListener = Callable[[Sequence[AppendResult]], None]
"""Runs right after each commit, in the recorder's task, so it must be quick and must not raise."""


LOG = logging.getLogger("voicemem")
SESSION_LOG = logging.getLogger("voicemem.sessions")
MAX_BATCHES = 1_000
"""The most batches in one commit: it bounds how long a commit takes."""
SETTLED_TOGETHER = 50
"""Batches of one commit that are answered at a time: about 2 ms of the event loop where calls are many."""
APART_TOGETHER = 16
"""Sessions in one commit of those that are appended apart: they wait for each other."""
Append = Callable[[Sequence[Batch], int], Awaitable[Sequence[AppendResult | None]]]
FAULTS = (
    *("unknown_type", "unknown_field", "missing_field", "invalid_field", "text_too_long", "reserved_metadata"),
    *("last_seq_mismatch", "malformed_frame", "address_not_allowed"),
)
"""The codes of invalid events; other codes are about order, or about access."""
MAX_SESSIONS, MAX_FAULTS = 10_000, 20
"""How many sessions are remembered, the newest ones, and how many faults of each are logged."""
INDEX = re.compile(r"\[\d+\]")
NO_UNIX_MS = "A `ts` is in Unix ms; what came looks like seconds, or like a time since the call began."


@dataclass(eq=False, repr=False)
class Commits:
    """Commits batches and settles them, and has the shards in which they wait."""

    journal: Journal
    read_models: ReadModelCache
    clock: Clock
    telemetry: InitVar[Telemetry]
    redaction: Redaction | None = None
    webhooks_due: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set when a session runs again; the services put the event that wakes the outbox here."""
    answered: asyncio.Event = field(init=False, default_factory=asyncio.Event)
    """Set while no commit is being answered: closes, of which there may be hundreds, begin after the acks."""
    named: dict[int, tuple[str, str]] = field(init=False, default_factory=dict)
    """By key, the projects and ids of sessions to which a producer gave a user; its owner takes them out."""

    def __post_init__(self, telemetry: Telemetry) -> None:
        self.metrics, self.tracer = telemetry
        self.feed, self.refusals = CommitFeed(), RefusalLog()
        self.answered.set()
        self.shards = [CommitShard(self, number) for number in range(self.journal.commit_shards)]

    def shard_of(self, key: int) -> CommitShard:
        """Return the shard in which a session's batches wait for the next commit; a batch may grow until then."""
        return self.shards[self.journal.shard_of(key)]

    async def commit(
        self, batches: Sequence[EventBatch], since: float, append: Append, may_differ: Callable[[int], bool]
    ) -> list[EventBatch]:
        """Journal batches, answer them, and have them folded; return those that `append` has left out.

        `since` is when the oldest of them began to wait. After an error, the read models of sessions whose key
        `may_differ` are dropped.
        """
        origins = [batch.origin for batch in batches if batch.origin is not None]
        with self.tracer.span("commit", "internal", {"voicemem.batches": len(batches)}, origins) as span:
            now, began = self.clock(), time.monotonic()
            try:
                if self.redaction is not None:
                    await self.redaction.redact(batches)
                for batch in batches:
                    batch.seal(now)
                appended = await append(batches, now)
            except Exception as error:  # whatever it is, nothing is acknowledged, and the log says why
                span.fail("store_unavailable")
                self.fail(batches, error, may_differ)
                return []
            left: list[EventBatch] = []
            if None in appended:
                left = [batch for batch, one in zip(batches, appended, strict=True) if one is None]
                batches = [batch for batch, one in zip(batches, appended, strict=True) if one is not None]
            if batches:
                self.metrics.commit_seconds.observe(time.monotonic() - began)
                await self.settle(batches, [one for one in appended if one is not None], now, since)
        return left

    def fail(self, batches: Sequence[EventBatch], error: Exception, may_differ: Callable[[int], bool]) -> None:
        """Report to the senders of batches that nothing of them is known to be stored."""
        self.read_models.discard_all(may_differ)
        if self.redaction is not None:
            self.redaction.forget(batches)
        self.metrics.commits.labels("failed").inc()
        if not isinstance(error, VoicememError):
            LOG.error("A commit failed", exc_info=error)
        for batch in batches:
            batch.on_result(batch, error if isinstance(error, VoicememError) else VoicememError("internal"))

    async def settle(
        self, batches: Sequence[EventBatch], appended: Sequence[AppendResult], now: int, since: float
    ) -> None:
        """Settle batches that are on disk, some at a time: after a hitch of the disk they may be a thousand."""
        self.feed.commits += 1
        self.answered.clear()
        try:
            for first in range(0, len(batches), SETTLED_TOGETHER):
                if first:
                    await asyncio.sleep(0)
                some = slice(first, first + SETTLED_TOGETHER)
                self.settle_some(batches[some], appended[some], now, since)
        finally:
            self.answered.set()

    def settle_some(
        self, batches: Sequence[EventBatch], appended: Sequence[AppendResult], now: int, since: float
    ) -> None:
        """Answer batches, then hand them to the fold, which reads of the memory wait for."""
        for batch, outcome in zip(batches, appended, strict=True):
            if self.redaction is not None:
                self.redaction.settle(batch, outcome)
            batch.settle(outcome)
            batch.on_result(batch, None)
        self.metrics.ack_latency_seconds.observe(time.monotonic() - since)
        add = self.read_models.add_committed
        counts: Counter[tuple[str, str]] = Counter()
        offered = stored_bytes = 0
        for batch in batches:
            offered += batch.offered
            stored_bytes += batch.stored_bytes
            counts[batch.kind, "stored"] += batch.stored
            if batch.position is not None:  # nearly every batch of a call
                if is_no_unix_ms(batch.decoded[0].ts):
                    self.refusals.note_time(batch.lease)
                add(batch.key, batch.position, now, batch.decoded, batch.producer, batch.stored_bytes)
            else:
                size = batch.stored_bytes  # counted with the first entry: if that one waits for the journal, all do
                for position, event in batch.entries:
                    add(batch.key, position, now, [event], batch.producer, size)
                    size = 0
                self.note_others(batch, counts)
        self.metrics.count_commit(counts, offered, stored_bytes)
        self.feed.report(appended)

    def note_others(self, batch: EventBatch, counts: Counter[tuple[str, str]]) -> None:
        """Count and log the events of a batch that were not stored, and audit its configuration changes."""
        lease = batch.lease
        first = batch.arrivals[0] if batch.arrivals else None
        if isinstance(first, DecodedEvent) and is_no_unix_ms(first.event.ts):
            self.refusals.note_time(lease)
        if batch.reopened:
            log_session("reopened", lease.project, lease.session_id)
            self.webhooks_due.set()
        counts[batch.kind, "repeated"] += batch.repeated
        counts[batch.kind, "refused"] += len(batch.problems)
        for problem in batch.problems:
            self.metrics.count_refused(problem.code)
            self.refusals.note(lease.project, lease.session_id, problem.code, problem.detail)
        if any(update.public.get("user_id") is not None for update in batch.updates):
            self.named[batch.key] = lease.project, lease.session_id
        for _ in filter(patch_changes_outbound, batch.updates):  # each is an administrative act
            audit("calling_out_changed", lease.key_id, lease.project, lease.session_id)


class CommitShard:
    """The queue of one commit shard of the store: the batches that arrive during one commit share the next.

    So a commit is as large as the load of one sync of the disk, and a lone event does not wait for others. A session
    that others hold, or that must be looked at first, is appended apart, so that it does not hold up the shard; so is
    one whose events take time to redact; what comes after it waits for that, since the events of a session must stay in
    order.
    """

    def __init__(self, commits: Commits, number: int) -> None:
        self.commits = commits
        self.journal = commits.journal
        self.number = number
        self.pending: list[EventBatch] = []
        self.since = 0.0
        """When the first of these was added, by the monotonic clock."""
        self.task: asyncio.Task[None] | None = None
        self.apart: dict[int, list[EventBatch]] = {}
        """Batches that wait behind sessions that are appended apart, by key."""
        self.apart_tasks: set[asyncio.Task[None]] = set()

    def enqueue(self, batch: EventBatch) -> None:
        if self.apart and self.waits_apart(batch):
            return
        if not self.pending:
            self.since = time.monotonic()
        self.pending.append(batch)
        if self.task is None:
            self.task = asyncio.create_task(self.commit_pending())

    def waits_apart(self, batch: EventBatch) -> bool:
        """Queue a batch behind its session if that is appended apart; return whether it was queued."""
        behind = self.apart.get(batch.lease.key)
        if behind is None:
            return False
        behind.append(batch)
        return True

    async def commit_pending(self) -> None:
        try:
            while self.pending:
                batches, self.pending = self.pending[:MAX_BATCHES], self.pending[MAX_BATCHES:]
                since = self.since
                if (redaction := self.commits.redaction) is not None and (slow := redaction.slow_sessions(batches)):
                    self.set_apart([batch for batch in batches if batch.lease.key in slow], since)
                    batches = [batch for batch in batches if batch.lease.key not in slow]
                left = await self.commits.commit(batches, since, self.journal.try_append, self.has) if batches else []
                if left:
                    self.set_apart(left, since)
        finally:
            self.task = None

    def has(self, key: int) -> bool:
        return self.journal.shard_of(key) == self.number

    def set_apart(self, batches: Sequence[EventBatch], since: float) -> None:
        """Append batches apart, those of some sessions together."""
        by_key: dict[int, list[EventBatch]] = {}
        for batch in batches:
            by_key.setdefault(batch.lease.key, []).append(batch)
        self.apart.update((key, []) for key in by_key)
        self.pending = [batch for batch in self.pending if not self.waits_apart(batch)]
        keys = iter(sorted(by_key))
        while some := list(islice(keys, APART_TOGETHER)):
            task = asyncio.create_task(self.commit_apart(some, [one for key in some for one in by_key[key]], since))
            self.apart_tasks.add(task)
            task.add_done_callback(self.apart_tasks.discard)

    async def commit_apart(self, keys: Sequence[int], batches: Sequence[EventBatch], since: float) -> None:
        """Commit batches of some sessions; batches queued behind them go back to the shard."""
        await self.commits.commit(batches, since, self.journal.append, keys.__contains__)
        for key in keys:
            for batch in self.apart.pop(key):
                self.enqueue(batch)


class CommitFeed:
    """The subscribers to commits."""

    def __init__(self) -> None:
        self.commits = 0
        self.listeners: list[CommitListener] = []
        self.collectors: list[dict[int, Stream]] = []
        """Each gets the sessions of every commit, by key; its owner takes them out when it has time."""

    def report(self, appended: Sequence[AppendResult]) -> None:
        streams = {result.stream.key: result.stream for result in appended}
        for collector in self.collectors:
            collector.update(streams)
        for listener in self.listeners:
            listener(appended)


class RefusalLog:
    """Logs why events were refused. The sentences name a field, and quote nothing of the event."""

    def __init__(self) -> None:
        self.logged: OrderedDict[tuple[str, str | None], set[str]] = OrderedDict()

    def note(self, project: str, session_id: str | None, code: str, detail: str) -> None:
        """Log a refused event, unless this fault of the session was logged before."""
        if code in FAULTS and self.is_first(project, session_id, INDEX.sub("[]", detail)):
            where = {"project": project, "session_id": session_id, "code": code}
            LOG.warning("An event was refused. %s", detail, extra=where)

    def note_time(self, lease: ProducerLease) -> None:
        """Log that times of a session are no Unix ms, unless that was logged before."""
        if self.is_first(lease.project, lease.session_id, NO_UNIX_MS):
            LOG.warning(NO_UNIX_MS, extra={"project": lease.project, "session_id": lease.session_id})

    def is_first(self, project: str, session_id: str | None, fault: str) -> bool:
        faults = self.logged.setdefault((project, session_id), set())
        self.logged.move_to_end((project, session_id))
        if fault in faults or len(faults) == MAX_FAULTS:
            return False
        faults.add(fault)
        if len(self.logged) > MAX_SESSIONS:
            self.logged.popitem(last=False)
        return True


def is_no_unix_ms(ts: int | None) -> bool:
    return ts is not None and 0 < ts < EARLIEST_MS


def log_session(what: str, project: str, session_id: str, **more: object) -> None:
    """Log a change of a session, or of its producer. `more` are fields, and never words of the call."""
    SESSION_LOG.info("Session %s", what, extra={"project": project, "session_id": session_id, **more})
