"""A store that was put back to an older state under its producers (fault 36)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import shutil
from pathlib import Path

import apsw

from tests.support.callers.producer import connected_producer, open_producer
from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript
from tests.support.services import running_service


def put_back(backup: Path, path: Path) -> None:
    """Replace a database by an older copy of it, which from now on is another store."""
    for ending in ("", "-wal", "-shm"):
        Path(f"{path}{ending}").unlink(missing_ok=True)
    shutil.copy(backup, path)
    connection = apsw.Connection(str(path))
    connection.execute("update meta set value = randomblob(16) where name = 'incarnation'")
    connection.close()


async def test_an_older_backup(tmp_path: Path) -> None:
    """36: a producer sees another incarnation and a lower next_seq, says from where it can go on, and the gap shows."""
    path, backup = tmp_path / "calls.db", tmp_path / "backup.db"
    async with running_service(store=f"sqlite:{path}") as app, connected_producer(app) as producer:
        ready = await producer.open()
        await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
        await producer.open("t")
        cursor = (await RestClient(app).get("/v1/sessions?limit=1")).json["next_cursor"]
    shutil.copy(path, backup)
    async with running_service(store=f"sqlite:{path}") as app, open_producer(app) as producer:
        await producer.store(*(final_transcript(seq) for seq in range(6, 11)))
    put_back(backup, path)

    async with running_service(store=f"sqlite:{path}") as app:
        async with connected_producer(app) as producer:
            again = await producer.open()
            assert ready["incarnation"] != again["incarnation"]
            assert 6 == again["next_seq"]
        async with connected_producer(app) as producer:
            assert 9 == (await producer.open(from_seq=9))["next_seq"]
            await producer.store(*(final_transcript(seq) for seq in range(9, 12)))
            await producer.send(final_transcript(7))
            await producer.expect_error("seq_conflict")  # what is missing stays missing
        rows = await RestClient(app).journal()
        gap = {"type": "session.gap", "producer": "main", "from_seq": 6, "to_seq": 8}
        assert gap in [row["event"] for row in rows]
        assert [1, 2, 3, 4, 5, 9, 10, 11] == [row["seq"] for row in rows if row["seq"] is not None]
        assert (400, "invalid_cursor") == (await RestClient(app).get(f"/v1/sessions?limit=1&cursor={cursor}")).problem


async def test_an_older_backup_under_a_whole_buffer(tmp_path: Path) -> None:
    """36: a producer that still has everything since the backup sends it again, and nothing is missing or doubled."""
    path, backup = tmp_path / "calls.db", tmp_path / "backup.db"
    async with running_service(store=f"sqlite:{path}") as app, open_producer(app) as producer:
        await producer.store(*(final_transcript(seq) for seq in range(1, 6)))
    shutil.copy(path, backup)
    async with running_service(store=f"sqlite:{path}") as app, open_producer(app) as producer:
        await producer.store(*(final_transcript(seq) for seq in range(6, 11)))
    put_back(backup, path)

    async with running_service(store=f"sqlite:{path}") as app, connected_producer(app) as producer:
        following = (await producer.open(from_seq=4))["next_seq"]
        await producer.store(*(final_transcript(seq) for seq in range(4, 11)))
        assert 6 == following
        rows = await RestClient(app).journal()
        assert [*range(1, 11)] == [row["seq"] for row in rows]
