"""Waypoints: whatever a producer's seqs are, the sparse index finds what reading the whole journal would find."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voicemem.store.append_rules import JournalRun
from voicemem.store.runs import WAYPOINT_STRIDE, find_last_seq, find_run, next_stored_seq
from voicemem.store.sqlite.connection import SqliteConnection, insert_runs
from voicemem.store.sqlite.driver import IN_MEMORY, SqliteDatabase

STREAM = 7
rows = SqliteDatabase(IN_MEMORY).streams
PRODUCERS = ["main", "asr", None]
RUNS = st.lists(
    st.tuples(
        st.sampled_from(PRODUCERS),
        st.integers(1, WAYPOINT_STRIDE + 50) | st.just(1),
        st.integers(0, 3).map(lambda hole: 1000 if hole == 3 else 0),
        st.integers(0, 9).map(lambda chance: chance == 0),
    ),
    max_size=40,
)
"""Each with its producer, how many events, how many seqs are left out before, and whether the server began again."""


def journal(given: list[tuple[str | None, int, int, bool]]) -> tuple[SqliteConnection, list[JournalRun]]:
    """A database with these runs, inserted one by one."""
    connection, runs = rows.connection, []
    connection.execute("delete from journal")
    rows.invalidate()
    position, seqs = 1, {"main": 1, "asr": 1}
    for producer, events, hole, anew in given:
        if anew:
            rows.invalidate()
        seq = None if producer is None else seqs[producer] + hole
        run = JournalRun(STREAM, position, producer, seq, 0, [b"%d" % (position + index) for index in range(events)])
        insert_runs(connection.raw, [run.columns(rows.marks_way(run))])
        runs.append(run)
        position += events
        if producer is not None and seq is not None:
            seqs[producer] = seq + events
    return connection, runs


def seqs_of_interest(runs: list[JournalRun]) -> list[int]:
    return sorted({max(1, run.seq + more) for run in runs if run.seq for more in (-1, 0, 1, len(run.payloads) - 1)})


@given(RUNS, st.integers(0, 10))
def test_every_seq_is_found_as_by_reading_everything(given: list[tuple[str | None, int, int, bool]], cut: int) -> None:
    """The run with a seq or before it, the next one, and the last seq; also when the first rows were archived."""
    connection, runs = journal(given)
    left = runs[cut:]
    if cut:
        first = left[0].position if left else 2**62
        connection.execute("delete from journal where position < :first", first=first)
    for producer in ("main", "asr"):
        own = [(run.seq, run) for run in left if run.producer == producer and run.seq is not None]
        assert (own[-1][0] + len(own[-1][1].payloads) - 1 if own else 0) == find_last_seq(connection, STREAM, producer)
        for seq in seqs_of_interest(runs):
            before = [start for start, _ in own if start <= seq]
            after = [start for start, _ in own if start > seq]
            found = find_run(connection, STREAM, producer, seq)
            assert (before[-1] if before else None) == (None if found is None else found.seq)
            assert (after[0] if after else None) == next_stored_seq(connection, STREAM, producer, seq)


def test_a_long_call_has_few_waypoints() -> None:
    """One of a producer in each stride, and none for the server's own events."""
    connection, _ = journal([("main", 1, 0, False), (None, 1, 0, False), ("asr", 2, 0, False)] * 1_000)
    query = "select producer, count(*) from journal where waypoint group by producer order by producer"
    assert [("asr", 16), ("main", 16)] == connection.rows(query)
