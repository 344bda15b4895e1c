"""A copy of a store answers what the store answered, in either engine."""

from __future__ import annotations

import tempfile
from collections.abc import AsyncIterator, Iterator
from contextlib import ExitStack, asynccontextmanager, contextmanager
from pathlib import Path

import pytest
from hypothesis import given

from tests.support.postgresql import database_of, server
from tests.support.profiles import examples
from tests.support.stores.full_stores import ACTS, FullStore, answers, outcomes
from voicemem.store.copying import begin_copy, compare_rows, copy_rows, finish_copy
from voicemem.store.engines import open_copy_end, open_store
from voicemem.store.port import Store

pytestmark = pytest.mark.postgresql


@contextmanager
def empty_stores() -> Iterator[tuple[str, str, str]]:
    """Where a file can be, the name of a database, and where another file can be."""
    with tempfile.TemporaryDirectory() as name, database_of(Path(name)) as database:
        yield f"sqlite:{name}/first.db", database, f"sqlite:{name}/second.db"


@asynccontextmanager
async def opened(url: str, unfinished: bool = False) -> AsyncIterator[Store]:
    store = open_store(url, unfinished=unfinished)
    try:
        yield store
    finally:
        await store.close_store()


def copy(source: str, target: str) -> None:
    """Move a store, as the command does."""
    with ExitStack() as stack:
        ours, theirs = open_copy_end(source, False, False), open_copy_end(target, True, False)
        stack.callback(theirs.close)
        stack.callback(ours.close)
        copy_rows(ours, theirs, begin_copy(ours, theirs), lambda mark: None)
        assert set() == compare_rows(ours, theirs, lambda mark: None)
        finish_copy(ours, theirs, "elsewhere", 0)


@examples(0.2)
@given(ACTS)
async def test_a_copy_answers_what_the_store_answered(acts: list[tuple[str, int, int]]) -> None:
    """Whatever was done to a file: its copy in PostgreSQL, and the copy of that in a file, answer the same.

    They take the same writes in the same way, too: resends, opens, names, sweeps, claims.
    """
    with empty_stores() as (file, name, back):
        database = server().url(name)
        async with opened(file) as store:
            full = FullStore(store)
            await full.do(acts)
            expected = await answers(full, store)
        copy(file, database)
        async with opened(database) as copied:
            assert expected == await answers(full, copied)
        copy(database, back)
        async with opened(back) as copied:
            assert expected == await answers(full, copied)
            expected_writes = await outcomes(full, copied)
        server().execute("delete from meta where name = 'moved'", name)
        for url in (file, database):
            async with opened(url, unfinished=True) as store:
                assert expected_writes == await outcomes(full, store)
