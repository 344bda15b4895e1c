"""What all lanes share. It imports nothing of the service: every worker pays for that."""

from __future__ import annotations

import gc
import re

import pytest

pytest.register_assert_rewrite("tests.support")

from tests.support import profiles  # noqa: E402
from tests.support.needs import needs  # noqa: E402

profiles.register()
gc.disable()  # until all is collected: what collection makes stays, and is looked at again and again

ADDRESS = re.compile("0x[0-9a-f]{9,}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask for what a test needs before its fixtures start anything."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            needs(name)


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """An id that holds an object's address differs between workers, which then collect different tests."""
    for item in items:
        if ADDRESS.search(item.nodeid):
            raise pytest.UsageError(f"the id of a test holds the address of an object: {item.nodeid}")


def pytest_collection_finish() -> None:
    """What was collected stays until the end: no collection of garbage need look at it again."""
    gc.collect()
    gc.freeze()
    gc.enable()
