"""How many connections a port takes, so that none can use up the files that the process may open.

Connections whose caller has not shown a key yet are few and give way: when there is no room for a new one, the oldest
idle one is closed. So a caller who has just connected is always heard, `/livez` is always answered, and connections
with a key are never pushed out by those without.
"""

from __future__ import annotations

import asyncio
import resource
import select
from collections import Counter
from collections.abc import Callable, Iterable
from itertools import islice
from typing import Any, NamedTuple, Protocol

from voicemem.server.http.paced_reading import ReadingTurns

ANY_NUMBER_OF_FILES = 65_536
"""What is reckoned with where the number of open files has no limit."""
MAX_UNAUTHENTICATED = 1_024
MIN_UNAUTHENTICATED = 4
MAX_UNAUTHENTICATED_BYTES = 16 * 1024 * 1024
"""What all connections of a port may send together before they have shown a key."""
BUSY_S = 1.0
"""A connection that is being answered gives way only after this long: nearly every answer takes less."""
BACKLOG = 1_024
"""Connections that the kernel holds until they are accepted. It drops what comes while there are as many, and a caller
who was dropped asks again after one second, and after three; the usual 100 come together in a burst of callers."""
USUAL_HEAD_BYTES = 16 * 1024
"""Who has sent more than this without showing a key gives way even while it is being read."""
MAX_LOOKED_AT = 256
"""How many connections with a key are looked at for an idle one."""


class Client(Protocol):
    """One connection of a port."""

    address: str | None
    transport: Any

    def is_idle(self) -> bool:
        """Whether nothing is being done for the connection, so that closing it loses nothing."""

    def turn_away(self) -> None:
        """Tell the peer that there are too many connections, where the protocol allows it, and close."""


class ConnectionLimits(NamedTuple):
    """How many connections a port takes."""

    authenticated: int
    unauthenticated: int
    per_address: int = 0
    """From one address, of both kinds; 0 for no limit."""

    @classmethod
    def of_port(cls, most: int, share: float, per_address: int = 0) -> ConnectionLimits:
        """Divide what a port may have in all; `share` is that of connections without a key."""
        unauthenticated = min(max(MIN_UNAUTHENTICATED, int(most * share)), MAX_UNAUTHENTICATED)
        return cls(max(1, most - unauthenticated), unauthenticated, per_address)


class Arrival:
    """What a connection without a key has cost so far."""

    __slots__ = ("received", "since_s")

    def __init__(self, since_s: float) -> None:
        self.since_s = since_s
        self.received = 0


