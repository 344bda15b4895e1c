"""`voicemem` as a node of a crash run: with a short lease, a clock that is wrong, or a fault that was planted.

It runs as a file, with the folder of the program in PYTHONPATH, which may be that of an older version.
"""

from __future__ import annotations

import argparse
import faulthandler
import importlib
import sys
from collections.abc import AsyncIterator, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from types import ModuleType
from typing import Any

OWN_NODE = ("voicemem.sessions.node_lease", "voicemem.sessions.nodes")
"""Where the lease is, the newest place first."""


def module_of(names: Sequence[str], attribute: str) -> ModuleType:
    """The first module of these that there is in this version, with this attribute."""
    for name in names:
        try:
            module = importlib.import_module(name)
        except ModuleNotFoundError:
            continue
        if hasattr(module, attribute):
            return module
    raise SystemExit(f"No {attribute} in {' or '.join(names)}")


def shorten_lease(lease_ms: int) -> None:
    """Let nodes count as dead sooner, so that many may die in a run."""
    module = module_of(OWN_NODE, "LEASE_MS")
    module.__dict__.update(LEASE_MS=lease_ms, HEARTBEAT_S=lease_ms / 10_000)


def shift_clock(ahead_ms: int) -> None:
    """Let the clock of this process be ahead."""
    service: Any = importlib.import_module("voicemem.cli.service")
    now_ms = importlib.import_module("voicemem.runtime").now_ms
    running = service.running

    @asynccontextmanager
    async def shifted(settings: Any, tracer: Any = None) -> AsyncIterator[Any]:
        serving: AbstractAsyncContextManager[Any] = running(settings, lambda: now_ms() + ahead_ms, tracer)
        async with serving as app:
            yield app

    service.running = shifted


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--lease-ms", type=int, required=True)
    parser.add_argument("--ahead-ms", type=int, default=0)
    parser.add_argument("--plant", help="a fault, as bench.crash.nodes.plants has them")
    options, arguments = parser.parse_known_args()
    faulthandler.enable()
    shorten_lease(options.lease_ms)
    shift_clock(options.ahead_ms)
    if options.plant:
        importlib.import_module("bench.crash.nodes.plants").plant(options.plant)
    sys.argv = ["voicemem", *arguments]
    importlib.import_module("voicemem.__main__").main()


if __name__ == "__main__":
    main()
