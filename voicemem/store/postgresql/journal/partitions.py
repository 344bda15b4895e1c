"""The partitions of the journal, one for each month in which sessions are created."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable

import psycopg

from voicemem.errors import CannotStart
from voicemem.store.keys import first_key, month_after, month_of, month_start_ms
from voicemem.store.postgresql.database.connection import Session, why
from voicemem.store.postgresql.database.schema import one_at_a_time

LOG = logging.getLogger("voicemem.nodes")
MONTHS_AHEAD = 12
"""For how many months there are partitions."""
MONTHS_NEEDED = 2
"""For how many there must be some: with fewer, sessions could soon not be created any more."""
LOOK_AGAIN_S = 86_400.0
SELECT_PARTITIONS = """
    select c.relname from pg_inherits i join pg_class c on c.oid = i.inhrelid
    where i.inhparent = 'journal'::regclass
"""
MAKE = "create table {} (like journal including defaults including constraints including storage)"
ATTACH = "alter table journal attach partition {} for values from ({}) to ({})"
"""Made so, a partition waits for no reader of the journal, such as a dump, and holds up no append."""


class Upkeep:
    """Makes partitions once a day, so that a process may run for years."""

    def __init__(self) -> None:
        self.due = time.monotonic() + LOOK_AGAIN_S

    @property
    def is_due(self) -> bool:
        return time.monotonic() >= self.due

    def run(self, connect: Callable[[], Session], now_ms: int) -> None:
        """Make what is missing; what cannot be made is logged, and tried again the next day. Raises `psycopg.Error`."""
        self.due = time.monotonic() + LOOK_AGAIN_S
        session = connect()
        try:
            ensure_partitions(session, now_ms)
        except CannotStart as error:
            LOG.error("%s", error.detail)
        finally:
            session.close()


def ensure_partitions(session: Session, now_ms: int) -> None:
    """Make the partitions of this month and those that follow, unless the role may not, and there are enough.

    Raises `CannotStart` where there are not.
    """
    try:
        add_partitions(session, now_ms)
    except (psycopg.errors.InsufficientPrivilege, psycopg.errors.LockNotAvailable) as error:
        name, *_ = missing_partitions(session, now_ms)[0]
        told = f"The journal's partition {name} cannot be made: {why(error)}."
        if missing_partitions(session, now_ms, months=MONTHS_NEEDED):
            raise CannotStart(f"{told} voicemem migrate makes it, as the role that owns the tables.") from None
        LOG.warning("%s Run voicemem migrate as the role that owns the tables before that month.", told)


def add_partitions(session: Session, now_ms: int, since_ms: int | None = None, lowest: int = 0) -> None:
    """Make the partitions of this month and those that follow, and of those since a time.

    None of them takes keys below `lowest`.
    """
    if missing_partitions(session, now_ms, since_ms):
        with one_at_a_time(session):
            for name, first, last in missing_partitions(session, now_ms, since_ms):
                session.execute(MAKE.format(name))
                session.execute(ATTACH.format(name, max(first, lowest), last))


def missing_partitions(
    session: Session, now_ms: int, since_ms: int | None = None, months: int = MONTHS_AHEAD
) -> list[tuple[str, int, int]]:
    """Name, first key, and the key behind the last one of each partition that is still to be made."""
    known = {name for (name,) in session.rows(SELECT_PARTITIONS)}
    end = month_of(now_ms)
    for _ in range(months):
        end = month_after(*end)
    year, month = month_of(now_ms if since_ms is None else since_ms)
    missing = []
    while (year, month) < end:
        name, after = f"journal_{year}_{month:02}", month_after(year, month)
        if name not in known:
            missing.append((name, first_key(month_start_ms(year, month)), first_key(month_start_ms(*after))))
        year, month = after
    return missing