class PortConnections:
    """The open connections of one port; `count_refused` is called for each that finds no room or gives way."""

    def __init__(self, limits: ConnectionLimits, count_refused: Callable[[], None]) -> None:
        self.limits = limits
        self.count_refused = count_refused
        self.unauthenticated: dict[Client, Arrival] = {}
        """The oldest first."""
        self.authenticated: dict[Client, None] = {}
        """The one first whose last request is the longest ago."""
        self.by_address: Counter[str | None] = Counter()
        self.strangers_by_address: Counter[str | None] = Counter()
        """Likewise, of those in `unauthenticated` alone."""
        self.received = 0
        """Bytes of all that are in `unauthenticated`."""
        self.turns = ReadingTurns()

    def __len__(self) -> int:
        return len(self.unauthenticated) + len(self.authenticated)

    def admit(self, client: Client) -> bool:
        """Take a new connection, or turn it away and return False."""
        limits = self.limits
        crowded = limits.per_address and self.by_address[client.address] >= limits.per_address
        full = len(self.unauthenticated) >= limits.unauthenticated
        if crowded or (full and not self.make_room()):
            self.count_refused()
            client.turn_away()
            return False
        self.unauthenticated[client] = Arrival(asyncio.get_running_loop().time())
        self.strangers_by_address[client.address] += 1
        self.by_address[client.address] += 1
        return True

    def authenticate(self, client: Client) -> bool:
        """Note that a connection has shown a key; False if there is no room for another one that has."""
        if client in self.authenticated:
            del self.authenticated[client]  # it goes to the end
        elif client in self.unauthenticated:
            if len(self.authenticated) >= self.limits.authenticated and not self.close_idle():
                self.count_refused()
                return False
            self.forget_stranger(client, self.unauthenticated.pop(client))
        else:
            return False
        self.authenticated[client] = None
        return True

    def count_received(self, client: Client, size: int) -> None:
        """Count bytes of a connection that may not have shown a key; too many in all push out who sent the most."""
        arrival = self.unauthenticated.get(client)
        if arrival is None:
            return
        arrival.received += size
        self.received += size
        while self.received > MAX_UNAUTHENTICATED_BYTES and self.make_room(among_senders=True):
            pass

    def remove(self, client: Client) -> None:
        """Forget a connection that is closed; one that is not here is ignored."""
        arrival = self.unauthenticated.pop(client, None)
        if arrival is not None:
            self.forget_stranger(client, arrival)
        elif client in self.authenticated:
            del self.authenticated[client]
        else:
            return
        self.by_address[client.address] -= 1
        if not self.by_address[client.address]:
            del self.by_address[client.address]

    def forget_stranger(self, client: Client, arrival: Arrival) -> None:
        """It was in `unauthenticated`, and is not any more."""
        self.received -= arrival.received
        self.strangers_by_address[client.address] -= 1
        if not self.strangers_by_address[client.address]:
            del self.strangers_by_address[client.address]

    def make_room(self, among_senders: bool = False) -> bool:
        """Close a connection that has shown no key: the oldest idle one of the address that has the most of them.

        `among_senders` takes the one that has sent the most, and none that has sent nothing: closing it frees nothing.
        """
        if among_senders:
            senders = [client for client in self.unauthenticated if self.unauthenticated[client].received]
            return self.close_first(sorted(senders, key=lambda one: -self.unauthenticated[one].received))
        most = max(self.strangers_by_address.values(), default=0)
        crowd = (client for client in self.unauthenticated if self.strangers_by_address[client.address] == most)
        return self.close_first(crowd) or self.close_first(self.unauthenticated) or self.close_largest()

    def close_first(self, clients: Iterable[Client]) -> bool:
        long_ago = asyncio.get_running_loop().time() - BUSY_S
        for client in clients:
            if (client.is_idle() and not has_unread(client)) or self.unauthenticated[client].since_s < long_ago:
                self.close(client)
                return True
        return False

    def close_largest(self) -> bool:
        """Close the connection that has sent the most, if that is more than any ordinary one needs to show its key."""
        largest = max(self.unauthenticated, key=lambda client: self.unauthenticated[client].received, default=None)
        if largest is None or self.unauthenticated[largest].received <= USUAL_HEAD_BYTES:
            return False
        self.close(largest)
        return True

    def close_idle(self) -> bool:
        """Close the connection with a key that has been idle the longest."""
        idle = next((client for client in islice(self.authenticated, MAX_LOOKED_AT) if client.is_idle()), None)
        if idle is not None:
            self.close(idle)
        return idle is not None

    def close(self, client: Client) -> None:
        self.remove(client)
        self.count_refused()
        client.turn_away()


def has_unread(client: Client) -> bool:
    """Whether bytes wait to be read: many may connect before the request of one who has just connected is read."""
    poll = select.poll()
    poll.register(client.transport.get_extra_info("socket").fileno(), select.POLLIN)
    return bool(poll.poll(0))


def max_files() -> int:
    """How many files the process may have open."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return ANY_NUMBER_OF_FILES if soft == resource.RLIM_INFINITY else soft


def ingest_limits(per_address: int = 0) -> ConnectionLimits:
    """The limits of the ingest port: half of the files that the process may have open."""
    return ConnectionLimits.of_port(max_files() // 2, 1 / 4, per_address)


def rest_limits(per_address: int = 0) -> ConnectionLimits:
    """The limits of the REST port: a quarter. The store, webhooks and LLM requests have the rest."""
    return ConnectionLimits.of_port(max_files() // 4, 1 / 2, per_address)
