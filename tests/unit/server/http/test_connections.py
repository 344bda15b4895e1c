"""Which connections give way when a port is full, and all of them are at work."""

from __future__ import annotations

import socket
from collections.abc import Iterator
from typing import Any

import pytest

from voicemem.server.http.connections import USUAL_HEAD_BYTES, ConnectionLimits, PortConnections


class BusyClient:
    """A connection whose request is being read."""

    address: str | None = "192.0.2.1"

    def __init__(self) -> None:
        self.socket, self.peer = socket.socketpair()
        self.peer.send(b"x")
        self.transport: Any = self
        self.turned_away = False

    def get_extra_info(self, _: str) -> socket.socket:
        return self.socket

    def is_idle(self) -> bool:
        return False

    def turn_away(self) -> None:
        self.turned_away = True


@pytest.fixture
def clients() -> Iterator[list[BusyClient]]:
    """Four clients that a port has room for, and one more."""
    made = [BusyClient() for _ in range(5)]
    yield made
    for client in made:
        client.socket.close()
        client.peer.close()


@pytest.mark.parametrize(("sent", "given_way"), [(USUAL_HEAD_BYTES, 4), (USUAL_HEAD_BYTES + 1, 2)])
async def test_who_sends_much_before_a_key_gives_way(clients: list[BusyClient], sent: int, given_way: int) -> None:
    """A head of ordinary size is read to its end, and the newcomer is turned away; a huge one is not."""
    refusals: list[bool] = []
    port = PortConnections(ConnectionLimits(10, 4), lambda: refusals.append(True))
    for number, client in enumerate(clients):
        assert port.admit(client) == (number < 4 or given_way != 4)
        port.count_received(client, sent if number == 2 else 100)
    assert [given_way] == [number for number, client in enumerate(clients) if client.turned_away]
    assert (refusals, len(port.unauthenticated | port.authenticated)) == ([True], 4)
