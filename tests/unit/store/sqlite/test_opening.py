"""Who makes or upgrades the file, or writes its log again, is alone with it; others wait."""

from __future__ import annotations

import os
import time
from concurrent.futures import ThreadPoolExecutor
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from voicemem.errors import CannotStart
from voicemem.store.sqlite import files as opening
from voicemem.store.sqlite.backup import restore_backup
from voicemem.store.sqlite.copying import SqliteCopy
from voicemem.store.sqlite.driver import SqliteDatabase
from voicemem.store.sqlite.files import REDO_SCHEMA, REDO_SUFFIX, OpeningLock
from voicemem.store.sqlite.store import SqliteStore

OTHER = "Another process is opening"


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Who would wait is refused at once."""
    monkeypatch.setattr(opening, "WAIT_S", 0)


@pytest.mark.usefixtures("impatient")
def test_nobody_opens_a_file_that_another_makes(path: str) -> None:
    """Neither a server nor a command, a copy or a restore; nothing is written meanwhile."""
    backup = f"{path}.backup"
    SqliteStore(backup).database.close()
    holder = OpeningLock(path)
    holder.hold(alone=True)
    for exclusive in (True, False):
        with pytest.raises(CannotStart, match=OTHER):
            SqliteStore(path, exclusive)
    with pytest.raises(CannotStart, match=OTHER):
        SqliteCopy(path, is_target=True, only_look=False)
    with pytest.raises(CannotStart, match=OTHER):
        restore_backup(backup, path, False, lambda done, total: None)
    assert [end for end in ("", "-wal", ".lock", ".opening") if exists(path + end)] == [".opening"]
    holder.release()
    SqliteDatabase(path).close()


def test_a_lock_that_was_removed_while_another_waited_is_made_again(path: str) -> None:
    """A restore that is refused removes it; who waited must not hold a lock that others no longer see."""
    holder, waiting = OpeningLock(path), OpeningLock(path)
    holder.hold(alone=True)
    with ThreadPoolExecutor(1) as thread:
        held = thread.submit(waiting.hold, alone=True)
        while waiting.descriptor is None:
            time.sleep(0.01)
        os.unlink(f"{path}.opening")
        holder.release()
        held.result()
    assert waiting.descriptor is not None
    assert os.path.samefile(waiting.descriptor, f"{path}.opening")
    waiting.release()


@pytest.mark.usefixtures("impatient")
def test_no_server_starts_while_a_command_works(path: str) -> None:
    """It would write the log again, from under the command that writes into it; other commands work beside it."""
    one = SqliteDatabase(path, exclusive=False)
    with closing(SqliteDatabase(path, exclusive=False)), pytest.raises(CannotStart, match=OTHER):
        SqliteDatabase(path)
    one.close()
    with closing(SqliteDatabase(path)), closing(SqliteDatabase(path, exclusive=False)):
        pass


def test_a_command_makes_good_what_was_cut_short(path: str) -> None:
    """A copy of the log that a start left is written and gone before the command writes: later it would undo that."""
    SqliteDatabase(path).close()
    with closing(apsw.Connection(path + REDO_SUFFIX)) as copy:
        copy.execute(REDO_SCHEMA).fetchall()
        copy.execute("insert into log (content) values (?)", (b"no log that SQLite would read",))
    with closing(SqliteDatabase(path, exclusive=False)):
        assert not exists(path + REDO_SUFFIX)


def test_a_damaged_copy_of_the_log_is_refused(path: str) -> None:
    """A disk lost a part of it: the error says so, and the copy and the log stay as they are."""
    SqliteDatabase(path).close()
    with closing(apsw.Connection(path + REDO_SUFFIX)) as copy:
        copy.execute("create table log (number integer primary key, content blob); insert into log values (1, null)")
    with pytest.raises(CannotStart, match="damaged"):
        SqliteDatabase(path)
    assert exists(path + REDO_SUFFIX)


def test_what_is_half_made_is_made_whole(path: str) -> None:
    """A file without its identity, as a start leaves it that was killed before the last step, gets one by a command."""
    with closing(SqliteDatabase(path)) as made:
        made.writer.execute("delete from meta where name = 'incarnation'")
    store = SqliteStore(path, exclusive=False)
    assert {"incarnation", "cursor_secret"} <= set(store.database.identity)
    store.database.close()


@pytest.mark.parametrize("content", [None, b""])
def test_a_store_that_must_exist_is_not_made(path: str, content: bytes | None) -> None:
    """A file without anything in it is no store, and stays that way."""
    if content is not None:
        Path(path).write_bytes(content)
    for exclusive in (True, False):
        with pytest.raises(CannotStart, match=r"There is no store in .*voicemem serve makes a new one"):
            SqliteStore(path, exclusive, make=False)
    assert (content is not None) == exists(path)
    assert not exists(path) or not os.path.getsize(path)


def exists(path: str) -> bool:
    return os.path.exists(path)


@pytest.mark.parametrize("statement", ["insert", "update", "delete"])
def test_what_a_file_would_have_run_is_not_run(path: str, statement: str) -> None:
    """A trigger in a backup that somebody has changed does nothing, neither while it is restored nor later."""
    backup = f"{path}.backup"
    SqliteStore(backup).database.close()
    with closing(apsw.Connection(backup)) as connection:
        connection.execute("create table ran (id integer)")
        connection.execute(f"create trigger evil after {statement} on meta begin insert into ran values (1); end")
        connection.execute("update meta set value = value")
        before = connection.execute("select count(*) from ran").get
    restore_backup(backup, path, False, lambda done, total: None)
    store = SqliteStore(path)
    for change in (
        "insert into meta values ('a', x'00')",
        "update meta set value = value",
        "delete from meta where name = 'a'",
    ):
        store.database.writer.execute(change)
    assert store.database.writer.execute("select count(*) from ran").get == before
    store.database.close()
