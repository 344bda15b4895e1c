"""What all lanes share. It imports nothing of the service: every worker pays for that."""

from __future__ import annotations

import gc
import os
import re
import signal
import sys
from collections.abc import Generator

import pytest

# Tests start many processes, and each would compile all that it imports.
sys.dont_write_bytecode = False
os.environ.pop("PYTHONDONTWRITEBYTECODE", None)
pytest.register_assert_rewrite("tests.support")

from tests.support import profiles  # noqa: E402
from tests.support.needs import needs  # noqa: E402

profiles.register()
# A shell starts `command &` with Ctrl-C ignored, and so would be all that tests start and interrupt.
signal.signal(signal.SIGINT, signal.default_int_handler)
gc.disable()  # until all is collected: what collection makes stays, and is looked at again and again

ADDRESS = re.compile("0x[0-9a-f]{9,}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    """Ask for what a test needs before its fixtures start anything."""
    for mark in item.iter_markers("needs"):
        for name in mark.args:
            needs(name)


@pytest.hookimpl(wrapper=True)
def pytest_make_collect_report(
    collector: pytest.Collector,
) -> Generator[None, pytest.CollectReport, pytest.CollectReport]:
    """Begin each folder elsewhere in each worker: one compiles what the others then find in the cache."""
    report = yield
    worker = getattr(collector.config, "workerinput", None)
    if worker is not None and isinstance(collector, pytest.Directory):
        start = len(report.result) * int(worker["workerid"].removeprefix("gw")) // worker["workercount"]
        report.result = [*report.result[start:], *report.result[:start]]
    return report


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All workers have the same tests in the same order, and no id that holds an object's address, which differs."""
    items.sort(key=lambda item: item.path)
    for item in items:
        if ADDRESS.search(item.nodeid):
            raise pytest.UsageError(f"the id of a test holds the address of an object: {item.nodeid}")


def pytest_collection_finish() -> None:
    """What was collected stays until the end: no collection of garbage need look at it, not even once."""
    gc.freeze()
    gc.enable()
