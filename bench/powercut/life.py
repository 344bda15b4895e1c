"""The life of one database: work, a power cut (perhaps after kills), a check, and more work on what is left."""

from __future__ import annotations

import random
import shutil
import tempfile
from collections import Counter
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

import apsw

from bench.powercut.check import check_file, check_store
from bench.powercut.disk import Disk
from bench.powercut.ledger import Ledger
from bench.powercut.work import keep_busy
from voicemem.errors import CannotStart, StoreUnavailable
from voicemem.store.sqlite.backup import SIDE_FILES
from voicemem.store.sqlite.store import SqliteStore

NAME = "calls.db"
AIMS = {
    "": (1, 1_200),
    "wal write": (1, 700),
    "wal sync": (1, 40),
    "database write": (1, 150),
    "database sync": (1, 4),
    "wal delete": (1, 1),
    "wal make": (1, 1),
    "journal": (1, 6),
}
WEIGHTS = (4, 8, 4, 4, 2, 1, 1, 1)
"""Where the power fails, and after how many operations of the kind; at the end of the work if they do not come."""


@dataclass
class Summary:
    """The results, over many databases."""

    cuts: int = 0
    kills: int = 0
    sync_errors: int = 0
    checked: int = 0
    events: int = 0
    closes: int = 0
    fates: Counter[str] = field(default_factory=Counter)
    ends: Counter[str] = field(default_factory=Counter)
    findings: list[str] = field(default_factory=list)

    def told(self, seed: int, seconds: float) -> dict[str, object]:
        torn = sum(count for fate, count in self.fates.items() if fate not in ("kept", "dropped"))
        lost = sum("LOST" in finding for finding in self.findings)
        return {
            "bench": "powercut", "seed": seed, "cuts": self.cuts, "kills": self.kills, "sync_errors": self.sync_errors,
            "acknowledged_events": self.events, "acknowledged_events_checked": self.checked,
            "acknowledged_closes": self.closes, "unsynced_writes": self.fates, "torn_writes": torn, "cut": self.ends,
            "findings": len(self.findings), "lost": lost, "first": self.findings[:3], "seconds": seconds,
        }  # fmt: skip


