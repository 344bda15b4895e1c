"""How SQLite finds the sessions of a list: by an index, in the order of the list."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.stores.sqlite import NOW
from voicemem.store.records import SessionFilter
from voicemem.store.sqlite import SqliteStore
from voicemem.store.sqlite.journal.reads import LIST_STREAMS, conditions

BY_STATE = "SEARCH streams USING INDEX streams_by_state (project=? AND kind=? AND state=?"
BY_START = "SEARCH streams USING INDEX streams_by_start (project=? AND kind=?"


@pytest.mark.parametrize(
    ("wanted", "found_by"),
    [
        ({"state": "running"}, f"{BY_STATE})"),
        ({"state": "ended", "user_id": "u"}, f"{BY_STATE})"),
        ({"state": "running", "label": ("a", "b")}, f"{BY_STATE})"),
        ({"state": "running", "after": (NOW, 7)}, f"{BY_STATE} AND started_ms<?)"),
        ({"state": "ended", "started_after": NOW}, f"{BY_STATE} AND started_ms>?)"),
        ({}, f"{BY_START})"),
        ({"after": (NOW, 7)}, f"{BY_START} AND started_ms<?)"),
    ],
)
async def test_a_list_is_read_in_the_order_of_an_index(
    sqlite: SqliteStore, wanted: dict[str, Any], found_by: str
) -> None:
    """A page costs what is on it: sessions in another state are not looked at, and nothing is sorted."""
    clauses, values = conditions(SessionFilter(project="p", **wanted))
    query = f"explain query plan {LIST_STREAMS.format(conditions=clauses)}"
    plan = await sqlite.database.read(
        lambda connection: [str(row[3]) for row in connection.execute(query, (*values, 10)).fetchall()]
    )

    assert found_by == plan[0]
    assert [] == [step for step in plan if "TEMP B-TREE" in step]
