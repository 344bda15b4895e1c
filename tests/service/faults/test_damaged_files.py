"""Pages and rows that come back with other bits than were written (faults 28 and 29)."""

# ruff: noqa: ASYNC240, SIM300 (files are small and no one else waits; asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.callers.producer import open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.services import running_service

SPOKEN = "Line 7 of the call."


async def damaged(path: Path, old: bytes, new: bytes) -> None:
    """A stopped service's database in which these bytes, wherever they stand, have become others."""
    async with running_service(store=f"sqlite:{path}") as app, open_producer(app) as producer:
        await producer.store(*(final_transcript(seq, text=f"Line {seq} of the call.") for seq in range(1, 10)))
    content = path.read_bytes()
    assert old in content
    path.write_bytes(content.replace(old, new))


async def test_damaged_pages(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """29: pages that SQLite cannot read are a 503 for those who need them; the service lives, and nothing crashes."""
    path = tmp_path / "calls.db"
    await damaged(path, b"", b"")
    content = bytearray(path.read_bytes())
    at = content.index(SPOKEN.encode()) // 4096 * 4096
    content[at : at + 8] = b"\xff" * 8
    path.write_bytes(content)
    async with running_service(store=f"sqlite:{path}") as app:
        api = RestClient(app)
        assert (503, "store_unavailable") == (await api.get("/v1/sessions/s/history")).problem
        assert 200 == (await api.get("/livez")).status
    assert "Traceback" not in caplog.text


async def test_a_flipped_bit_in_the_database(tmp_path: Path) -> None:
    """29: what was not said is not served."""
    path = tmp_path / "calls.db"
    await damaged(path, SPOKEN.encode(), SPOKEN.replace("7", "6").encode())
    async with running_service(store=f"sqlite:{path}") as app:
        assert (503, "session_set_aside") == (await RestClient(app).get("/v1/sessions/s/history")).problem


async def test_a_damaged_event(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """29: an event that cannot be read any more sets its session aside, and is no fault of the program."""
    path = tmp_path / "calls.db"
    await damaged(path, b'"' + SPOKEN.encode(), b"!" + SPOKEN.encode())
    async with running_service(store=f"sqlite:{path}") as app:
        assert (503, "session_set_aside") == (await RestClient(app).get("/v1/sessions/s/history")).problem
    assert not [record for record in caplog.records if record.exc_info]


async def test_a_damaged_configuration(tmp_path: Path) -> None:
    """29: a configuration that cannot be read is that session's trouble alone."""
    path = tmp_path / "calls.db"
    async with running_service(store=f"sqlite:{path}") as app:
        await RestClient(app).create("s", name="damaged")
        await RestClient(app).create("t", name="whole")
    path.write_bytes(path.read_bytes().replace(b'"damaged"', b'!damaged"'))
    async with running_service(store=f"sqlite:{path}") as app:
        assert 200 == (await RestClient(app).get("/v1/sessions/t")).status
