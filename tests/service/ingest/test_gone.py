"""Connections that are over leave nothing behind for Python's garbage collection."""

from __future__ import annotations

import gc
from collections.abc import Iterator

import pytest
from websockets.server import ServerProtocol

from tests.support.callers.raw_websocket import CLOSE, TEXT, upgraded_socket, websocket_frame
from tests.support.events import final_transcript
from tests.support.services import Serve
from tests.support.services import serve as serve
from tests.support.waiting import eventually
from voicemem.server.ingest.connection import Connection
from voicemem.server.ingest.producer_leases import OpenLease
from voicemem.server.ingest.websocket import EventSocket, Throttle


@pytest.fixture
def no_collection() -> Iterator[None]:
    """As between two collections."""
    gc.collect()
    gc.disable()
    yield
    gc.enable()


KINDS = EventSocket, ServerProtocol, Connection, OpenLease, Throttle


def left(before: list[object]) -> list[type]:
    """What is there of connections, garbage or not, beside those of earlier tests."""
    known = {*map(id, before)}
    return [type(one) for one in gc.get_objects() if type(one) in KINDS and id(one) not in known]


@pytest.mark.parametrize("looks", [True, False])
@pytest.mark.parametrize("way", ["closed", "half closed", "lost", "failed", "refused"])
async def test_a_connection_is_gone_when_it_is_over(serve: Serve, no_collection: None, way: str, looks: bool) -> None:
    """However it ended, its memory is free without a collection: a service may lose a hundred in a second."""
    before = [one for one in gc.get_objects() if type(one) in KINDS]
    app = await serve(ingest_looks=looks)
    if way == "refused":
        with pytest.raises(AssertionError):  # it is not accepted
            async with upgraded_socket(app.ingest_address, "Origin: https://elsewhere.example"):
                pass
    else:
        async with upgraded_socket(app.ingest_address) as peer:
            await peer.send_event({"type": "session.open", "session_id": "s"})
            await peer.expect("session.ready")
            assert {*KINDS} == {*left(before)}
            await peer.send_event(final_transcript(1))
            await peer.expect("ack")
            if way == "closed":
                await peer.send(websocket_frame(CLOSE, (1000).to_bytes(2)))
            elif way == "half closed":
                peer.writer.write_eof()
            elif way == "failed":
                await peer.send(websocket_frame(TEXT, b"no JSON"))
            else:
                peer.writer.transport.abort()
            await peer.closed()

    async def are_left() -> list[type]:
        return left(before)

    await eventually([], are_left)
