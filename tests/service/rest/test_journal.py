"""The journal over REST, as JSON lines."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from contextlib import suppress
from pathlib import Path

import pytest

from tests.support.callers.producer import open_over_websocket, send_over_websocket
from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject
from voicemem.sessions import journal_pages
from voicemem.store.sqlite.store import SqliteStore

EVENTS = "/v1/sessions/s/events"


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of a service with one empty session."""
    caller = RestClient(await serve())
    await caller.create()
    return caller


def numbered(first: int, last: int) -> list[JsonObject]:
    """One final a turn, with its seq."""
    return [final(seq, f"Turn {seq}.", seq=seq) for seq in range(first, last + 1)]


async def test_a_row_of_the_journal(api: RestClient) -> None:
    """Each line says where the event stands, who sent it, when it came, and the event as it was sent."""
    event = final(1, "Hi.", seq=1, metadata={"kept": [1]})
    before = (await api.session())["started_at"]
    await api.send(event, query="?producer=asr")
    answered = await api.get(EVENTS)
    assert "application/x-ndjson" == answered.headers["Content-Type"]
    (row,) = answered.lines
    assert ["position", "producer", "seq", "received_ms", "event"] == list(row)
    assert (1, "asr", 1, event) == (row["position"], row["producer"], row["seq"], row["event"])
    assert before <= row["received_ms"] <= before + 60_000


async def test_the_servers_own_events_have_neither_producer_nor_seq(api: RestClient) -> None:
    """A patch and the close stand in the journal with nulls."""
    await api.send(*numbered(1, 1))
    await api.patch("/v1/sessions/s", {"name": "x"})
    await api.end()
    rows = await api.journal()
    expected = [("main", 1, "asr"), (None, None, "session.update"), (None, None, "session.closed")]
    assert expected == [(row["producer"], row["seq"], row["event"]["type"]) for row in rows]


async def test_a_gap_is_visible(serve: Serve) -> None:
    """What a producer lost is a row of its own."""
    app = await serve()
    await send_over_websocket(app, numbered(1, 2))
    await open_over_websocket(app, from_seq=5)
    gap = (await RestClient(app).journal())[-1]
    assert (None, {"type": "session.gap", "producer": "main", "from_seq": 3, "to_seq": 4}) == (gap["seq"], gap["event"])


@every_row(
    ("query", "expected"),
    [
        ("", [1, 2, 3, 4, 5]),
        ("?after=0", [1, 2, 3, 4, 5]),
        ("?after=3", [4, 5]),
        ("?after=5", []),
        ("?after=9007199254740992", []),
        ("?limit=2", [1, 2]),
        ("?limit=9007199254740992", [1, 2, 3, 4, 5]),
        ("?after=1&limit=3", [2, 3, 4]),
    ],
)
async def test_a_part_of_the_journal(api: RestClient, query: str, expected: list[int]) -> None:
    """after leaves out what was seen, limit bounds the answer."""
    await api.send(*numbered(1, 5))
    assert expected == [row["position"] for row in await api.journal(query=query)]


async def test_an_empty_journal_is_an_empty_body(api: RestClient) -> None:
    """Before the first event there is no line."""
    answered = await api.get(EVENTS)
    assert (200, b"") == (answered.status, answered.body)


async def test_a_long_journal_comes_whole(api: RestClient) -> None:
    """More rows than are read at once come in their order, without gaps or doubles."""
    for first in (1, 1201):
        await api.send(*numbered(first, first + 1199))
    assert list(range(1, 2401)) == [row["position"] for row in await api.journal()]
    assert list(range(501, 2001)) == [row["position"] for row in await api.journal(query="?after=500&limit=1500")]


async def reading(app: App, monkeypatch: pytest.MonkeyPatch) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """A connection in the middle of a journal of 12 MB, of which the reader takes nothing more for now."""
    monkeypatch.setattr(journal_pages, "PAGE", 1)
    api = RestClient(app)
    await api.create()
    for seq in range(1, 61, 4):
        await api.send(*(final(turn, "x" * 200_000, seq=turn) for turn in range(seq, seq + 4)))
    reader, writer = await asyncio.open_connection(*app.rest_address, limit=1000)
    writer.write(b"GET /v1/sessions/s/events HTTP/1.1\r\nHost: localhost\r\n\r\n")
    await reader.readexactly(1000)
    return reader, writer


