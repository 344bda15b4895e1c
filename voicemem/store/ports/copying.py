"""What a copy needs of the engines at its two ends; `store.copying` does the work (docs/postgresql.md).

Both ends are used by one thread, and nobody serves them meanwhile: a source is locked, and refused while a node lives;
a target has a mark from its first row to its last, with which it is not served. The mark moves in the transactions that
add the rows, so a copy that was cut off goes on behind its last commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any, NamedTuple, Protocol

import msgspec
from msgspec import Struct

from voicemem.store.copied_tables import CopiedTable, Row

COPYING, MOVED = "copying", "moved"
"""Names in `meta`: of a `CopyMark` in a target, and of a `MovedMark` in a source."""


class CopyFailed(Exception):
    """A copy that cannot be made, or go on; the text says why."""


class Differs(CopyFailed):
    """The copy is not what the source is."""


class Volume(NamedTuple):
    """What a store holds; a source of which anything of it changed was written meanwhile."""

    sessions: int
    """Without erased ones."""
    running: int
    users: int
    events: int
    keys: int
    endpoints: int
    pending: int
    """Deliveries."""
    attempts: int
    epochs: int
    """Of all producers, added up: each open raises it."""
    first_key: int
    last_key: int
    """Of all streams; 0 without any."""


class CopyMark(Struct, frozen=True, kw_only=True):
    """How far a copy has come: all rows up to that of the key `after` of `table`, and everything of earlier tables."""

    incarnation: bytes
    """Of the source."""
    volume: Volume
    table: str = ""
    after: tuple[Any, ...] | None = None
    rows: int = 0
    events: int = 0
    size: int = 0
    """About how many bytes that is."""


class MovedMark(Struct, frozen=True, kw_only=True):
    """Where a store was copied to, as it may be shown, and when."""

    to: str
    moved_ms: int


class CopyEnd(Protocol):
    """A store as one end of a copy."""

    @property
    def values(self) -> Mapping[str, bytes]:
        """The rows of `meta`."""

    def measure(self) -> Volume:
        """What the store holds."""

    def read(self, table: CopiedTable, after: Row | None = None, stream: int | None = None) -> Iterator[Row]:
        """The rows of a table behind a key, in order; of content, that of sessions which are not erased.

        With `stream`, for a table whose key begins with it, only those of this one.
        """

    def hand_over(self, moved: bytes) -> None:
        """Set the mark with which the store is not served any more: the copy is."""

    def close(self) -> None:
        """Release the store."""

    # As a target

    @property
    def is_empty(self) -> bool:
        """Whether it holds nothing of its own."""

    def prepare(self, volume: Volume, mark: bytes) -> None:
        """Set the first mark, and make room for what a source holds. It may be repeated."""

    def add(self, table: CopiedTable, rows: Sequence[Row], mark: bytes) -> None:
        """Insert rows and move the mark, in one transaction."""

    def finish(self, values: Mapping[str, bytes]) -> None:
        """Set values of `meta` and remove the mark, in one transaction: the store may be served."""


Report = Callable[[CopyMark], None]
"""Gets how far the work has come."""


def why_not_served(values: Mapping[str, bytes]) -> str | None:
    """Why a store with these values of `meta` must not be served; None for one that may."""
    if COPYING in values:
        return "The store is half of a copy; run voicemem copy again, as before, to finish it."
    if MOVED in values:
        moved = msgspec.json.decode(values[MOVED], type=MovedMark)
        when = datetime.fromtimestamp(moved.moved_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M UTC")
        return (
            f"The store was moved to {moved.to} ({when}); serve that one. To serve this one again as it was then,"
            " restore a backup of it (docs/postgresql.md)."
        )
    return None
