"""How much of bodies that are being received a project may make the service hold."""

from __future__ import annotations

from collections import Counter

from voicemem.errors import RateLimited

MAX_BYTES_OF_A_PROJECT = 32 * 1024 * 1024
"""Hundreds of connections may each send a body of a MiB and never end it."""
UNCOUNTED_BYTES = 64 * 1024
"""Of each body, so that small ones are taken whatever else is sent."""
RETRY_AFTER_S = 1.0
TOO_MUCH = "The bodies that this project is sending are too much together; send fewer at a time."


class BodiesReceived:
    """What has come of bodies that are not complete, by project; None where no key was shown."""

    def __init__(self, most: int = MAX_BYTES_OF_A_PROJECT) -> None:
        self.most = most
        self.held: Counter[str | None] = Counter()

    def add(self, project: str | None, size: int) -> None:
        """Count bytes that have come. Raises `RateLimited`, and counts nothing, where they are too much."""
        if self.held[project] + size > self.most:
            raise RateLimited(RETRY_AFTER_S, TOO_MUCH)
        self.held[project] += size

    def remove(self, project: str | None, size: int) -> None:
        """Count off what was added for a body that is complete, or given up."""
        self.held[project] -= size
        if self.held[project] <= 0:
            del self.held[project]
