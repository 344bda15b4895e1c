"""The schema is made by whoever starts first, also when several start at once."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.support.needs import needs_postgresql

needs_postgresql()

from tests.support import postgresql  # noqa: E402
from tests.support.stores.contract import NOW  # noqa: E402
from voicemem.store.postgresql.connection import connect  # noqa: E402
from voicemem.store.postgresql.schema import add_partitions, missing_partitions, one_at_a_time  # noqa: E402

pytestmark = pytest.mark.postgresql
LATER = NOW + 10 * 366 * 86_400_000
"""A time of which there are no partitions yet."""
WAITERS = "select count(*) from pg_stat_activity where wait_event_type = 'Lock' and datname = '{}'"


@pytest.fixture
def database() -> Iterator[str]:
    """A voicemem database that a test has to itself."""
    name = postgresql.take_database()
    yield name
    postgresql.give_back(name)


def test_nodes_that_start_at_once_make_partitions_one_after_the_other(database: str) -> None:
    """The second one waits until the first has made them, and finds nothing left to do."""
    server = postgresql.server()
    first, second = connect(server.url(database)), connect(server.url(database))
    with ThreadPoolExecutor() as threads:
        with one_at_a_time(first):
            made = missing_partitions(first, LATER)
            for name, begin, end in made:
                first.execute(f"create table {name} partition of journal for values from ({begin}) to ({end})")
            waiting = threads.submit(add_partitions, second, LATER)
            while server.execute(WAITERS.format(database)) == [(0,)]:
                assert not waiting.done()
        waiting.result()
    assert (12, []) == (len(made), missing_partitions(second, LATER))
    for name, *_ in made:
        first.execute(f"drop table {name}")
    first.close()
    second.close()
