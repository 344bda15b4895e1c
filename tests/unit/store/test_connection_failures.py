"""Which connections are in trouble, and what the log says of it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.stores.failing import locked_database
from voicemem.errors import StoreUnavailable
from voicemem.store.database import ConnectionFailures
from voicemem.store.sqlite.store import SqliteStore


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    """What the log says, without how long it lasted."""
    return [one.getMessage().partition(" after ")[0] for one in caplog.records if one.name == "voicemem.store"]


def test_trouble_is_over_when_nothing_is_in_trouble(caplog: pytest.LogCaptureFixture) -> None:
    """What works ends its own trouble alone; the newest reason is told, and the log has one line at either end."""
    troubles = ConnectionFailures()
    troubles.end("a")
    for what, reason in (("a", "First."), ("b", "Second."), ("a", "Third.")):
        troubles.begin(what, reason)
        assert reason == troubles.reason
    troubles.end("a")
    assert (False, True, "Second.") == (troubles.has("a"), troubles.has("b"), troubles.reason)
    troubles.end("b")
    assert troubles.reason is None
    assert ["The store is in trouble: First.", "The store is out of trouble"] == lines(caplog)


async def test_a_file_that_cannot_be_written_is_logged_once(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """However many commits fail there is one line with the reason, and one when the first comes through."""
    store = SqliteStore(str(tmp_path / "v.db"))
    await store.database.write(lambda connection: connection.raw.set_busy_timeout(0))
    with locked_database(str(tmp_path / "v.db")):
        for _ in range(3):
            with pytest.raises(StoreUnavailable):
                await store.probe()
    await store.probe()
    begun = "The store is in trouble: The store cannot be written: BusyError."
    assert [begun, "The store is out of trouble"] == lines(caplog)
    await store.close_store()
