"""How SQLite finds the sessions of a list: by an index, in the order of the list."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from functools import partial
from typing import Any

import pytest

from tests.support.stores.sqlite import NOW
from voicemem.store.journal import LIST_STREAMS
from voicemem.store.memories import listing_of
from voicemem.store.memory_filters import AnyOf, Conditions, MemoryFilter, NoneOf
from voicemem.store.overviews import COUNT_LOOKS, LIST_OVERVIEWS, LOOK, plan_of
from voicemem.store.port import COUNT_DUE, COUNT_PENDING, SELECT_OLDEST_PENDING
from voicemem.store.quotas import COUNT_BEGUN, COUNT_OPEN, IS_OF_KEY
from voicemem.store.records import CLIENT_ID_LABEL
from voicemem.store.session_filters import SessionFilter, conditions_of, in_order
from voicemem.store.sqlite.connection import SqliteConnection
from voicemem.store.sqlite.store import SqliteStore
from voicemem.store.sqlite.words import FIND_MEMORIES

BY_STATE = "SEARCH streams USING INDEX streams_by_state (project=? AND kind=? AND state=?"
BY_USER = "SEARCH streams USING INDEX streams_by_user (project=? AND kind=? AND user_id=?"
BY_CLIENT_ID = "SEARCH streams USING INDEX streams_by_client_id (project=? AND kind=? AND <expr>=?"
BY_START = "SEARCH streams USING INDEX streams_by_start (project=? AND kind=?"


@pytest.mark.parametrize(
    ("wanted", "found_by"),
    [
        ({"state": "running"}, f"{BY_STATE})"),
        ({"user_id": "u"}, f"{BY_USER})"),
        ({"state": "ended", "user_id": "u"}, f"{BY_USER})"),
        ({"state": "ended", "user_id": "u", "after": (NOW, 7)}, f"{BY_USER} AND started_ms<?)"),
        ({"user_id": "u", "linked_id": "v"}, f"{BY_USER})"),
        ({"state": "ended", "user_id": "u", "linked_id": "v", "after": (NOW, 7)}, f"{BY_USER} AND started_ms<?)"),
        ({"state": "running", "label": ("a", "b")}, f"{BY_STATE})"),
        ({"state": "running", "after": (NOW, 7)}, f"{BY_STATE} AND started_ms<?)"),
        ({"state": "ended", "started_after": NOW}, f"{BY_STATE} AND started_ms>?)"),
        ({"label": (CLIENT_ID_LABEL, "a")}, f"{BY_CLIENT_ID})"),
        ({}, f"{BY_START})"),
        ({"after": (NOW, 7)}, f"{BY_START} AND started_ms<?)"),
    ],
)
async def test_a_list_is_read_in_the_order_of_an_index(
    sqlite: SqliteStore, wanted: dict[str, Any], found_by: str
) -> None:
    """A page costs what is on it: sessions in another state are not looked at, and nothing is sorted."""
    everything = SessionFilter(project="p", **wanted)
    clauses, named = conditions_of(everything, "sqlite")
    look = plan_of(everything, "sqlite")
    for listing, given in (
        (in_order(LIST_STREAMS.format(conditions=clauses), everything, "limit"), {**named, "limit": 10}),
        (in_order(look.text(LOOK), everything, "size"), {**look.values, "size": 10}),
    ):
        found = await sqlite.database.write(partial(explain, query=listing, values=given))
        steps = [step.replace("COVERING INDEX", "INDEX") for step in found if step.startswith("SEARCH s ")]
        ids = 2 if "linked_id" in wanted else 1
        assert [found_by.replace("SEARCH streams ", "SEARCH s ")] * ids == steps
        assert [] == [step for step in found if step.startswith("SCAN s ")]
        assert 2 * (ids - 1) == sum("TEMP B-TREE" in step for step in found), "a page of each of two ids is sorted"


@pytest.mark.parametrize(
    ("wanted", "found_by"),
    [
        ({"interrupted": True}, "streams_interrupted (project=? AND kind=?)"),
        ({"interrupted": True, "slow_ms": 1500, "after": (NOW, 7)}, "streams_interrupted (project=? AND kind=?"),
        ({"slow_ms": 1500}, "streams_slow (project=? AND kind=?)"),
        ({"outcome": "sold", "interrupted": True}, "streams_by_outcome (project=? AND kind=? AND outcome=?)"),
        ({"slow_ms": 1500, "state": "running"}, "streams_slow (project=? AND kind=?)"),
        ({"slow_ms": 100}, "streams_by_start (project=? AND kind=?)"),
        ({"interrupted": False, "label": ("a", "b")}, "streams_by_start (project=? AND kind=?)"),
    ],
)
async def test_slim_rows_are_found_by_what_was_saved_of_memories(
    sqlite: SqliteStore, wanted: dict[str, Any], found_by: str
) -> None:
    """Other calls are not looked at, and nothing is sorted."""
    for listing in (LOOK, COUNT_LOOKS):
        look = plan_of(SessionFilter(project="p", **wanted), "sqlite")
        query, values = look.text(listing), {**look.values, "size": 10}
        found = await sqlite.database.write(partial(explain, query=query, values=values))
        (step,) = (step for step in found if step.startswith("SEARCH s "))
        assert f"USING INDEX {found_by}" in step.replace("COVERING INDEX", "INDEX")
        assert [] == [step for step in found if "TEMP B-TREE" in step or step.startswith("SCAN s ")]


async def test_sessions_of_given_keys_are_found_by_these(sqlite: SqliteStore) -> None:
    """Then the order comes last, and a list of rows reads no other session."""
    look = plan_of(SessionFilter(project="p", keys=(1, 2), user_id="u"), "sqlite")
    for text, values in ((look.text(LOOK), {**look.values, "size": 10}), (LIST_OVERVIEWS, {"keys": (1, 2)})):
        steps = await sqlite.database.write(partial(explain, query=text, values=values))
        assert "SEARCH s USING INTEGER PRIMARY KEY (rowid=?)" in steps


@pytest.mark.parametrize(
    ("query", "found_by"),
    [
        (COUNT_OPEN, ["streams_open_by_key_id (key_id=?)"]),
        (COUNT_BEGUN, ["streams_by_key_id (key_id=? AND started_ms>?)", "streams_restored_by_key_id (key_id=?"]),
    ],
)
async def test_quotas_of_keys_read_an_index_only(sqlite: SqliteStore, query: str, found_by: list[str]) -> None:
    """What a key has begun is counted without a look at any session."""
    values = {"name": "k", "since": NOW, "most": 1}
    query = query.format(whose=IS_OF_KEY)
    found = await sqlite.database.write(partial(explain, query=query, values=values))
    steps = [f"COVERING INDEX {one}" for one in found_by]
    assert steps == [step for step in steps if step in " ".join(found)], found


@pytest.mark.parametrize("query", [COUNT_PENDING, COUNT_DUE, SELECT_OLDEST_PENDING])
async def test_figures_of_deliveries_read_no_rows(sqlite: SqliteStore, query: str) -> None:
    """Millions may wait for a receiver that is down, and metrics are read all the time."""
    values = {"now_ms": NOW} if query is COUNT_DUE else {}
    (step,) = await sqlite.database.write(partial(explain, query=query, values=values))
    assert "COVERING INDEX deliveries_due" in step or "INDEX deliveries_by_state (state>?)" in step


@pytest.mark.parametrize(
    ("wanted", "found_by"),
    [
        ({}, "memories_by_project (project=?"),
        ({"user_ids": AnyOf(("ann",))}, "memories_by_user (project=? AND user_id=?"),
        ({"user_ids": AnyOf(("ann", "tel"))}, "memories_by_user (project=? AND user_id=?"),
        ({"session_ids": AnyOf(("s",))}, "memories_by_session (project=? AND session_id=?"),
        ({"user_ids": AnyOf(("ann",)), "kinds": NoneOf(("fact",))}, "memories_by_user (project=? AND user_id=?"),
    ],
)
async def test_memories_are_listed_in_the_order_of_an_index(
    sqlite: SqliteStore, wanted: dict[str, Any], found_by: str
) -> None:
    """Those of others are not looked at, and nothing is sorted but two pages of one person's ids."""
    chosen = Conditions(MemoryFilter(project="p", **wanted))
    query, values = listing_of(chosen), {**chosen.values, "limit": 10}
    found = await sqlite.database.write(partial(explain, query=query, values=values))
    ids = len(wanted["user_ids"].values) if "user_ids" in wanted else 1
    assert [f"SEARCH m USING INDEX {found_by})"] * ids == [step for step in found if step.startswith("SEARCH m ")]
    assert [] == [step for step in found if step.startswith("SCAN m")]
    assert 2 * (ids - 1) == sum("TEMP B-TREE" in step for step in found)


@pytest.mark.parametrize(
    "wanted", [{}, {"user_ids": AnyOf(("ann",)), "kinds": AnyOf(("fact",))}, {"user_ids": AnyOf(("ann", "tel"))}]
)
async def test_memories_are_found_by_their_words_first(sqlite: SqliteStore, wanted: dict[str, Any]) -> None:
    """Whatever else is asked for: no row is read that has not the words."""
    chosen = Conditions(MemoryFilter(project="p", **wanted))
    query = FIND_MEMORIES.format(conditions=chosen.sql)
    found_by = {"match": 'scope : "p" AND said : ("walnuts")', "numbers": [1], "first": 0, "each": 1}
    found = await sqlite.database.write(partial(explain, query=query, values=chosen.values | found_by))
    assert found[0].startswith("SCAN memory_words VIRTUAL TABLE INDEX 0:M")
    assert "SEARCH m USING INTEGER PRIMARY KEY (rowid=?)" in found


def explain(connection: SqliteConnection, query: str, values: dict[str, Any]) -> list[str]:
    return [str(row[3]) for row in connection.rows(f"explain query plan {query}", **values)]
