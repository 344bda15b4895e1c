"""Two PostgreSQL servers, of which one is the standby of the other, and failovers between them."""

from __future__ import annotations

import time
from contextlib import suppress

from bench.harness.node_processes import ADMINISTRATOR
from bench.harness.postgresql import Cluster
from voicemem.cli.common import CommandFailed

WAIT_S = 60.0
SETTINGS = {"wal_keep_size": "256MB", "wal_retrieve_retry_interval": "200ms"}
SELECT_STREAMING = "select 1 from pg_stat_replication where state = 'streaming'"


class Pair:
    """A primary and its standby. A `synchronous` standby has what the primary has acknowledged."""

    def __init__(self, synchronous: bool = True) -> None:
        self.synchronous = synchronous
        self.primary = Cluster(SETTINGS)
        self.standby = Cluster(standby_of=self.primary)
        self.wait_for_standby()

    def url(self, database: str, **options: str) -> str:
        """Names both servers; whoever connects gets to the one that takes writes."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.primary.folder},{self.standby.folder}&user=voicemem{more}"

    @property
    def is_whole(self) -> bool:
        """Whether the standby follows the primary."""
        return bool(self.primary.execute(SELECT_STREAMING))

    def wait_for_standby(self) -> None:
        """Wait until the standby follows, then let commits wait for it if it is a synchronous one."""
        deadline = time.monotonic() + WAIT_S
        while not self.is_whole:
            assert time.monotonic() < deadline, "the standby does not follow"
            time.sleep(0.05)
        if self.synchronous:
            self.wait_for_commits("*")

    def wait_for_replay(self) -> None:
        """Wait until the standby shows all that the primary has by now: it may have it, and not show it yet."""
        ((written,),) = self.primary.execute("select pg_current_wal_lsn()::text")
        deadline = time.monotonic() + WAIT_S
        while self.standby.execute(f"select pg_last_wal_replay_lsn() >= '{written}'") != [(True,)]:
            assert time.monotonic() < deadline, "the standby does not come after"
            time.sleep(0.05)

    def wait_for_commits(self, names: str) -> None:
        """Let commits wait for standbys of these names; none if it is empty."""
        self.primary.execute(f"alter system set synchronous_standby_names = '{names}'")
        self.primary.execute("select pg_reload_conf()")

    def promote(self) -> None:
        """Let the standby take the primary's place; the primary must be dead."""
        self.primary, self.standby = self.standby, self.primary
        self.primary.run("pg_ctl", "promote", "-w", "-D", self.primary.data)

    def fail_over(self) -> None:
        """Kill the primary, and promote the standby."""
        self.primary.kill()
        self.promote()

    def rejoin(self) -> None:
        """Bring the old primary back as the standby of the new one."""
        source = f"host={self.primary.folder} user={ADMINISTRATOR} dbname=postgres"
        deadline = time.monotonic() + WAIT_S
        while True:  # until the processes of before have gone
            try:
                self.standby.run("pg_rewind", "-R", "-D", self.standby.data, "--source-server", source)
                break
            except CommandFailed:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.2)
        self.standby.start_again()
        self.wait_for_standby()

    def remove(self) -> None:
        """End both, and delete their files."""
        for server in (self.primary, self.standby):
            with suppress(CommandFailed):
                server.stop()
            server.remove_folder()
