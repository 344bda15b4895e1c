"""Erased content leaves the file: tables, free pages, the log; in small steps that a crash may interrupt."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import random
from collections.abc import AsyncIterator, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import apsw
import pytest

from tests.support.profiles import seeds
from tests.support.stores.contract import append_batch
from voicemem.config.session import validate_config
from voicemem.errors import StoreUnavailable
from voicemem.store import upkeep
from voicemem.store.append_rules import Batch, Offer
from voicemem.store.outbox import Attempt
from voicemem.store.port import Store
from voicemem.store.records import Snapshot
from voicemem.store.sqlite import store as sqlite_store
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore
from voicemem.store.streams import SessionEnding
from voicemem.store.upkeep import PORTION_BYTES, PORTION_ROWS, Portion

NOW = 1_778_390_400_000
END = SessionEnding(NOW, "MARK reason")
HOUR_MS = 3_600_000
GIVEN: dict[str, Any] = {
    "name": "MARK name",
    "user_id": "MARK user",
    "labels": {"MARK label": "MARK value"},
    "llm": {"api_key": "MARK key", "system_messages": [{"role": "system", "content": "MARK prompt"}]},
    "webhook": {"url": "https://MARK.example/hook", "secret": "MARK secret"},
}


@pytest.fixture
def path(tmp_path: Path) -> str:
    return f"{tmp_path}/calls.db"


@pytest.fixture
async def store(path: str) -> AsyncIterator[SqliteStore]:
    """A store on a file; a test may close it and open another."""
    store = SqliteStore(path)
    yield store
    if not store.database.closed:
        await store.close_store()


def on_disk(path: str, mark: bytes = b"MARK") -> dict[str, int]:
    """How often the mark stands in the database and in the files beside it."""
    files = sorted(Path(path).parent.glob(f"{Path(path).name}*"))
    return {
        file.name.removeprefix(Path(path).name): count for file in files if (count := file.read_bytes().count(mark))
    }


def marked(seqs: range, size: int = 40) -> list[Offer]:
    return [Offer(seq, NOW, b'{"type":"metric","seq":%d,"text":"%s"}' % (seq, b"MARK " * (size // 5))) for seq in seqs]


async def begin(store: Store, session_id: str = "s", events: int = 20, given: dict[str, Any] | None = None) -> int:
    """A running session with the mark in everything that producers can give, each event in a row of its own."""
    opened = await store.journal.open_producer(
        "p", session_id, "MARK producer", validate_config(GIVEN if given is None else given), None, NOW
    )
    for one in marked(range(1, events + 1)):
        await append_batch(store.journal, opened.stream.key, "MARK producer", None, [one], NOW)
    await store.journal.save_snapshot(opened.stream.key, Snapshot(events, 1, b"MARK state " * 2_000))
    return opened.stream.key


async def end(store: Store, key: int, attempts: int = 2) -> int:
    """End it, and try to deliver its delivery."""
    assert await store.journal.close_session(key, END, f"notice {key}", NOW) is not None
    for number in range(attempts):
        (delivery,) = await store.outbox.claim_deliveries(NOW + number, 0, {}, 1)
        await store.outbox.freeze_payload(delivery, b"MARK payload " * 3_000)
        answered = Attempt(NOW, 5, 500, None, "MARK excerpt")
        assert await store.outbox.finish_delivery(
            delivery, answered, "pending" if number + 1 < attempts else "delivered", NOW
        )
    return key


async def archive(store: Store, key: int) -> int:
    """Compact its journal."""
    while await store.compaction.compact(key):
        pass
    return key


async def sweep(store: Store) -> int:
    """Everything that the background does for erased sessions; the number of its steps."""
    steps = 0
    while keys := await store.retention.claim_erased("", NOW, 1, 50):
        while await store.retention.delete_erased(keys):
            steps += 1
    while not await store.retention.finish_erased():  # the log is being moved into the file just now
        pass
    return steps


# What leaves


async def test_the_files_hold_nothing_of_erased_sessions(store: SqliteStore, path: str) -> None:
    """Running, ended, delivered, pending and compacted sessions: the mark is in no file, the names of sessions are."""
    keys = [
        await begin(store, "running"),
        await end(store, await begin(store, "delivered")),
        await archive(store, await end(store, await begin(store, "compacted"))),
        await end(store, await begin(store, "pending"), attempts=0),
    ]
    assert sum(on_disk(path).values()) > 100
    for key in keys:
        await store.retention.erase(key, NOW)
    await sweep(store)
    assert {} == on_disk(path)
    assert {"", "-shm"} >= on_disk(path, b"delivered").keys() > set()
    with closing(apsw.Connection(path)) as reader:
        rows = reader.execute("select id, state, config, reason from streams order by key").fetchall()
        assert [(name, "erased", b"{}", None) for name in ("running", "delivered", "compacted", "pending")] == rows
        assert [] == reader.execute("select * from retention").fetchall()


async def test_what_is_not_erased_stays(store: SqliteStore, path: str) -> None:
    """Other sessions read as before, theirs and the operator's deliveries too."""
    await store.directory.set_operator_endpoint("https://operator.example/", "operator's")
    gone, kept = [await begin(store, name) for name in ("gone", "kept")]
    for key in (gone, kept):
        assert await store.journal.close_session(key, END, f"notice {key}", NOW) is not None
    for delivery in await store.outbox.claim_deliveries(NOW, 0, {}, 10):
        await store.outbox.finish_delivery(delivery, Attempt(NOW, 5, 200, None, "ok"), "delivered", None)
    before = (
        await store.journal.read_rows(kept, 0, 100),
        await store.deliveries.list_deliveries(kept),
        await store.journal.find_session("p", "kept"),
    )
    await store.retention.erase(gone, NOW)
    await sweep(store)
    assert before == (
        await store.journal.read_rows(kept, 0, 100),
        await store.deliveries.list_deliveries(kept),
        await store.journal.find_session("p", "kept"),
    )
    assert 2 == len(before[1])


