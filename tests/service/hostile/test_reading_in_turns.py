"""What comes in large amounts at once is read piece by piece, and large memories are read off the event loop."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import threading
from collections.abc import Sequence

import msgspec
import pytest

from tests.support.both_ways import serve as serve
from tests.support.callers.raw_http import handshake_head
from tests.support.callers.raw_websocket import PING, websocket_frame
from tests.support.callers.rest import RestClient
from tests.support.events import final
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.protocol.codec import decode_journaled
from voicemem.server.http.connections import PIECE, READ_BYTES, ProblemHandler
from voicemem.server.ingest.websocket import EventSocket
from voicemem.server.rest.history import HistoryQuery, Large, make_contents
from voicemem.sessions.read_models.read_model import ENCODED_AT_ONCE, LARGE_ANSWER_BYTES, MessageFields, ReadModel
from voicemem.transcript.fold import DecodedRow
from voicemem.transcript.messages import Message
from voicemem.transcript.state import State

TIMEOUT_S = 10.0
MANY = 40_000


class Taken:
    """Notes the sizes of the pieces that connections of a kind take, and how many may be taken in one go."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, kind: type[ProblemHandler] | type[EventSocket]) -> None:
        self.sizes: list[int] = []
        name = "take" if kind is EventSocket else "data_received"
        take = getattr(kind, name)

        def noted(connection: ProblemHandler | EventSocket, data: bytes) -> None:
            self.sizes.append(len(data))
            take(connection, data)

        monkeypatch.setattr(kind, name, noted)


async def said_by(reader: asyncio.StreamReader) -> bytes:
    async with asyncio.timeout(TIMEOUT_S):
        return await reader.readline()


async def test_a_body_of_tiny_chunks_is_read_in_pieces(serve: Serve, monkeypatch: pytest.MonkeyPatch) -> None:
    """All of it arrives in its order, however much the network hands over at a time."""
    app = await serve()
    taken = Taken(monkeypatch, ProblemHandler)
    name = "n" * 128
    body = b'{"name":"%b"' % name.encode() + b" " * MANY + b"}"
    host, port = app.rest_address
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(b"POST /v1/sessions HTTP/1.1\r\nHost: localhost\r\nTransfer-Encoding: chunked\r\n\r\n")
    writer.write(b"".join(b"1\r\n%c\r\n" % byte for byte in body) + b"0\r\n\r\n")
    assert (await said_by(reader)).startswith(b"HTTP/1.1 201")
    assert f'"name":"{name}"'.encode() in await reader.read(4096)
    writer.close()
    assert sum(taken.sizes) > 6 * MANY
    assert max(taken.sizes) <= READ_BYTES


async def test_pings_of_a_caller_that_has_left_are_read_in_pieces(
    serve: Serve, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """Nothing is sent to it any more, and its connection is over once the last of its bytes is read."""
    app = await serve()
    taken = Taken(monkeypatch, EventSocket)
    host, port = app.ingest_address
    reader, writer = await asyncio.open_connection(host, port)
    writer.write(handshake_head(app.ingest_address))
    async with asyncio.timeout(TIMEOUT_S):
        await reader.readuntil(b"\r\n\r\n")
    writer.write(websocket_frame(PING, b"") * MANY)
    writer.close()

    async def is_over() -> bool:
        return not (app.ingest.port.unauthenticated or app.ingest.port.authenticated)

    await eventually(True, is_over)
    assert max(taken.sizes) <= PIECE
    assert "raised exception" not in caplog.text


@pytest.mark.parametrize("query", ["", "?fields=standard", "?open=true"])
async def test_large_histories_are_made_off_the_loop(serve: Serve, monkeypatch: pytest.MonkeyPatch, query: str) -> None:
    """Those of small calls are made at once, without a change of threads."""
    api = RestClient(await serve())
    on_loop: list[bool] = []
    encode_messages, messages = ReadModel.encode_messages, ReadModel.messages

    def noted_encoding(read_model: ReadModel, fields: MessageFields = "full", first: int = 0) -> bytes:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return encode_messages(read_model, fields, first)

    def noted_messages(read_model: ReadModel, unfinished: bool = False) -> Sequence[Message]:
        on_loop.append(threading.current_thread() is threading.main_thread())
        return messages(read_model, unfinished)

    monkeypatch.setattr(ReadModel, "encode_messages", noted_encoding)
    monkeypatch.setattr(ReadModel, "messages", noted_messages)
    for name, turns in (("small", 1), ("large", 20)):
        await api.create(name)
        for turn in range(turns):
            await api.send(final(turn + 1, "word " * (ENCODED_AT_ONCE // 50), turn), session_id=name)
        on_loop.clear()
        assert 200 == (await api.get(f"/v1/sessions/{name}/history{query}")).status
        assert {name == "small"} == {*on_loop}


def test_a_large_history_does_not_change_while_it_is_sent() -> None:
    """What is said after it was asked for is not in it."""
    rows = [
        DecodedRow(
            position, position, decode_journaled(msgspec.json.encode(final(position, "words", position))), "main"
        )
        for position in range(1, 10)
    ]
    read_model = ReadModel(State())
    read_model.fold(rows[:5])
    read_model.folded_bytes = LARGE_ANSWER_BYTES + 1
    made = make_contents(HistoryQuery(), read_model)
    assert isinstance(made, Large)
    read_model.fold(rows[5:])
    assert 9 == len(read_model.messages())
    assert 5 == len([*made.parts])
