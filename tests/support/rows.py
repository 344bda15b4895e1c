"""Tables of cases, each in one test: every row runs, and the failure names each row that fails.

A row of `pytest.mark.parametrize` is a test of its own, with fixtures of its own; a row here costs what it checks. What
a fixture started is shared by the rows, so they must not depend on one another.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from functools import wraps
from typing import Any

import pytest

Row = tuple[tuple[object, ...], dict[str, Any]]
"""Its name, and its cells by column."""
FAILURES = (Exception, pytest.fail.Exception)
LONGEST_NAME = 120
LONGEST_ERROR = 1500


class Rows:
    """The rows that failed so far."""

    def __init__(self) -> None:
        self.tried = 0
        self.failed: list[str] = []
        self.first: BaseException | None = None

    @contextmanager
    def __call__(self, *name: object) -> Iterator[None]:
        """Run one row; what it raises is kept until all rows have run."""
        self.tried += 1
        try:
            yield
        except FAILURES as error:
            self.first = self.first or error
            self.failed.append(f"{' · '.join(map(short, name))}\n    {str(error)[:LONGEST_ERROR] or repr(error)}")

    def check(self) -> None:
        """Fail if a row failed, or if there was none."""
        assert self.tried, "the table is empty"
        if self.failed:
            rows = "\n".join(self.failed)
            raise AssertionError(f"{len(self.failed)} of {self.tried} rows failed:\n{rows}") from self.first


@contextmanager
def all_rows() -> Iterator[Rows]:
    """Run rows in a loop: `with all_rows() as row: for one in TABLE: with row(one): ...`."""
    rows = Rows()
    yield rows
    rows.check()


def every_row(
    names: str | Sequence[str], table: Iterable[Any], ids: Callable[[Any], object] | Iterable[object] | None = None
) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    """Run a test once for all rows. It takes what `pytest.mark.parametrize` takes, and two of them multiply."""
    columns = [name.strip() for name in names.split(",")] if isinstance(names, str) else list(names)
    is_single = isinstance(names, str) and len(columns) == 1
    values = [(row,) if is_single else tuple(row) for row in table]
    if ids is None:
        labels: list[tuple[object, ...]] = list(values)
    elif callable(ids):
        labels = [tuple(ids(value) for value in row) for row in values]
    else:
        labels = [(label,) for label in ids]
    rows = [(label, dict(zip(columns, row, strict=True))) for label, row in zip(labels, values, strict=True)]

    def over_rows(test: Callable[..., Any]) -> Callable[..., Any]:
        inner: list[Row] = getattr(test, "rows", [((), {})])
        both = [(a + b, {**mine, **others}) for b, others in inner for a, mine in rows]
        return looped(getattr(test, "of_one_row", test), both)

    return over_rows


def looped(test: Callable[..., Any], rows: list[Row]) -> Callable[..., Any]:
    """Return a test that runs this one for each row; what its signature still names are fixtures."""
    if inspect.iscoroutinefunction(test):

        @wraps(test)
        async def whole(*args: Any, **fixtures: Any) -> None:
            with all_rows() as row:
                for label, cells in rows:
                    with row(*label):
                        await test(*args, **fixtures, **cells)

    else:

        @wraps(test)
        def whole(*args: Any, **fixtures: Any) -> None:
            with all_rows() as row:
                for label, cells in rows:
                    with row(*label):
                        test(*args, **fixtures, **cells)

    columns = set().union(*(cells for _, cells in rows))
    signature = inspect.signature(test)
    kept = [parameter for name, parameter in signature.parameters.items() if name not in columns]
    vars(whole).update(rows=rows, of_one_row=test, __signature__=signature.replace(parameters=kept))
    return whole


def short(value: object) -> str:
    """Name a row by one of its values."""
    text = value if isinstance(value, str) else repr(value)
    return text if len(text) <= LONGEST_NAME else f"{text[:LONGEST_NAME]}…"