class Life:
    """One database. `broken` is None, "normal" (synchronous=NORMAL) or "lying" (see `Disk`)."""

    def __init__(
        self, folder: Path, seed: int, steps: int, broken: str | None, sync_errors: bool, summary: Summary
    ) -> None:
        self.folder = folder
        self.seed = seed
        self.steps = steps
        self.broken = broken
        self.sync_errors = sync_errors
        self.summary = summary
        self.ledger = Ledger()
        self.choice = random.Random(0)
        self.ended = ""

    async def run(self, rounds: range) -> None:
        """Run until a finding, or to the last round."""
        self.folder.mkdir()
        for number in rounds:
            self.choice = random.Random(f"{self.seed} {number}")
            image = await self.cut()
            self.summary.cuts += 1
            await self.check(image)
            if self.ledger.findings:
                self.keep(number, rounds.start, image)
                break
            self.lay(image, self.folder)
        for call in self.ledger.calls.values():
            self.summary.events += sum(len(producer.positions) for producer in call.producers.values())
            self.summary.closes += len(call.closes)
        self.summary.checked += self.ledger.checked
        shutil.rmtree(self.folder)

    async def cut(self) -> dict[str, bytes]:
        """Work on the disk until its power fails; returns what is on it then."""
        disk = Disk(self.choice, "database" if self.broken == "lying" else None)
        try:
            for _ in range(1 if self.sync_errors else self.choice.choice((0, 0, 1, 2))):
                self.arm(disk, cut=False)
                disk.sync_error = self.choice.randint(1, 30) if self.sync_errors else 0
                await self.live(disk)
                self.summary.kills += 1
                self.summary.sync_errors += disk.failed
                disk.revive()
            self.arm(disk, cut=True)
            await self.live(disk)
        finally:
            disk.unregister()
        self.summary.fates += disk.fates
        self.ended = disk.last
        self.summary.ends[disk.last] += 1
        assert disk.image is not None
        untouched = {path.name: path.read_bytes() for path in self.files() if str(path) not in disk.known}
        return untouched | {Path(path).name: content for path, content in disk.image.items()}

    def files(self) -> list[Path]:
        """The existing files of the database, except the index of the log, which is rebuilt."""
        names = (NAME, *(f"{NAME}{suffix}" for suffix in SIDE_FILES if suffix != "-shm"))
        return [self.folder / name for name in names if (self.folder / name).exists()]

    def arm(self, disk: Disk, cut: bool) -> None:
        (aim,) = self.choice.choices(list(AIMS), WEIGHTS)
        disk.arm(aim, self.choice.randint(*AIMS[aim]), cut)

    async def live(self, disk: Disk) -> None:
        """Run one process: it opens the store, works, and ends with the disk."""
        for call in self.ledger.calls.values():
            for producer in call.producers.values():
                producer.epoch = None
        try:
            store = SqliteStore(str(self.folder / NAME))
        except CannotStart as error:
            self.note(disk, error)
            disk.end("while it starts")
            return
        try:
            if self.broken == "normal":
                store.database.writer.pragma("synchronous", 1)
            checkpoints = store.database.checkpoints
            assert checkpoints is not None
            checkpoints.pages = self.choice.choice((1000, 50, 20))
            checkpoints.most_pages = 4 * checkpoints.pages
            await store.directory.set_operator_endpoint("http://127.0.0.1/", None)
            await keep_busy(store, self.ledger, self.choice, self.choice.randint(1, self.steps))
            if self.choice.random() < 0.5:
                disk.end("after the work")
        except StoreUnavailable as error:
            self.note(disk, error)
            disk.end("after a failed sync")  # as the server does
        finally:
            with suppress(apsw.IOError):  # at its checkpoint
                await store.close_store()
            store.database.unlock()  # as the end of a process does
            disk.end("after the close")

    def note(self, disk: Disk, error: Exception) -> None:
        """Ignore errors once the power has failed: they are not findings."""
        if not (disk.dead or disk.failed):
            self.ledger.findings.append(f"without cause: {error!r} {error.__cause__!r}")

    async def check(self, image: dict[str, bytes]) -> None:
        """Open a copy of what the cut has left, on a sound disk."""
        with tempfile.TemporaryDirectory(dir=self.folder) as copy:
            self.lay(image, Path(copy))
            path = f"{copy}/{NAME}"
            try:
                store = SqliteStore(path)
                try:
                    await check_store(store, self.ledger)
                finally:
                    await store.close_store()
                check_file(path, self.ledger)
            except (CannotStart, StoreUnavailable) as error:
                self.ledger.findings.append(f"the store does not open, or cannot be read: {error}")

    def lay(self, image: dict[str, bytes], folder: Path) -> None:
        """Make these the database's files."""
        for name in (NAME, *(f"{NAME}{suffix}" for suffix in SIDE_FILES)):
            (folder / name).unlink(missing_ok=True)
        for name, content in image.items():
            (folder / name).write_bytes(content)
        if self.choice.random() < 0.3:  # the index of the log is rebuilt in any case
            (folder / f"{NAME}-shm").write_bytes(self.choice.randbytes(32 * 1024))

    def keep(self, number: int, first: int, image: dict[str, bytes]) -> None:
        """The findings, with the arguments that repeat them."""
        where = "" if self.broken else f" (files kept in {self.keep_files(image)})"
        how = f"Cut {self.ended}, --seed {self.seed} --first {first} --rounds {number - first + 1}{where}"
        self.summary.findings += [f"{how}: {finding}" for finding in self.ledger.findings]

    def keep_files(self, image: dict[str, bytes]) -> str:
        folder = Path(tempfile.mkdtemp(prefix="powercut-finding-"))
        self.lay(image, folder)
        return str(folder)
