"""Free ports. Another process may take one before it is used: prefer port 0 where the program allows it."""

from __future__ import annotations

import random
import socket

BELOW_EPHEMERAL = range(20_000, 32_000)
"""The system gives none of these to whoever asks for any port, so they stay free while a service is away."""


def free_ports(count: int) -> list[int]:
    """Ports on which no one listens, for services that follow each other on the same ones."""
    ports: list[int] = []
    while len(ports) < count:
        port = random.SystemRandom().choice(BELOW_EPHEMERAL)  # each process of the tests has others
        try:
            socket.create_server(("127.0.0.1", port)).close()
        except OSError:
            continue
        if port not in ports:
            ports.append(port)
    return ports
