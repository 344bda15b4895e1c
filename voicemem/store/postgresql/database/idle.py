"""Connections that nobody uses just now."""

from __future__ import annotations

import queue
from contextlib import suppress
from typing import Protocol, TypeVar


class Connection(Protocol):
    """A connection as far as it matters here."""

    @property
    def is_in_trouble(self) -> bool: ...

    def close(self) -> None: ...


C = TypeVar("C", bound=Connection)


class Idle(queue.LifoQueue[C]):
    """Hands out the one that was used last, and one in trouble only where there is no other.

    So a node that cannot open all of its connections goes on with those that it has.
    """

    queue: list[C]

    def _get(self) -> C:
        working = (place for place in reversed(range(len(self.queue))) if not self.queue[place].is_in_trouble)
        return self.queue.pop(next(working, -1))

    def take_in_trouble(self) -> C | None:
        """One that is in trouble; None where none of the idle ones is."""
        with self.mutex:
            for connection in self.queue:
                if connection.is_in_trouble:
                    self.queue.remove(connection)
                    return connection
        return None

    def close(self) -> None:
        """Close all of them."""
        with suppress(queue.Empty):
            while True:
                self.get_nowait().close()
