"""Free ports. Another process may take one before it is used: prefer port 0 where the program allows it."""

from __future__ import annotations

import socket


def free_ports(count: int) -> list[int]:
    """Ports on which nobody listens, for services that follow each other on the same ones."""
    sockets = [socket.create_server(("127.0.0.1", 0)) for _ in range(count)]
    ports = [one.getsockname()[1] for one in sockets]
    for one in sockets:
        one.close()
    return ports
