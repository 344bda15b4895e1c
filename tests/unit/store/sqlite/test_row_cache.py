"""Runs, and the rows that are kept at hand: what is known without reading is what would be read."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.stores.contract import append_batch
from voicemem.config.session import validate_config
from voicemem.errors import Refused, StoreUnavailable
from voicemem.store.append_rules import Batch, Offer, Outcome
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.store import SqliteStore

NOW = 1_778_390_400_000


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    """An empty store on a file."""
    store = SqliteStore(str(tmp_path / "calls.db"))
    yield store
    await store.close_store()


def payload(seq: int, text: str = "word") -> bytes:
    return b'{"type":"llm.delta","turn_id":1,"seq":%d,"text":"%s"}' % (seq, text.encode())


def plain(key: int, first: int, count: int, producer: str = "main", epoch: int | None = 1) -> Batch:
    return Batch(key, producer, epoch, NOW, [payload(seq) for seq in range(first, first + count)], first)


async def begin(store: SqliteStore, session_id: str = "s", producer: str = "main") -> int:
    return (await store.journal.open_producer("p", session_id, producer, validate_config({}), None, NOW)).stream.key


async def runs(store: SqliteStore) -> list[tuple[Any, ...]]:
    """Position, number of events, producer and first seq of each row of the journal."""
    query = "select position, count, producer, seq from journal order by stream, position"
    return await store.database.read(lambda connection: connection.rows(query))


async def test_what_comes_together_is_one_row(store: SqliteStore) -> None:
    """A batch is a run; each of its events has its own position and seq for a reader."""
    key = await begin(store)
    first, second = await store.journal.append([plain(key, 1, 3), plain(key, 4, 2)], NOW)
    assert [(1, 3, "main", 1), (4, 2, "main", 4)] == await runs(store)
    assert (1, 4, 4, 6) == (first.position, second.position, first.next_seq, second.next_seq)
    rows = await store.journal.read_rows(key, 0, 10)
    assert [(n, n, payload(n)) for n in range(1, 6)] == [(row.position, row.seq, row.payload) for row in rows]


@pytest.mark.parametrize(("after", "limit"), [(0, 2), (1, 2), (2, 3), (4, 9), (5, 1), (6, 1)])
async def test_a_page_may_begin_and_end_inside_a_run(store: SqliteStore, after: int, limit: int) -> None:
    """Readers do not see where runs begin."""
    key = await begin(store)
    await store.journal.append([plain(key, 1, 4), plain(key, 5, 2)], NOW)
    expected = [*range(after + 1, 7)][:limit]
    assert expected == [row.position for row in await store.journal.read_rows(key, after, limit)]


async def test_batches_of_one_commit_see_each_other(store: SqliteStore) -> None:
    """What one batch stores is there for the next, of the same producer or of another, in one transaction."""
    key = await begin(store)
    await begin(store, producer="asr")
    again = Batch(key, "main", 1, NOW, [payload(2), payload(3), payload(4)], 2)
    answers = await store.journal.append([plain(key, 1, 3), plain(key, 1, 2, "asr"), again], NOW)
    assert [1, 4, None] == [one.position for one in answers]
    assert [Outcome(duplicate=True), Outcome(duplicate=True), Outcome(6)] == answers[2].outcomes


async def test_a_new_process_finds_where_journals_end(tmp_path: Path) -> None:
    """Positions and seqs are not written anywhere but in the journal, and are known after a restart."""
    path = str(tmp_path / "calls.db")
    store = SqliteStore(path)
    key = await begin(store)
    await begin(store, producer="asr")
    await store.journal.append([plain(key, 1, 3), plain(key, 1, 2, "asr"), plain(key, 4, 1)], NOW)
    await store.close_store()
    store = SqliteStore(path)
    stream = await store.journal.find_session("p", "s")
    assert stream is not None
    assert 6 == stream.position
    opened = [
        await store.journal.open_producer("p", "s", name, validate_config({}), None, NOW) for name in ("main", "asr")
    ]
    assert [(2, 5), (2, 3)] == [(one.epoch, one.next_seq) for one in opened]
    known = [Offer(seq, NOW, payload(seq)) for seq in (2, 4)] + [Offer(3, NOW, payload(3, "other"))]
    outcomes = (await append_batch(store.journal, key, "main", 2, known, NOW)).outcomes
    assert [Outcome(duplicate=True)] * 2 + [Outcome(code="seq_conflict")] == outcomes
    await store.close_store()


async def test_a_close_keeps_where_producers_stand(store: SqliteStore) -> None:
    """What a closed journal's producers have sent is in rows of their own, whatever becomes of the journal's."""
    key = await begin(store)
    await append_batch(store.journal, key, "http", None, [Offer(1, NOW, payload(1))], NOW)
    await store.journal.append([plain(key, 1, 3)], NOW)
    await store.journal.close_session(key, None, "n", NOW + 10**12)
    query = "select name, next_seq from producers order by name"
    found = await store.database.read(lambda connection: connection.rows(query))
    assert [("http", 2), ("main", 4)] == found


async def test_a_job_that_is_refused_changes_nothing(store: SqliteStore) -> None:
    """What a job did to rows at hand before it was refused is not seen by the next one."""
    key = await begin(store)

    def job(_: SqliteConnection) -> None:
        stream = store.database.streams.stream(key)
        assert stream is not None
        stream.position = 99
        store.database.streams.append_server_event(stream, NOW, {"type": "session.reopened"})
        raise Refused("forbidden")

    with pytest.raises(Refused):
        await store.database.write(job)
    (appended,) = await store.journal.append([plain(key, 1, 1)], NOW)
    assert 1 == appended.position


@pytest.mark.parametrize("looks", [False, True])
async def test_events_of_a_job_that_fails_are_not_stored(store: SqliteStore, looks: bool) -> None:
    """Neither where nothing was read, nor where a query has had the runs written that came before it."""
    key = await begin(store)

    def fail(connection: SqliteConnection) -> None:
        connection.streams.append(plain(key, 1, 2), NOW)
        if looks:
            assert connection.streams.load_stream(key + 1) is None
            assert [(2,)] == connection.rows("select count from journal")
        raise RuntimeError("a fault")

    with pytest.raises(RuntimeError):
        await store.database.write(fail)
    assert [] == await runs(store)
    (answer,) = await store.journal.append([plain(key, 1, 1)], NOW)
    assert (1, [(1, 1, "main", 1)]) == (answer.position, await runs(store))


@pytest.mark.parametrize("sessions", [1, 64, 65, 150])
async def test_a_commit_of_any_number_of_runs_is_stored_whole(store: SqliteStore, sessions: int) -> None:
    """One statement or several: each session has its events, in the order of the batches."""
    keys = [await begin(store, f"s{number}") for number in range(sessions)]
    answers = await store.journal.append([plain(key, 1, 2) for key in keys], NOW)
    assert [1] * sessions == [one.position for one in answers]
    assert [(1, 2, "main", 1)] * sessions == await runs(store)


async def test_after_a_failed_commit_rows_are_read_anew(store: SqliteStore) -> None:
    """What was kept at hand of a transaction that failed is forgotten."""
    key = await begin(store)
    await store.journal.append([plain(key, 1, 1)], NOW)
    store.database.writer.pragma("max_page_count", store.database.writer.pragma("page_count"))
    big = Batch(key, "main", 1, NOW, [payload(2, "x" * 200_000)], 2)
    with pytest.raises(StoreUnavailable):
        await store.journal.append([big], NOW)
    store.database.writer.pragma("max_page_count", 2**30)
    (appended,) = await store.journal.append([big], NOW)
    assert (2, 3) == (appended.position, appended.next_seq)
    stream = await store.journal.find_session("p", "s")
    assert stream is not None
    assert 2 == stream.position
