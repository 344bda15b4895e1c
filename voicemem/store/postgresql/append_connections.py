"""Append connections for plain appends, each with a thread, so that one slow commit does not stop the others.

All appends that wait for a connection go into one statement, which is one transaction and one round trip. It updates
nothing: each update of a row leaves a dead version, and these slow everything down while an old snapshot is held. It
locks the rows of the streams whose `version` is the cached one, skips those that others hold, and inserts each run
right behind the cached end of the journal; the primary key refuses those that come too late. Batches that are not in
its answer are left to a transaction that reads first (`PostgresqlDatabase.append_slowly`).

Locking the streams, reading where they end and then inserting needs a second round trip and two reads for each commit.
At 300 connections x 10 events/s, where commits are small, acks took 1.6 times as long and PostgreSQL 1.3 times the CPU.
"""

import time
from array import array
from collections.abc import Callable, Sequence
from itertools import islice
from typing import Any, NamedTuple

import msgspec
import psycopg

from voicemem.errors import StoreUnavailable
from voicemem.store.append_rules import AppendResult, Batch, admits_all
from voicemem.store.database import GroupCommit, NodeRetired
from voicemem.store.postgresql.connection import Fenced, PostgresqlConnection, is_lost, is_ours, is_retried, unavailable
from voicemem.store.postgresql.failover import DISPLACED
from voicemem.store.postgresql.rows import RUN_ARRAYS, CachedVersion, CachedVersions, by_column
from voicemem.store.postgresql.writer import ATTEMPTS, SELECT_PLACE, Writer, pause_s
from voicemem.store.runs import JOURNAL_COLUMNS, WAYPOINT_STRIDE

RUNS_WITH_VERSIONS = RUN_ARRAYS.replace("bytea[])", "bytea[], :versions::bigint[])")
RUNS_WITH_VERSIONS = RUNS_WITH_VERSIONS.replace("payload)", "payload, version)")
APPEND = f"""
    with held as ({SELECT_PLACE} for share),
    run as (select * from {RUNS_WITH_VERSIONS}),
    free as (
        select h.stream from held, run join stream_locks h
        on h.stream = run.stream and h.version = run.version
        for no key update of h skip locked
    )
    insert into journal ({JOURNAL_COLUMNS})
    select run.stream, run.position, run.producer, run.seq, run.received_ms, run.count, run.checksum,
    run.waypoint, run.payload from run join free on free.stream = run.stream
    on conflict do nothing returning stream
"""
SELECT_STORED = """
    select r.stream from unnest(
        :stream::bigint[], :position::bigint[], :producer::text[], :seq::bigint[], :checksum::bigint[]
    ) as r (stream, position, producer, seq, checksum) join journal j on j.stream = r.stream
    and j.position = r.position and j.producer = r.producer and j.seq = r.seq and j.checksum = r.checksum
"""
MAX_RUNS = 2_000
"""The most runs in one statement: it bounds how long a commit takes."""


class Candidate(NamedTuple):
    """A batch that is in order by a cached version, and the row of its run."""

    number: int
    cached: CachedVersion
    row: tuple[Any, ...]
    waypoint: bool


Job = Sequence[Batch] | Callable[[PostgresqlConnection], None]
"""Batches that one caller waits for; or a job that shows whether the connection works."""