@pytest.mark.slow
async def test_an_erase_is_small_and_hides_everything_at_once(store: SqliteStore) -> None:
    """The mark changes a row or two however long the call was; nothing can be read or sent from then on."""
    key = await begin(store, events=500)
    assert await store.journal.close_session(key, END, "notice", NOW) is not None
    (delivery,) = await store.outbox.claim_deliveries(NOW, 0, {}, 1)
    before = store.database.writer.total_changes()
    await store.retention.erase(key, NOW)
    assert store.database.writer.total_changes() - before <= 3
    assert await store.journal.find_session("p", "s") is None
    assert ([], [], None) == (
        await store.journal.read_rows(key, 0, 100),
        await store.deliveries.list_deliveries(key),
        await store.journal.load_snapshot(key, 1, 10**6),
    )
    assert ([], None) == (
        await store.outbox.claim_deliveries(NOW + HOUR_MS, 0, {}, 10),
        await store.outbox.next_delivery_ms(),
    )
    assert await store.outbox.freeze_payload(delivery, b"MARK late") is None
    assert not await store.outbox.finish_delivery(delivery, Attempt(NOW, 5, 500, None, "MARK late"), "pending", NOW)
    await sweep(store)
    assert [] == await store.database.read(lambda connection: connection.rows("select 1 from attempts"))


# How it leaves


