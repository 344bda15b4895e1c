"""Redaction on a real PostgreSQL: neither a row nor a file of the server has what was cut off."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import zlib
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from secrets import randbelow
from typing import Any

import psycopg
import pytest
from websockets.asyncio.client import connect

from tests.service.redaction.test_redaction import CARD, CARDS, planted
from tests.support import postgresql
from tests.support.callers.rest import RestClient
from tests.support.dialects import RECORDINGS
from tests.support.events import delta, done, event, final
from tests.support.services import running_service
from tests.support.waiting import all_connections_handled

KEPT = CARD[:6]
SELECT_TABLES = "select tablename from pg_tables where schemaname = 'public'"


def values_in(database: str) -> Iterator[bytes]:
    """Every value of every row, and what is in those that are compressed."""
    with psycopg.connect(postgresql.server().url(database)) as connection:
        for (table,) in connection.execute(SELECT_TABLES).fetchall():
            for row in connection.execute(f'select * from "{table}"'.encode()):
                yield from (bytes_of(value) for value in row)


def bytes_of(value: Any) -> bytes:
    if not isinstance(value, bytes):
        return str(value).encode()
    with suppress(zlib.error):
        return zlib.decompress(value)
    return value


def files_of(folder: Path) -> Iterator[bytes]:
    """The content of each file of a server that runs, and makes and removes files meanwhile."""
    for path in folder.rglob("*"):
        with suppress(OSError):
            yield path.read_bytes()


@pytest.mark.long
async def test_neither_rows_nor_files_have_what_was_cut_off(tmp_path: Path) -> None:
    """Numbers in events, in every text of every recorded call, in documents; of ended and open calls."""
    tail = f"{randbelow(10**10):010}"  # other tests leave numbers of their own in the server's files
    card = KEPT + tail
    spaced = f"{card[:4]} {card[4:8]} {card[8:12]} {card[12:]}"
    with postgresql.database_of(tmp_path) as name:
        url = postgresql.server().url(name)
        async with running_service(store=url, redact=CARDS) as app:
            api = RestClient(app)
            await api.create("own", user_id="ann")
            said = [final(1, f"It is {spaced}", 1_000), delta(1, f"So {card[:9]}", 1_100), delta(1, card[9:], 1_200)]
            tool = event("tool.call", turn_id=1, ts=1_300, call_id="c", name="pay", arguments={"card": card})
            await api.send(*said, tool, done(1, 1_400), session_id="own")
            await api.call("PUT", "/v1/users/ann/working-memory", json={"content": f"Card {spaced}"})
            await api.end("own")
            for number, recording in enumerate(RECORDINGS):
                path = f"ws://{app.ingest_address}/v1/ingest/{recording.dialect}?session_id=s{number}"
                async with connect(path) as socket:
                    for envelope in planted(recording):
                        text = json.dumps(envelope).replace(CARD, card).replace("4929 1234 5678 9012", spaced)
                        await socket.send(text)
            await all_connections_handled()
        postgresql.server().execute("checkpoint")
        hidden = [tail.encode(), card.encode(), spaced.encode(), spaced[8:].encode()]
        rows = list(values_in(name))
        assert any(KEPT.encode() in value for value in rows)
        assert [] == [value for value in rows for text in hidden if text in value]
        files = list(files_of(postgresql.server().data))
        assert any(KEPT.encode() in content for content in files)
        assert 0 == sum(text in content for content in files for text in hidden)
