"""The file of the index can be lost or damaged at any time, and keeps nothing of what is erased."""

from __future__ import annotations

import stat
from collections.abc import AsyncIterator, Callable
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from tests.support.stores.contract import NOW, append_offers, offers
from tests.support.stores.heard import found_texts, index_call, passages, reindex
from voicemem.errors import StoreUnavailable
from voicemem.store.database import Connection, Row
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.sqlite.words import INDEX_VERSION

SECRETS = [f"quixotic{number} marzipan" for number in range(60)]


@pytest.fixture
async def path(tmp_path: Path) -> Path:
    return tmp_path / "voicemem.db"


@pytest.fixture
async def store(path: Path) -> AsyncIterator[SqliteStore]:
    opened = SqliteStore(str(path))
    yield opened
    await opened.close_store()


def index_of(path: Path) -> Path:
    return path.with_name("voicemem.db-memories")


async def test_the_index_is_a_private_file_beside_the_store(store: SqliteStore, path: Path) -> None:
    """It is made when it is first used, and only its owner may read it."""
    assert not index_of(path).exists()
    await index_call(store, "s", "walnuts")
    assert stat.S_IMODE(index_of(path).stat().st_mode) == 0o600


def no_file(index: Path) -> None:
    index.unlink()


def garbage(index: Path) -> None:
    index.write_bytes(b"no database at all" * 1000)


def empty(index: Path) -> None:
    index.write_bytes(b"")


def cut_off(index: Path) -> None:
    index.write_bytes(index.read_bytes()[:5000])


def old(index: Path) -> None:
    with closing(apsw.Connection(str(index))) as connection:
        connection.pragma("user_version", INDEX_VERSION - 1)


def newer(index: Path) -> None:
    with closing(apsw.Connection(str(index))) as connection:
        connection.pragma("user_version", INDEX_VERSION + 1)


def of_another_store(index: Path) -> None:
    with closing(apsw.Connection(str(index))) as connection:
        connection.execute("update meta set value = x'00' where name = 'store'")


def without_tables(index: Path) -> None:
    with closing(apsw.Connection(str(index))) as connection:
        connection.execute("drop table meta")


@pytest.mark.parametrize(
    "harm",
    [no_file, garbage, empty, cut_off, old, newer, of_another_store, without_tables],
    ids=lambda one: one.__name__,
)
async def test_an_index_that_is_of_no_use_is_begun_anew(path: Path, harm: Callable[[Path], None]) -> None:
    """At the next start all sessions are behind, and are indexed again; the store is as it was."""
    store = SqliteStore(str(path))
    key = await index_call(store, "s", "walnuts")
    await append_offers(store, key, *offers(1, 2))
    await reindex(store, key, {1: passages(1, "walnuts")}, position=2)
    await store.close_store()
    harm(index_of(path))
    store = SqliteStore(str(path))
    try:
        assert await found_after_damage(store) == []
        assert [key] == [stream.key for stream in (await store.transcript_index.check_index(0, 10)).behind]
        assert [key] == await reindex(store, key, {1: passages(1, "almonds")}, position=3, since=2)
        assert await reindex(store, key, {1: passages(1, "walnuts")}, position=2) == []
        assert await found_texts(store, "walnuts") == ["walnuts"]
    finally:
        await store.close_store()


async def found_after_damage(store: SqliteStore) -> list[str]:
    """What is found once the damage was noticed: a search may be the first to meet it."""
    try:
        return await found_texts(store, "walnuts")
    except StoreUnavailable:
        assert store.transcript_index.index_resets == 1
        return await found_texts(store, "walnuts")


async def test_an_index_that_is_damaged_while_it_is_used_is_begun_anew(store: SqliteStore, path: Path) -> None:
    """Whoever meets the damage is told to try again; the store goes on, and says that all is to be indexed again."""
    key = await index_call(store, "s", *SECRETS)
    await reindex(store, key, {1: passages(1, *SECRETS)}, position=2)
    store.index_file.release()
    content = bytearray(index_of(path).read_bytes())
    half = len(content) // 2
    content[half:] = b"\xa5" * (len(content) - half)
    index_of(path).write_bytes(content)
    index_of(path).with_name("voicemem.db-memories-wal").unlink(missing_ok=True)
    with pytest.raises(StoreUnavailable):
        await found_texts(store, "marzipan")
    assert store.transcript_index.index_resets == 1
    assert await found_texts(store, "marzipan") == []
    assert await reindex(store, key, {1: passages(1, "walnuts")}, position=2) == []
    assert await found_texts(store, "walnuts") == ["walnuts"]


