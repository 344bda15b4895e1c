"""The words of memories in the store's own file: what goes is in no file any more, and other words are made again."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import apsw
import pytest

from tests.support.stores.contract import NOW
from tests.support.stores.memories import delete_content, found, memory_of, one, remember, session_of, stream_of, write
from voicemem.errors import CannotStart
from voicemem.store.memories import MAX_ROWS, MemoryRow, tombstone
from voicemem.store.port import Store
from voicemem.store.sqlite import words as memory_words
from voicemem.store.sqlite.backup import back_up, restore_backup
from voicemem.store.sqlite.store import InMemoryStore, SqliteStore

CHECK_WORDS = "insert into memory_words (memory_words) values ('integrity-check')"
COUNT_ROWS = "select count(*) from memory_words_docsize"


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(str(tmp_path / "voicemem.db"))
    yield opened
    if not opened.database.closed:
        await opened.close_store()


def on_disk(store: SqliteStore, word: bytes = b"quixotic") -> dict[str, int]:
    """How often a word stands in each file of the store that has it."""
    counts = {file.name: file.read_bytes().count(word) for file in Path(store.database.path).parent.iterdir()}
    return {name: count for name, count in counts.items() if count}


async def indexed(store: SqliteStore) -> int:
    """How many memories have words; the index is in order."""
    await store.database.write(lambda connection: connection.rows(CHECK_WORDS))
    return int(await store.database.read(lambda connection: connection.one(COUNT_ROWS)[0]))


async def fill(store: Store, session_id: str, count: int = 3 * MAX_ROWS, word: str = "quixotic") -> int:
    """Memories of a session, each with a word of its own; the session's key."""
    for first in range(0, count, MAX_ROWS):
        stream = await session_of(store, session_id)
        made = [
            memory_of(stream, f"{session_id} {number}", f"{word}{number} {word} marzipan", topics=(f"{word}{number}",))
            for number in range(first, min(count, first + MAX_ROWS))
        ]
        assert await write(store, stream, *made) is not None
    return (await session_of(store, session_id)).key


async def test_no_word_of_an_erased_session_is_in_any_file(store: SqliteStore) -> None:
    """Not in its rows, nor in its words, nor in the log; what others have stays and is found."""
    kept = await fill(store, "kept", 100, "walnut")
    keys = [await fill(store, f"s{number}") for number in range(2)]
    await fill(store, "later", 60, "almond")
    assert sum(on_disk(store).values()) > 100
    for key in keys:
        await store.retention.erase(key, NOW)
    assert await store.retention.claim_erased("", NOW, 1, 50)
    assert await delete_content(store, keys) >= 2 * 60 / rows_in_a_portion()
    assert await store.retention.finish_erased()
    assert {} == on_disk(store)
    assert ["kept 7"] == await found(store, "walnut7")
    assert 100 == len([one for one in await found(store, "walnut", limit=1000) if one.startswith("kept")])
    assert 160 == await indexed(store)
    await store.retention.erase(kept, NOW)
    await delete_content(store, [kept])
    assert 60 == await indexed(store)


def rows_in_a_portion() -> int:
    from voicemem.store.retention import MEMORIES

    return MEMORIES


async def test_no_word_of_a_removed_memory_is_in_any_file(store: SqliteStore) -> None:
    """Nor of one that was edited, once the background has come by; its session lives on."""
    await fill(store, "kept", 100, "walnut")
    await fill(store, "s")
    for number in range(3 * MAX_ROWS):
        stream, row = await session_of(store, "s"), await one(store, f"s {number}")
        changed = tombstone(row, stream.position + 1, NOW) if number % 2 else memory_of(stream, row.id, "pecans")
        assert await write(store, stream, changed) is not None
    await fill(store, "later", 60, "almond")
    assert await store.retention.finish_erased()
    assert {} == on_disk(store)
    assert 30 == len(await found(store, "pecans"))
    assert 190 == await indexed(store)


async def test_single_removals_clear_the_file_now_and_then(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """The file is read as a whole for that, so not for each of them; the next time is not forgotten."""
    monkeypatch.setattr("voicemem.store.sqlite.store.CLEAR_AGAIN_S", float("inf"))
    for number in range(2):
        row = await remember(store, "m", f"quixotic{number}")
        await write(store, await stream_of(store), tombstone(row, row.position + 1, NOW))
        assert await store.retention.finish_erased()
    assert {} != on_disk(store)
    monkeypatch.setattr("voicemem.store.sqlite.store.CLEAR_AGAIN_S", 0.0)
    assert await store.retention.finish_erased()
    assert {} == on_disk(store)


async def test_words_are_made_again_when_they_are_made_otherwise(
    store: SqliteStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a program of another version, at its start; what was written before is found and can be removed."""
    await fill(store, "s")
    monkeypatch.setattr(memory_words, "BATCH", 7)
    for version in (999, 1):
        monkeypatch.setattr(memory_words, "WORDS_VERSION", version)
        await store.close_store()
        store = SqliteStore(store.database.path)
        stream = await session_of(store, "s")
        row = await one(store, f"s {version % 60}")
        assert row.text.split()[0] in f"quixotic{version % 60}"
        assert [row.id] == (await found(store, f"quixotic{version % 60}"))[:1]
        assert await write(store, stream, tombstone(row, stream.position + 1, NOW)) is not None
    assert 58 == await indexed(store)
    await store.close_store()


async def test_words_that_cannot_be_made_are_no_start(store: SqliteStore, monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing of them is changed then, and the file is free for the next start."""
    await fill(store, "s")
    await store.close_store()

    def fail(words: memory_words.SqliteMemoryWords, row: MemoryRow) -> dict[str, str]:
        raise apsw.FullError("the disk is full")

    with monkeypatch.context() as full:
        full.setattr(memory_words, "WORDS_VERSION", 999)
        full.setattr(memory_words.SqliteMemoryWords, "words_of", fail)
        with pytest.raises(CannotStart, match="words of memories cannot be made again: the disk is full"):
            SqliteStore(store.database.path)
    again = SqliteStore(store.database.path)
    assert ["s 7"] == await found(again, "quixotic7", limit=1)
    assert 60 == await indexed(again)
    await again.close_store()


async def test_a_restored_backup_finds_its_memories(store: SqliteStore) -> None:
    """Though it is another store."""
    await fill(store, "s")
    path = store.database.path
    await store.close_store()
    back_up(path, f"{path}.backup", False, lambda done, total: None)
    restore_backup(f"{path}.backup", path, True, lambda done, total: None)
    restored = SqliteStore(path)
    assert store.database.identity["incarnation"] != restored.database.identity["incarnation"]
    assert ["s 7"] == await found(restored, "quixotic7", limit=1)
    row = await one(restored, "s 7")
    assert await write(restored, await session_of(restored, "s"), tombstone(row, 61, NOW)) is not None
    assert 59 == await indexed(restored)
    await restored.close_store()


async def test_a_store_in_memory_forgets_too() -> None:
    """There is no file to be cleared."""
    store = InMemoryStore()
    row = await remember(store, "m")
    await write(store, await stream_of(store), tombstone(row, 2, NOW))
    assert await store.retention.finish_erased()
    assert [] == [name for name in await names_in_meta(store) if name == "removed"]
    await store.close_store()


async def names_in_meta(store: SqliteStore) -> list[str]:
    return [name for (name,) in await store.database.read(lambda connection: connection.rows("select name from meta"))]
