"""A real pgbouncer before the PostgreSQL server of the tests."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psycopg

from tests.support.needs import needs
from tests.support.postgresql import server

ROLE = "pooled"
ROLE_SETTINGS = {
    "default_transaction_isolation": "read committed",
    "idle_in_transaction_session_timeout": "2s",
    "lock_timeout": "1s",
    "statement_timeout": "0",
}
"""What docs/postgresql.md names: the pooler drops what connections ask for."""
START_S = 20.0


@contextmanager
def running_pgbouncer(mode: str) -> Iterator[Path]:
    """A pooler in a mode, for a role with the settings that it needs; the folder of its socket."""
    program, folder = needs("pgbouncer"), Path(tempfile.mkdtemp(prefix="voicemem-pooler-"))
    settings = "".join(f"alter role {ROLE} set {name} = '{value}';" for name, value in ROLE_SETTINGS.items())
    server().execute(f"drop role if exists {ROLE}; create role {ROLE} login in role voicemem; {settings}")
    (folder / "users.txt").write_text(f'"{ROLE}" ""\n')
    (folder / "pgbouncer.ini").write_text(f"""
[databases]
* = host={server().folder}
[pgbouncer]
listen_addr =
listen_port = 6432
unix_socket_dir = {folder}
auth_type = trust
auth_file = {folder}/users.txt
pool_mode = {mode}
default_pool_size = 20
ignore_startup_parameters = options
logfile = {folder}/log
""")
    user = ["-u", "nobody"] if os.geteuid() == 0 else []
    if user:
        for path in (folder, *folder.iterdir()):
            shutil.chown(path, "nobody")
    process = subprocess.Popen([program, "-q", *user, str(folder / "pgbouncer.ini")], stdin=subprocess.DEVNULL)
    try:
        wait_until_it_listens(folder)
        yield folder
    finally:
        process.kill()
        process.wait()
        shutil.rmtree(folder, ignore_errors=True)


def pooled_url(folder: Path, database: str, options: str = "") -> str:
    return f"postgresql:///{database}?host={folder}&port=6432&user={ROLE}{options}"


def wait_until_it_listens(folder: Path) -> None:
    deadline = time.monotonic() + START_S
    while True:
        try:
            psycopg.connect(pooled_url(folder, "postgres")).close()
            return
        except psycopg.OperationalError:
            if time.monotonic() > deadline:
                raise
            time.sleep(0.05)
