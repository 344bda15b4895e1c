"""A connection that only reads."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal, Protocol, TypeVar

import psycopg

from voicemem.store.postgresql.database.connection import Session, is_lost, is_ours, unavailable
from voicemem.store.troubles import Troubles

T = TypeVar("T")


class Owner(Protocol):
    """The database that a reader is of."""

    generation: int
    troubles: Troubles

    def connect_for(self, what: Reader, verb: Literal["read", "written"]) -> Session: ...


class Reader:
    """One connection that only reads, on one thread at a time. It connects when it is first used, and when lost."""

    def __init__(self, database: Owner) -> None:
        self.database = database
        self.session: Session | None = None

    @property
    def is_in_trouble(self) -> bool:
        """Whether it got no connection when it last tried."""
        return self.database.troubles.has(self)

    def open(self) -> Session:
        """The connection, a new one where there is none. Raises `StoreUnavailable`, `psycopg.Error`."""
        session = self.session
        if session is None or session.is_lost or session.generation != self.database.generation:
            self.close()
            self.session = session = self.database.connect_for(self, "read")
            self.database.troubles.end(self)
        return session

    def run(self, job: Callable[[Session], T]) -> T:
        """Run a job, once more on a new connection where it was lost meanwhile. Raises `StoreUnavailable`."""
        for is_last in (False, True):
            session: Session | None = None
            try:
                session = self.open()
                return job(session)
            except psycopg.Error as error:
                if is_ours(error):
                    raise
                if is_last or session is None or not is_lost(session, error):
                    raise unavailable(error, "read") from None
        raise AssertionError("unreachable")

    def close(self) -> None:
        if self.session is not None:
            self.session.close()
        self.session = None