async def test_a_reader_that_hangs_up_is_no_fault(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Whoever leaves in the middle of a journal leaves no error in the log."""
    app = await serve()
    _, writer = await reading(app, monkeypatch)
    writer.transport.abort()
    for _ in range(5):
        await RestClient(app).session()
    assert [] == [record.getMessage() for record in caplog.records if record.levelname == "ERROR"]


async def test_a_journal_that_cannot_be_read_on_breaks_off(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """When the store goes away in the middle, the answer ends without its end, and nothing else is written into it."""
    app = await serve(store=f"sqlite:{tmp_path}/v.db")
    reader, writer = await reading(app, monkeypatch)
    assert isinstance(app.services.store, SqliteStore)
    await app.services.store.database.read(lambda connection: connection.raw.close())
    rest = b""
    try:
        with suppress(ConnectionError):
            while piece := await asyncio.wait_for(reader.read(2**20), 2):
                rest += piece
    finally:
        writer.close()
    assert b"HTTP/1.1" not in rest
    assert not rest.endswith(b"0\r\n\r\n")


ODD_TEXTS = ["line\nbreak", "\r\n", "\u2028\u2029\x85", "\x01", "\u202e", 'quote"', "back\\slash", "😀", "é", "e\u0301"]


async def test_every_event_stays_one_line(api: RestClient) -> None:
    """Line breaks between tokens become spaces, those inside texts stay escaped, and no text changes."""
    await api.post(EVENTS, json.dumps([final(1, text) for text in ODD_TEXTS], indent=1).encode())
    await api.post(EVENTS, b'[{"type":\r\n"asr",\r"turn_id":1,\n"text":"a\\nb"}]')
    answered = await api.get(EVENTS)
    assert len(ODD_TEXTS) + 1 == answered.body.count(b"\n")
    assert [*ODD_TEXTS, "a\nb"] == [row["event"]["text"] for row in answered.lines]
    assert b"\r" not in answered.body


async def test_events_stay_as_they_were_sent(api: RestClient) -> None:
    """Number spellings and the order of keys are kept."""
    sent = b'[{"metadata":{"zeta":1.50,"alpha":{"n":1e2,"deep":[[[]]]}},"type":"asr","text":"Hi.","confidence":0.10}]'
    await api.post(EVENTS, sent)
    assert b'"event":' + sent[1:-1] + b"}\n" in (await api.get(EVENTS)).body


async def test_the_journal_gives_the_memory(serve: Serve) -> None:
    """What one service journaled, another folds to the same messages."""
    one, other = RestClient(await serve()), RestClient(await serve())
    await one.create()
    await one.send(*numbered(1, 2), delta(2, "Yes, ", seq=3), delta(2, "two.", seq=4), done(2, seq=5))
    await other.create()
    await other.send(*(row["event"] | {"ts": row["received_ms"]} for row in await one.journal()))
    assert await one.contents() == await other.contents()


async def test_the_journal_can_be_followed_by_position(api: RestClient) -> None:
    """A reader that comes back with the last position gets what is new, each row once."""
    seen: list[int] = []
    for first in range(1, 40, 4):
        await api.send(*numbered(first, first + 3))
        seen += [row["position"] for row in await api.journal(query=f"?after={seen[-1] if seen else 0}&limit=3")]
    seen += [row["position"] for row in await api.journal(query=f"?after={seen[-1]}")]
    assert list(range(1, 41)) == seen


@every_row(
    "query",
    ["after=-1", "after=x", "after=", "limit=0", "limit=-1", "limit=1.5", "from=1", "after=1&after=1", "limit=null"],
)
async def test_bad_parameters_of_a_get_are_refused(api: RestClient, query: str) -> None:
    """A parameter that is unknown, doubled or has a value that it cannot have is never passed over."""
    assert (400, "invalid_query") == (await api.get(f"{EVENTS}?{query}")).problem
