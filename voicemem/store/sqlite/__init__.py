"""The embedded store: one SQLite file, one writer that group-commits, synchronous=FULL."""

from voicemem.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