class AppendConnection:
    """One append connection: all waiting batches go into the next statement."""

    def __init__(self, writer: Writer, cached_versions: CachedVersions) -> None:
        self.writer = writer
        self.cached_versions = cached_versions
        self.generation = 0
        """The generation of the cached versions that it appends by."""
        self.group: GroupCommit[Job] = GroupCommit(
            f"voicemem-lane-{writer.lane}", self.commit, MAX_RUNS, lambda job: 0 if callable(job) else len(job)
        )

    async def append(self, batches: Sequence[Batch]) -> list[AppendResult | None]:
        """Append batches that are in order by the cached versions; None for each batch that must be examined."""
        self.writer.database.refuse_unready()
        results: list[AppendResult | None] = await self.group.run(batches)
        return results

    async def try_again(self, trial: Callable[[PostgresqlConnection], None]) -> None:
        """Try it if it is failing and idle. Raises `StoreUnavailable`."""
        if self.writer.is_in_trouble and not self.group.is_busy:
            await self.group.run(trial)

    def close(self) -> None:
        self.group.close()
        self.writer.drop()

    def commit(self, jobs: list[Job]) -> list[Any]:
        try:
            for job in jobs:
                if callable(job):
                    self.writer.run(job)  # where it fails, so would the appends
            appended = iter(self.append_all([batch for job in jobs if not callable(job) for batch in job]))
        except Exception as error:  # each caller gets it, whatever it is
            return [error] * len(jobs)
        return [None if callable(job) else list(islice(appended, len(job))) for job in jobs]

    def append_all(self, batches: Sequence[Batch]) -> list[AppendResult | None]:
        """Append batches in as few statements as their order allows. Raises `StoreUnavailable`."""
        results: list[AppendResult | None] = [None] * len(batches)
        self.generation = self.writer.database.generation
        waiting, slow = list(range(len(batches))), set[int]()
        while waiting:
            candidates: dict[int, Candidate] = {}
            later: list[int] = []
            for index in waiting:
                batch = batches[index]
                if batch.key in slow:
                    continue
                if batch.key in candidates:  # behind another batch of its stream, whose end is not known yet
                    later.append(index)
                elif (candidate := self.candidate(index, batch)) is not None:
                    candidates[batch.key] = candidate
                else:
                    slow.add(batch.key)  # and whatever follows it, which must not overtake it
            if not candidates:
                break
            stored = self.insert(list(candidates.values()))
            for key, candidate in candidates.items():
                if key in stored:
                    results[candidate.number] = self.accept(candidate, batches[candidate.number])
                else:
                    self.cached_versions.forget(key)
                    slow.add(key)
            waiting = later
        return results

    def may_take(self, batch: Batch) -> bool:
        """Return whether a batch might be stored without being examined."""
        return batch.offers is None and self.cached_versions.find(batch.key) is not None

    def candidate(self, index: int, batch: Batch) -> Candidate | None:
        cached = self.cached_versions.find(batch.key)
        producer = None if cached is None else cached.producers.get(batch.producer)
        if cached is None or producer is None or cached.stream.silent_since_ms is not None:
            return None
        if not batch.payloads or self.is_full(cached.stream.project):
            return None
        if not ((producer.epoch > 0 or producer.next_seq > 1) and admits_all(cached.stream, producer, batch)):
            return None
        first = cached.stream.position + 1
        newest = cached.waypoints.get(batch.producer)
        waypoint = newest is None or first - newest >= WAYPOINT_STRIDE
        return Candidate(index, cached, batch.run(first).columns(waypoint), waypoint)

    def is_full(self, project: str) -> bool:
        quota = self.writer.database.quotas.stored_bytes
        return bool(quota) and self.writer.database.stored_bytes.is_full(project, quota)

    def accept(self, candidate: Candidate, batch: Batch) -> AppendResult:
        """Return the result of a stored batch, and cache it as the new version."""
        cached, count, position = candidate.cached, batch.count, candidate.cached.stream.position + 1
        self.writer.database.stored_bytes.add(cached.stream.project, len(candidate.row[-1]))
        stream = msgspec.structs.replace(cached.stream, position=cached.stream.position + count)
        before = cached.producers[batch.producer]
        producer = msgspec.structs.replace(before, next_seq=before.next_seq + count)
        waypoints = {**cached.waypoints, batch.producer: position} if candidate.waypoint else cached.waypoints
        producers = {**cached.producers, batch.producer: producer}
        self.cached_versions.replace(CachedVersion(stream, cached.version, producers, waypoints, cached.weight))
        return AppendResult(stream, producer.next_seq, position)

    def insert(self, candidates: list[Candidate]) -> set[int]:
        """Insert runs in one transaction; return the streams whose run was stored. Raises `StoreUnavailable`."""
        columns = by_column([candidate.row for candidate in candidates])
        versions = array("q", [candidate.cached.version for candidate in candidates])
        reconnected = False
        for attempt in range(ATTEMPTS):
            connection: PostgresqlConnection | None = None
            try:
                connection = self.writer.open()
                if connection.generation != self.generation:
                    raise StoreUnavailable(DISPLACED)  # a cached version of before might lie behind the journal's end
                rows = connection.rows(APPEND, **columns, versions=versions, **self.writer.place)
                self.writer.database.troubles.end(self.writer)
                if not rows:
                    self.writer.check_place(connection)
                return {stream for (stream,) in rows}
            except Fenced:
                raise NodeRetired from None
            except psycopg.Error as error:
                if is_ours(error):
                    raise
                if connection is not None and is_lost(connection, error):
                    stored = self.find_stored(columns)
                    if stored or reconnected:
                        return stored
                    reconnected = True
                elif not is_retried(error):
                    raise self.writer.failed(unavailable(error, "written").detail) from None
                time.sleep(pause_s(attempt))
        raise StoreUnavailable("The store cannot be written: others hold what is to be changed.")

    def find_stored(self, columns: dict[str, Any]) -> set[int]:
        """Return what a statement without an answer has stored. Raises `StoreUnavailable` if no server answers."""
        try:
            return {key for (key,) in self.writer.ask(lambda connection: connection.rows(SELECT_STORED, **columns))}
        except Fenced:
            raise NodeRetired from None
