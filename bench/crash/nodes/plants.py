"""Faults that are planted into a node, to see that a run finds them: `python -m bench.crash --nodes 2 --prove`."""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

STORE = "voicemem.store.postgresql"


def module(name: str) -> Any:
    return importlib.import_module(f"{STORE}.{name}")


def acknowledge_early() -> None:
    """What a connection inserts goes into the transaction after the one that it is acknowledged by."""
    connection = module("append_connections").AppendConnection
    insert, late = connection.insert, dict[int, Any]()

    def insert_late(self: Any, candidates: list[Any]) -> set[int]:
        before, late[id(self)] = late.get(id(self)), candidates
        if before is not None:
            insert(self, before)
        return {candidate.cached.stream.key for candidate in candidates}

    connection.insert = insert_late


def replace_in(name: str, constant: str, text: str, other: str) -> None:
    """Change a statement. Raises `ValueError` where it is no longer as it was."""
    before = getattr(module(name), constant)
    if text not in before:
        raise ValueError(f"{constant} has no {text}")
    setattr(module(name), constant, before.replace(text, other))


def ignore_version() -> None:
    replace_in("append_connections", "APPEND", "and h.version = run.version", "")


def leave_whatever_came_since() -> None:
    journal = importlib.import_module("voicemem.store.journal").Journal
    leave = journal.leave

    async def leave_newest(self: Any, key: int, producer: str, epoch: int, *more: Any) -> Any:
        query = "select epoch from producers where stream = :key and name = :producer"
        row = await self.database.row(query, key=key, producer=producer)
        return await leave(self, key, producer, row[0] if row is not None else epoch, *more)

    journal.leave = leave_newest


def retire_without_lanes() -> None:
    replace_in("connection", "FENCE", "where {held}", "where {held} and false")


def answer_from_a_read() -> None:
    """A new connection looks what became of a commit without writing first: its standby may not have it yet."""
    writer = module("writer").Writer
    begin = writer.begin

    def look(self: Any, connection: Any) -> None:
        query = "select fencing_token from lanes where token = :token and lane = :lane"
        row = connection.row(query, token=self.database.token, lane=self.lane)
        if row is None:
            begin(self, connection)
        else:
            (self.fencing_token,) = row

    writer.begin = look


class NodePlant(NamedTuple):
    """A planted fault, the faults of nodes under which it does harm, and words of what must be found."""

    plant: Callable[[], None] | None
    """Changes the program of a node."""
    faults: Sequence[str]
    words: Sequence[str]
    statement: str | None = None
    """Changes the database instead."""


PLANTS = {
    "acknowledge before the commit": NodePlant(acknowledge_early, ("kill", "replace"), ("acknowledged",)),
    "no primary key of the journal": NodePlant(
        None,
        ("pause",),
        ("position", "stands where", "read was answered"),
        "alter table journal drop constraint journal_pkey",
    ),
    "version is not looked at": NodePlant(
        ignore_version, ("pause",), ("a replaced connection", "position", "stands where")
    ),
    "leave without epoch": NodePlant(leave_whatever_came_since, ("pause",), ("while",)),
    "retire without lanes": NodePlant(retire_without_lanes, ("freeze", "replace"), ("which is gone",)),
    "read-only duplicate ack": NodePlant(
        answer_from_a_read, ("failover behind",), ("another incarnation", "acknowledged")
    ),
}


def plant(name: str) -> None:
    """Plant a fault into this process."""
    chosen = PLANTS[name]
    if chosen.plant is not None:
        chosen.plant()
