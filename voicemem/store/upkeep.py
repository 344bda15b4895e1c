"""Help that engines share: opening a store, migrations of its schema, and deletion in portions."""

import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from importlib import resources
from typing import Any, NamedTuple

PORTION_ROWS = 200
PORTION_BYTES = 1024 * 1024
"""The bounds of a portion; the row that exceeds the bytes is its last."""
PORTION_S = 0.001
"""The time after which a portion that has begun ends: next to a busy event loop, each statement waits for that."""


class Migration(NamedTuple):
    """One step of the schema: SQL that upgrades a database of the previous version to `version`."""

    version: int
    sql: str


def migrations_of(engine: str) -> list[Migration]:
    """Return all migrations of an engine, in order, from the files `NNNN_name.sql`; no released one is edited."""
    folder = resources.files(engine) / "migrations"
    files = [file for file in folder.iterdir() if file.name.endswith(".sql")]
    return sorted(Migration(int(file.name[:4]), file.read_text()) for file in files)


def no_store(place: str) -> str:
    """Return the sentence about a place that has no store, where one must exist."""
    return f"There is no store in {place}. Name the store of your server; voicemem serve makes a new one."


def not_ours(place: str) -> str:
    """Return the sentence about a place that holds something other than a store of this program."""
    return (
        f"{place} is not a store that this version of voicemem made: it is another program's, or of a version before"
        " the first release, and was left as it is. Start with a new store; voicemem export of the old version takes"
        " calls along."
    )


@contextmanager
def on_failure(close: Callable[[], None]) -> Iterator[None]:
    """Close what was opened before the block if the block fails; else it stays open."""
    try:
        yield
    except BaseException:
        close()
        raise


class Portion:
    """The most that one transaction deletes, so that others do not wait long: counts down rows and bytes."""

    def __init__(self) -> None:
        self.rows = PORTION_ROWS
        self.bytes = PORTION_BYTES
        self.ends_s = time.monotonic() + PORTION_S
        self.selected_bytes = 0
        """The bytes of the rows that were selected last."""

    @property
    def has_begun(self) -> bool:
        return self.rows < PORTION_ROWS

    @property
    def is_full(self) -> bool:
        return self.rows <= 0 or self.bytes <= 0

    @property
    def is_over(self) -> bool:
        return self.is_full or (self.has_begun and time.monotonic() >= self.ends_s)

    def select(self, sizes: Iterable[tuple[Any, ...]]) -> list[Any]:
        """Return the keys of the first rows (given as key and bytes) that fit."""
        keys: list[Any] = []
        before = self.bytes
        for key, size in sizes:
            if self.is_full:
                break
            keys.append(key)
            self.rows -= 1
            self.bytes -= size
        self.selected_bytes = before - self.bytes
        return keys
