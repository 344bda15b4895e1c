"""The log that a start finds is brought onto the disk first, and a start that is cut short there is made good."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import shutil
from contextlib import closing
from pathlib import Path

import apsw
import pytest

from voicemem.store.sqlite.files import LOG_CHUNK_BYTES, REDO_SCHEMA, REDO_SUFFIX, rewrite_log

ROWS = 40


@pytest.fixture
def path(tmp_path: Path) -> Path:
    """A database that was copied while it was open, so that all of its rows are in the log."""
    path = tmp_path / "calls.db"
    with closing(apsw.Connection(str(tmp_path / "open.db"))) as connection:
        connection.execute("pragma journal_mode = wal").fetchall()
        connection.execute("create table t (x)")
        for _ in range(ROWS):
            connection.execute("insert into t values (randomblob(9000))")
        for suffix in ("", "-wal"):
            shutil.copy(tmp_path / f"open.db{suffix}", f"{path}{suffix}")
    return path


def count(path: Path) -> int:
    with closing(apsw.Connection(str(path))) as connection:
        assert "ok" == connection.pragma("integrity_check")
        return int(connection.execute("select count(*) from t").get)


def test_the_log_stays_what_it_was(path: Path) -> None:
    """It is written again with the same bytes, whatever its size, and nothing else is left behind."""
    log = Path(f"{path}-wal")
    before = log.read_bytes()
    assert len(before) > LOG_CHUNK_BYTES
    assert len(before) % LOG_CHUNK_BYTES
    rewrite_log(str(path))
    assert before == log.read_bytes()
    assert not Path(f"{path}{REDO_SUFFIX}").exists()
    assert ROWS == count(path)


def test_a_start_that_was_cut_short_is_made_good(path: Path) -> None:
    """The copy counts, whatever became of the log: damaged, longer, or gone."""
    log, redo = Path(f"{path}-wal"), f"{path}{REDO_SUFFIX}"
    whole = log.read_bytes()
    for left in (whole[:5_000], bytes(len(whole) + 999), None):
        with closing(apsw.Connection(redo)) as copy:
            copy.execute(REDO_SCHEMA).fetchall()
            for start in range(0, len(whole), LOG_CHUNK_BYTES):
                copy.execute("insert into log (content) values (?)", (whole[start : start + LOG_CHUNK_BYTES],))
        log.unlink()
        if left is not None:
            log.write_bytes(left)
        rewrite_log(str(path))
        assert whole == log.read_bytes()
    assert ROWS == count(path)


def test_a_copy_that_was_not_finished_is_made_again(path: Path) -> None:
    """An empty copy says nothing about the log."""
    before = Path(f"{path}-wal").read_bytes()
    with closing(apsw.Connection(f"{path}{REDO_SUFFIX}")) as copy:
        copy.execute(REDO_SCHEMA).fetchall()
    rewrite_log(str(path))
    assert before == Path(f"{path}-wal").read_bytes()
    assert not Path(f"{path}{REDO_SUFFIX}").exists()


@pytest.mark.parametrize("log", [None, b""])
def test_without_a_log_there_is_nothing_to_do(tmp_path: Path, log: bytes | None) -> None:
    """No file is made beside a database that was closed."""
    if log is not None:
        (tmp_path / "calls.db-wal").write_bytes(log)
    rewrite_log(str(tmp_path / "calls.db"))
    assert not list(tmp_path.glob(f"*{REDO_SUFFIX}*"))
