"""A table in one test: each row runs, and the failing ones are named."""

from __future__ import annotations

import inspect

import pytest

from tests.support.rows import every_row

SEEN: list[tuple[str, int]] = []


@every_row("word, number", [("one", 1), ("two", 3), ("three", 3), ("four", 3)])
def check(word: str, number: int) -> None:
    """A word has this many letters, or not."""
    SEEN.append((word, number))
    assert len(word) == number


@every_row("left", [1, 2])
@every_row("right", [10, 20], ids=str)
async def check_products(left: int, right: int, limit: int) -> None:
    """A product is small enough, or not."""
    assert left * right < limit


def test_all_rows_run_and_the_failing_ones_are_named() -> None:
    """A row that fails keeps no other from running, and the failure says which rows failed and why."""
    SEEN.clear()
    with pytest.raises(AssertionError, match=r"(?s)^3 of 4 rows failed:.*one · 1.*3 == 1.*three · 3.*5 == 3.*four · 3"):
        check()
    assert SEEN == [("one", 1), ("two", 3), ("three", 3), ("four", 3)]


async def test_two_tables_multiply_and_leave_the_fixtures() -> None:
    """Rows of two tables are tried together; what is no column stays a fixture."""
    assert list(inspect.signature(check_products).parameters) == ["limit"]
    await check_products(limit=41)
    with pytest.raises(AssertionError, match=r"(?s)^1 of 4 rows failed:.*2 · 20"):
        await check_products(limit=40)


def test_an_empty_table_fails() -> None:
    """A table that lost its rows does not pass silently."""
    with pytest.raises(AssertionError, match="empty"):
        every_row("word, number", [])(check)()