def a_folder(index: Path) -> None:
    index.mkdir()


def a_dangling_link(index: Path) -> None:
    index.symlink_to(index.with_name("nowhere") / "index")


@pytest.mark.parametrize("block", [a_folder, a_dangling_link], ids=lambda one: one.__name__)
async def test_an_index_that_cannot_be_opened_is_named(
    store: SqliteStore, path: Path, block: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    """In the refusal, and once in the log, with what to do; once that is done it is made and used."""
    block(index_of(path))
    for _ in range(2):
        with pytest.raises(StoreUnavailable, match=str(index_of(path))):
            await found_texts(store, "walnuts")
    (line,) = [record.getMessage() for record in caplog.records if str(index_of(path)) in record.getMessage()]
    assert "move away what is there" in line
    index_of(path).rename(path.with_name("moved"))
    await index_call(store, "s", "walnuts")
    assert await found_texts(store, "walnuts") == ["walnuts"]


def on_disk(path: Path, word: bytes = b"quixotic") -> dict[str, int]:
    """How often a word stands in each file of the store that has it."""
    counts = {file.name: file.read_bytes().count(word) for file in path.parent.iterdir()}
    return {name: count for name, count in counts.items() if count}


async def erase(store: SqliteStore, *keys: int) -> None:
    for key in keys:
        await store.retention.erase(key, NOW)
    while claimed := await store.retention.claim_erased("", NOW, 1, 50):
        while await store.retention.delete_erased(claimed):
            pass
    assert await store.retention.finish_erased()


async def test_no_word_of_an_erased_session_is_in_any_file(store: SqliteStore, path: Path) -> None:
    """Not in the index, nor in its log; what others said stays. Replaced messages leave nothing either."""
    await index_call(store, "other", *(f"walnut{number}" for number in range(200)))
    keys = [await index_call(store, f"s{number}", *SECRETS) for number in range(3)]
    await reindex(store, keys[0], {1: passages(1, *SECRETS[:20])}, position=2)
    await index_call(store, "later", *(f"almond{number}" for number in range(200)))
    assert sum(on_disk(path).values()) > 100
    await erase(store, *keys)
    assert on_disk(path) == {}
    assert on_disk(path, b"marzipan") == {}
    assert sorted(await found_texts(store, "walnut7", limit=2)) == ["walnut7", "walnut8"]


async def test_a_session_that_was_erased_without_the_index_leaves_it_at_the_next_look(path: Path) -> None:
    """As when a process ended between the two."""
    store = SqliteStore(str(path))
    key = await index_call(store, "s", *SECRETS)
    await store.close_store()
    kept = index_of(path).read_bytes()
    store = SqliteStore(str(path))
    await erase(store, key)
    await store.close_store()
    index_of(path).write_bytes(kept)
    store = SqliteStore(str(path))
    assert len((await store.transcript_index.check_index(0, 10)).behind) == 0
    assert await found_texts(store, "marzipan") == []
    await store.close_store()


async def test_users_share_no_words_of_the_index(store: SqliteStore) -> None:
    """A user's words are marked as theirs, so that a search reads nothing of what others said."""
    for user in ("ann", "bob"):
        await index_call(store, user, "I like walnuts.", given={"user_id": user})

    def found(connection: Connection) -> list[Row]:
        connection.execute("create virtual table temp.vocabulary using fts5vocab (main, words, col)")
        return connection.rows("select col, doc from vocabulary where term like '%walnut' order by col")

    assert await store.index_file.write(found) == [("own_said", 1), ("own_said", 1), ("said", 2)]
    assert len(await found_texts(store, "walnut", user_id="ann")) == 1
    assert len(await found_texts(store, "walnut")) == 2


async def test_a_restored_backup_is_another_store(path: Path) -> None:
    """Its index is removed with the other files of what it replaces."""
    from voicemem.store.sqlite.backup import back_up, restore_backup

    store = SqliteStore(str(path))
    await index_call(store, "s", "walnuts")
    await store.close_store()
    back_up(str(path), f"{path}.backup", False, lambda done, total: None)
    restore_backup(f"{path}.backup", str(path), True, lambda done, total: None)
    assert not index_of(path).exists()