@pytest.mark.slow
async def test_content_is_deleted_a_portion_at_a_time(store: SqliteStore) -> None:
    """No step deletes more rows than a portion has, and none more than a portion of bytes and one row."""
    keys = [await begin(store, "long", events=3 * PORTION_ROWS)]
    opened = await store.journal.open_producer("p", "large", "main", validate_config({}), None, NOW)
    keys.append(opened.stream.key)
    for one in marked(range(1, 9), size=PORTION_BYTES // 3):
        await append_batch(store.journal, opened.stream.key, "main", None, [one], NOW)
    for key in keys:
        await store.retention.erase(key, NOW)
    writer, changed = store.database.writer, [0]

    async def step() -> Sequence[int]:
        before = writer.total_changes()
        left = await store.retention.delete_erased(keys)
        changed.append(writer.total_changes() - before)
        return left

    while await step():
        assert changed[-1] <= PORTION_ROWS
    assert 3 * PORTION_ROWS + 8 <= sum(changed)
    assert 6 <= len([count for count in changed if count])


def test_a_portion_is_bounded_by_rows_and_by_bytes() -> None:
    """The row that goes over the bound is the last one; over several tables the bound is one."""
    portion = Portion()
    assert [1, 2] == portion.select([(1, PORTION_BYTES - 1), (2, 10), (3, 10)])
    assert ([], True) == (portion.select([(4, 1)]), portion.is_full)
    portion = Portion()
    portion.select((number, 1) for number in range(PORTION_ROWS - 1))
    assert ([7], True) == (portion.select([(7, 1), (8, 1)]), portion.has_begun)


async def test_a_portion_ends_after_its_time(store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """With no time at all each deletes from one table; a session that is done is not claimed again while others are."""
    monkeypatch.setattr(upkeep, "PORTION_S", 0)
    keys = [await end(store, await begin(store, name)) for name in ("one", "two")]
    for key in keys:
        await store.retention.erase(key, NOW)
    left: Sequence[int] = keys
    seen = list[tuple[int, list[int]]]()
    while left := await store.retention.delete_erased(left):
        seen.append((len(left), await store.retention.claim_erased("", NOW, 1, 50)))
    assert [len(claimed) for _, claimed in seen] == [count for count, _ in seen]
    assert 4 < [count for count, _ in seen].count(2)
    assert 4 < [count for count, _ in seen].count(1)
    assert await store.retention.finish_erased()
    assert {} == on_disk(path)


@pytest.mark.slow
async def test_a_sweep_goes_on_after_a_crash(store: SqliteStore, path: str) -> None:
    """Wherever it was interrupted: the next process finds what is left, and comes to the same end."""
    for name in ("one", "two"):
        await end(store, await begin(store, name, events=2 * PORTION_ROWS))
    keys = [stream.key for name in ("one", "two") if (stream := await store.journal.find_session("p", name))]
    for key in keys:
        await store.retention.erase(key, NOW)
    for _ in range(100):
        await store.close_store()  # as far as the file is concerned, a kill between two transactions
        store = SqliteStore(path)
        assert [[], []] == [await store.journal.read_rows(key, 0, 10) for key in keys]
        if not await store.retention.delete_erased(await store.retention.claim_erased("", NOW, 1, 50)):
            break
    await store.close_store()
    store = SqliteStore(path)
    assert [] == await store.retention.claim_erased("", NOW, 1, 50)
    assert await store.retention.finish_erased()
    assert {} == on_disk(path)
    await store.close_store()


async def test_a_reader_holds_up_the_log_but_not_the_writer(store: SqliteStore, path: str) -> None:
    """While someone reads an old state the log cannot be cut, which is said at once; when it is over it can."""
    key = await begin(store)
    with closing(apsw.Connection(path)) as reader:
        reader.execute("begin")
        reader.execute("select * from streams").fetchall()
        await store.retention.erase(key, NOW)
        while await store.retention.delete_erased([key]):
            pass
        assert not await store.retention.finish_erased()
        await begin(store, "other", given={}, events=1)
        reader.execute("commit")
    assert {} != on_disk(path, b"MARK name")
    assert await store.retention.finish_erased()
    assert {} == on_disk(path, b"MARK name")


async def test_the_log_is_cut_once_in_a_while(store: SqliteStore, path: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Each cut holds up commits, so what is erased soon after one stays in the log until the next, as its mark does."""
    for name, left in (("one", []), ("two", ["-wal"])):
        await store.retention.erase(await begin(store, name), NOW)
        await sweep(store)
        assert left == list(on_disk(path))
    monkeypatch.setattr(sqlite_store, "CLEAR_AGAIN_S", 0)
    await sweep(store)
    assert {} == on_disk(path)


@pytest.mark.parametrize("kind", ["memory:", "sqlite:"])
async def test_two_workers_do_no_harm(kind: str, path: str) -> None:
    """Both sweep, expire and compact the same sessions; everything is done once, and nothing else is touched."""
    stores = [InMemoryStore()] * 2 if kind == "memory:" else [SqliteStore(path), SqliteStore(path, exclusive=False)]
    first, second = stores
    keys = [await begin(first, name, given={"reopen_window": 0}) for name in ("gone", "kept")]
    assert await first.journal.close_session(keys[1], END, "notice", NOW) is not None
    before = await first.journal.read_rows(keys[1], 0, 100)
    await first.retention.erase(keys[0], NOW)
    for _ in range(4):
        for each in (first, second):
            await each.retention.delete_erased(keys[:1])
            await each.compaction.compact(keys[1])
    for each in (first, second):
        assert await each.retention.finish_erased()
        assert (before, [], []) == (
            await each.journal.read_rows(keys[1], 0, 100),
            await each.journal.read_rows(keys[0], 0, 10),
            await each.compaction.claim_compactable("", NOW, 1, 10),
        )
    for each in dict.fromkeys(stores):
        await each.close_store()


# Many sessions beside each other


@pytest.mark.slow
@pytest.mark.parametrize("seed", seeds(3))
async def test_no_session_leaves_a_trace_among_many(store: SqliteStore, path: str, seed: int) -> None:
    """Sessions that grow beside others, whose rows SQLite moves from page to page, and are then erased.

    Copies that it left in unused parts of pages go with the vacuum that docs/storage.md names; nothing else has any.
    """
    chance = random.Random(seed)
    keys = []
    for number in range(150):
        mark = "MARK" if number % 3 else "kept"
        given = {"labels": {"n": mark * chance.randint(1, 100)}, "llm": {"api_key": mark * chance.randint(1, 40)}}
        opened = await store.journal.open_producer("p", f"s{number}", mark, validate_config(given), None, NOW)
        keys.append(opened.stream.key)
    for step in range(900):
        number = chance.randrange(len(keys))
        mark = "MARK" if number % 3 else "kept"
        text = mark.encode() * chance.randint(1, 200)
        if step % 3:
            await store.journal.append(
                [Batch(keys[number], mark, None, NOW, offers=[Offer(None, NOW, b'"%s"' % text)])], NOW
            )
        else:
            patch = validate_config({"labels": {"n": text.decode()}, "llm": {"api_key": text[:100].decode()}})
            await store.journal.change_config(keys[number], patch, b'"%s"' % text, NOW)
            await store.journal.save_snapshot(keys[number], Snapshot(1, 1, text))
    for number, key in enumerate(keys):
        assert (
            await store.journal.close_session(
                key, SessionEnding(NOW, "MARK" if number % 3 else "kept"), f"n{number}", NOW
            )
            is not None
        )
        if number % 2:
            await archive(store, key)
    for key in chance.sample([key for number, key in enumerate(keys) if number % 3], 100):
        await store.retention.erase(key, NOW)
    await sweep(store)
    assert on_disk(path).keys() <= {""}
    store.database.writer.execute("vacuum").fetchall()
    store.database.writer.execute("pragma wal_checkpoint(truncate)").fetchall()
    assert {} == on_disk(path)
    assert on_disk(path, b"kept")
    assert "ok" == store.database.writer.pragma("integrity_check")


async def test_a_damaged_archive_is_not_served(store: SqliteStore) -> None:
    """Whoever reads it is told; the other sessions are well."""
    keys = [await archive(store, await end(store, await begin(store, name), attempts=0)) for name in ("bad", "good")]
    damaged = "cast(substr(runs, 1, 99) || x'00ff' || substr(runs, 102) as blob)"
    query = f"update archives set runs = {damaged} where stream = ?"
    await store.database.write(lambda connection: connection.raw.execute(query, keys[:1]).fetchall())
    with pytest.raises(StoreUnavailable, match="damaged"):
        await store.journal.read_rows(keys[0], 0, 100)
    assert 21 == len(await store.journal.read_rows(keys[1], 0, 100))
