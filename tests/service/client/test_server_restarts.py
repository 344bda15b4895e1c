"""The client while its server stops, is killed, comes back with an older store, or ends the connection for a reason."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import apsw
import pytest
from websockets.asyncio.server import Server, ServerConnection, serve

from tests.support.callers.client_sessions import (
    acknowledged_seqs,
    client_for,
    numbered_transcript,
    send_transcripts,
    stored_transcripts,
    transcripts_up_to,
)
from tests.support.callers.rest import RestClient
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.services import running_service
from voicemem.client import Client, ClientError, RequestRefused
from voicemem.config.service import Address
from voicemem.protocol.types import JsonObject

UNUSED = Address("127.0.0.1", 1)


# Other stores


async def copy_of(path: Path) -> str:
    """A backup of a database that is in use."""
    copy = path.with_name("copy")
    connection = apsw.Connection(str(path))
    connection.execute("vacuum into ?", (str(copy),))
    connection.close()
    return str(copy)


async def test_a_store_restored_from_a_backup(tmp_path: Path) -> None:
    """What the older store has lost is a gap that it can see; all that the client still holds follows it."""
    async with NetworkProxy(UNUSED) as proxy, client_for(proxy.address) as client:
        async with running_service(store=f"sqlite:{tmp_path}/db") as app:
            proxy.target = app.ingest_address
            session = await client.open("s", config={"name": "Call"})
            await acknowledged_seqs(send_transcripts(session, range(1, 6)))
            copy = await copy_of(tmp_path / "db")
            await acknowledged_seqs(send_transcripts(session, range(6, 9)))
            await proxy.down()
            acks = send_transcripts(session, range(9, 12))
        async with running_service(store=f"sqlite:{copy}") as app:
            proxy.target = app.ingest_address
            await proxy.up()
            assert [9, 10, 11] == await acknowledged_seqs(acks)
            assert [12] == await acknowledged_seqs(send_transcripts(session, [12]))
            rows = await RestClient(app).journal()
            (gap,) = [row["event"] for row in rows if row["event"]["type"] == "session.gap"]
            assert ("main", 6, 8) == (gap["producer"], gap["from_seq"], gap["to_seq"])
            assert [1, 2, 3, 4, 5, 9, 10, 11, 12] == [row["seq"] for row in rows if row["seq"]]


async def test_an_empty_store(tmp_path: Path) -> None:
    """A store that knows nothing of the session gets it again, with its configuration; what is lost is a gap."""
    async with NetworkProxy(UNUSED) as proxy, client_for(proxy.address) as client:
        async with running_service(store="memory:") as app:
            proxy.target = app.ingest_address
            session = await client.open("s", config={"name": "Call"})
            await acknowledged_seqs(send_transcripts(session, range(1, 4)))
            before = session.incarnation
        async with running_service(store="memory:") as app:
            proxy.target = app.ingest_address
            assert [4, 5] == await acknowledged_seqs(send_transcripts(session, [4, 5]))
            assert before != session.incarnation == app.services.store.directory.incarnation
            assert [(4, "Line 4."), (5, "Line 5.")] == await stored_transcripts(app)
            assert {"name": "Call"} == (await RestClient(app).session())["config"]


async def test_an_empty_store_over_http(tmp_path: Path) -> None:
    """Over HTTP a session is made again too, and what is lost is a gap, as over a websocket."""
    async with (
        NetworkProxy(UNUSED) as ws,
        NetworkProxy(UNUSED) as rest,
        client_for(ws.address, rest.address, fallback_after=1) as client,
    ):
        async with running_service(store="memory:") as app:
            ws.target, rest.target = app.ingest_address, app.rest_address
            session, fresh = await client.open("s"), await client.open("fresh")
            await acknowledged_seqs(send_transcripts(session, range(1, 4)))
            await ws.down()
        async with running_service(store="memory:") as app:
            ws.target, rest.target = app.ingest_address, app.rest_address
            assert [1, 2] == await acknowledged_seqs(send_transcripts(fresh, [1, 2]))
            assert [4, 5] == await acknowledged_seqs(send_transcripts(session, [4, 5]))
            assert "http" == client.transport
            assert [(4, "Line 4."), (5, "Line 5.")] == await stored_transcripts(app)
            gap, *_ = [row["event"] for row in await RestClient(app).journal()]
            assert ("session.gap", 1, 3) == (gap["type"], gap["from_seq"], gap["to_seq"])
            await ws.up()
            assert [6] == await acknowledged_seqs(send_transcripts(session, [6]))
            assert transcripts_up_to(2) == await stored_transcripts(app, "fresh")


# What no server of today's says to this client


@asynccontextmanager
async def saying(script: Any) -> AsyncIterator[tuple[Server, Client]]:
    """A client of a websocket server that does what a script says with each connection."""

    async def handle(socket: ServerConnection) -> None:
        await script(socket)

    server = await serve(handle, "127.0.0.1", 0)
    port = next(iter(server.sockets)).getsockname()[1]
    try:
        async with client_for(Address("127.0.0.1", port)) as client:
            yield server, client
    finally:
        server.close()
        await server.wait_closed()


def ready(**more: Any) -> str:
    fields: JsonObject = {"session_id": "s", "producer": "main", "state": "running", "epoch": 1, "next_seq": 1}
    return json.dumps({"type": "session.ready", **fields, "next_turn": 1, "incarnation": "a", "window": 1, **more})


@pytest.mark.parametrize("close", [1003, 1007, 1008, 1009])
async def test_a_fatal_close_is_raised(close: int) -> None:
    """A connection that is closed for what the client is or sends is not made again."""
    connections = 0

    async def script(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        await socket.send(ready())
        await socket.recv()
        await socket.send(json.dumps({"type": "error", "code": "some_code", "detail": "Some reason."}))
        await socket.close(close, "some_code")

    async with saying(script) as (_, client):
        session = await client.open("s")
        with pytest.raises(RequestRefused) as refused:
            await session.send(numbered_transcript(1))
        assert ("some_code", "Some reason.") == (refused.value.code, refused.value.detail)
        with pytest.raises(RequestRefused):
            await session.send(numbered_transcript(2))
        await asyncio.sleep(0.1)
        assert 1 == connections


@pytest.mark.parametrize(
    ("close", "code"), [(1008, "flood"), (1011, "internal"), (1012, ""), (1013, "store_unavailable"), (4000, "")]
)
async def test_a_passing_close_is_tried_again(close: int, code: str) -> None:
    """After any other close the client comes back, and sends again what was not acknowledged."""
    connections = 0

    async def script(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        await socket.send(ready(epoch=connections))
        seq = json.loads(await socket.recv())["seq"]
        if connections < 4:
            await socket.close(close, code)
        await socket.send(json.dumps({"type": "ack", "session_id": "s", "producer": "main", "seq": seq}))
        await socket.wait_closed()

    async with saying(script) as (_, client):
        session = await client.open("s")
        assert [1] == await acknowledged_seqs([session.send(numbered_transcript(1))])
        assert (4, 4) == (connections, session.epoch)


async def test_what_is_not_known_is_passed_over() -> None:
    """New kinds of frames and new fields change nothing, and frames about others are not minded."""

    async def script(socket: ServerConnection) -> None:
        await socket.send(json.dumps({"type": "hello", "more": [1]}))
        await socket.recv()
        await socket.send(json.dumps({"type": "ack", "session_id": "other", "producer": "main", "seq": 9}))
        await socket.send(ready(more={"a": 1}))
        await socket.recv()
        await socket.send(json.dumps({"type": "news", "session_id": "s", "producer": "main", "seq": 9}))
        await socket.send(json.dumps({"type": "ack", "session_id": "s", "producer": "main", "seq": 1, "more": 1}))
        await socket.wait_closed()

    async with saying(script) as (_, client):
        session = await client.open("s")
        assert [1] == await acknowledged_seqs([session.send(numbered_transcript(1))])


async def test_what_is_no_frame_ends_the_connection() -> None:
    """Answers that are not of this protocol are a lost connection, tried again and not for ever hidden."""
    connections = 0

    async def script(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.send("hello" if connections < 3 else ready())
        await socket.wait_closed()

    async with saying(script) as (_, client):
        await asyncio.wait_for(client.open("s"), 10)
        assert 3 == connections


async def test_a_server_that_forgot_what_was_opened() -> None:
    """A server that says `not_open` about an open session gets a new connection, and the session again."""
    connections = 0

    async def script(socket: ServerConnection) -> None:
        nonlocal connections
        connections += 1
        await socket.recv()
        await socket.send(ready(epoch=connections))
        seq = json.loads(await socket.recv())["seq"]
        about = {"session_id": "s", "producer": "main", "seq": seq}
        answer = {"type": "error", "code": "not_open", "detail": ""} if connections == 1 else {"type": "ack"}
        await socket.send(json.dumps({**answer, **about}))
        await socket.wait_closed()

    async with saying(script) as (_, client):
        session = await client.open("s")
        assert [1] == await acknowledged_seqs([session.send(numbered_transcript(1))])
        assert 2 == connections


async def test_a_hole_that_cannot_be_filled_is_told_on_the_same_connection() -> None:
    """When the server expects what the client no longer has, the client opens again with the lowest that it has."""
    opens: list[JsonObject] = []

    async def script(socket: ServerConnection) -> None:
        opens.append(json.loads(await socket.recv()))
        await socket.send(ready(next_seq=5))
        about = {"session_id": "s", "producer": "main", "seq": json.loads(await socket.recv())["seq"]}
        await socket.send(json.dumps({"type": "error", "code": "seq_gap", "detail": "", "expected": 3, **about}))
        opens.append(json.loads(await socket.recv()))
        await socket.send(ready(epoch=2, next_seq=5))
        about["seq"] = json.loads(await socket.recv())["seq"]
        await socket.send(json.dumps({"type": "ack", **about}))
        await socket.wait_closed()

    async with saying(script) as (_, client):
        session = await client.open("s")
        assert [5] == await acknowledged_seqs([session.send(numbered_transcript(1))])
        assert [None, 5] == [frame.get("from_seq") for frame in opens]


async def test_the_client_says_when_it_has_failed() -> None:
    """A defect of the client's own ends it with an error for everybody who waits, never with silence."""
    async with running_service(store="memory:") as app, client_for(app.ingest_address) as client:
        session = await client.open("s")
        transport: Any = client._transport
        ack = session.send(numbered_transcript(1))
        transport.to_open.append(None)
        with pytest.raises(ClientError, match="internal"):
            await ack
        with pytest.raises(ClientError, match="internal"):
            await session.send(numbered_transcript(2))
