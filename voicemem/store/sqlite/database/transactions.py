"""Transactions that write."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import apsw

BEGIN, COMMIT, ROLLBACK = "begin immediate", "commit", "rollback"


@contextmanager
def transaction(connection: apsw.Connection) -> Iterator[None]:
    """A transaction of one connection that others may write beside: it has the file from its first look on."""
    connection.execute(BEGIN)
    try:
        yield
        connection.execute(COMMIT)
    finally:
        if connection.in_transaction:
            connection.execute(ROLLBACK)
