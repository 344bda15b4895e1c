"""The bytes of each project's journals: what this process adds and deletes, and what the database says of all.

An append updates nothing, so the bytes are added up here, and handed to the database with each heartbeat of the node.
So all nodes together know of a byte a second later, and a node that is killed takes a second's count with it.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Mapping

from voicemem.errors import QuotaExceeded
from voicemem.store.postgresql.database.connection import Session

SELECT_BYTES = "select bytes from stored_bytes where project = $1"
ADD_BYTES = """
    insert into stored_bytes select * from unnest($1::text[], $2::bigint[]) as r (project, bytes) order by project
    on conflict (project) do update set bytes = stored_bytes.bytes + excluded.bytes returning project, bytes
"""
"""In one order, so that no two nodes wait for each other."""


class StoredBytes:
    """Bytes by project; safe for threads."""

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self.pending: Counter[str] = Counter()
        """What was stored here, less what was deleted, since the database was last told."""
        self.known: dict[str, int] = {}
        """What the database said last of all, for the projects that were active here."""

    def add(self, project: str, size: int) -> None:
        """Count bytes that were stored, or below zero, deleted; their transaction has committed."""
        with self.lock:
            self.pending[project] += size

    def is_full(self, project: str, quota: int) -> bool:
        """Whether a project has used up its bytes, as far as is known here."""
        return self.known.get(project, 0) + self.pending[project] >= quota

    def take(self) -> Counter[str]:
        """What is to be added in the database; `give_back` it when that fails."""
        with self.lock:
            taken, self.pending = self.pending, Counter()
        return Counter({project: size for project, size in taken.items() if size})

    def give_back(self, taken: Counter[str]) -> None:
        with self.lock:
            self.pending.update(taken)

    def note(self, stored: Mapping[str, int]) -> None:
        """Note what the database says of some projects."""
        self.known.update(stored)


def add_bytes(session: Session, counted: Mapping[str, int]) -> dict[str, int]:
    """Add what a process has counted; the bytes of these projects."""
    if not counted:
        return {}
    projects = [project for project in counted]
    return {project: size for project, size in session.rows(ADD_BYTES, (projects, list(counted.values())))}


def is_full(session: Session, stored_bytes: StoredBytes, project: str, quota: int) -> bool:
    """Whether a project has used up its bytes, as the database and this process have counted them; 0 is no bound."""
    if not quota:
        return False
    row = session.row(SELECT_BYTES, (project,))
    stored_bytes.note({project: 0 if row is None else row[0]})
    return stored_bytes.is_full(project, quota)


def refuse_full(session: Session, stored_bytes: StoredBytes, project: str, quota: int) -> None:
    """Raise `QuotaExceeded` for a project that has used up its bytes."""
    if is_full(session, stored_bytes, project, quota):
        raise QuotaExceeded(
            "stored_bytes", f"The project may store {quota} bytes (stored_bytes); erase sessions, or let them expire."
        )
