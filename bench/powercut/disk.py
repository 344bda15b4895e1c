"""A disk that loses its power: of what was not synced, each write is kept, dropped or torn.

`Disk` is an SQLite VFS on top of the machine's own. Files are written through, so that a running store sees what it
wrote; in addition the disk keeps what has reached the platter: the content as of the last sync, and the writes and
truncations since. The same holds for the directory: a name that was created or removed is certainly there, or gone,
only once the directory was synced, which SQLite's own VFS does with the first sync of a new log and with some deletes.
"""

# ruff: noqa: N802 (SQLite's names)
from __future__ import annotations

import os
import random
import threading
from collections import Counter
from pathlib import Path
from typing import NamedTuple

import apsw

BASE = "unix"
SECTOR = 512
KINDS = (
    (apsw.SQLITE_OPEN_MAIN_DB, "database"),
    (apsw.SQLITE_OPEN_WAL, "wal"),
    (apsw.SQLITE_OPEN_MAIN_JOURNAL, "journal"),
    (apsw.SQLITE_OPEN_SUPER_JOURNAL, "journal"),
)
FATES = {"kept": 40, "dropped": 30, "torn at sectors": 15, "torn at a byte": 10, "garbage": 5}
"""Fates of an unsynced write, by weight. Garbage stays within the write's own range (SQLite relies on no more)."""


class SyncFailed(apsw.IOError):
    """The value that SQLite's own VFS reports."""

    extendedresult = apsw.SQLITE_IOERR_FSYNC


class Change(NamedTuple):
    """A write, or a truncation (`data` is None), that is not synced."""

    offset: int
    data: bytes | None


class NoPower(apsw.IOError):
    """The machine is off."""

    extendedresult = apsw.SQLITE_IOERR


class Content:
    """A file: what is on the platter, and what has changed since its last sync, in order."""

    def __init__(self, kind: str, platter: bytes) -> None:
        self.kind = kind
        self.platter = bytearray(platter)
        self.unsynced: list[Change] = []

    def sync(self) -> None:
        for change in self.unsynced:
            apply(self.platter, change)
        self.unsynced.clear()


def apply(content: bytearray, change: Change) -> None:
    if change.data is None:
        if len(content) > change.offset:
            del content[change.offset :]
        else:
            content.extend(bytes(change.offset - len(content)))
        return
    if len(content) < change.offset:
        content.extend(bytes(change.offset - len(content)))
    content[change.offset : change.offset + len(change.data)] = change.data


class Disk(apsw.VFS):
    """Serves every connection that is opened while it is registered.

    `choice` decides all fates. With `lying`, the disk does not sync files of that kind.
    """

    def __init__(self, choice: random.Random, lying: str | None = None) -> None:
        super().__init__("powercut", BASE, makedefault=True)
        self.choice = choice
        self.lying = lying
        self.lock = threading.RLock()
        self.files: dict[str, Content] = {}
        """What the running system sees, by path."""
        self.known: set[str] = set()
        """Every path that was ever opened; all other files are on the platter as they are."""
        self.entries: dict[str, Content] = {}
        """The directory on the platter."""
        self.renamed: list[tuple[str, Content | None]] = []
        """Unsynced changes of the directory, in order: a name, and the file it stands for from then on."""
        self.aim = ""
        self.countdown = 0
        self.cut = True
        self.dead = False
        self.image: dict[str, bytes] | None = None
        """What is on the disk of the machine without power."""
        self.sync_error = 0
        """Let the n-th sync of the log from now on fail; what it should have synced never reaches the platter."""
        self.failed = False
        self.seen: Counter[str] = Counter()
        self.fates: Counter[str] = Counter()
        self.last = ""

    # When it ends

    def arm(self, aim: str, countdown: int, cut: bool) -> None:
        """Cut the power, or (without `cut`) kill the process, at the n-th operation with this prefix."""
        self.aim, self.countdown, self.cut = aim, countdown, cut

    def step(self, operation: str, content: Content, change: Change | None = None) -> None:
        """Called before an operation. Raises `NoPower` if the power fails at it, or has failed."""
        self.refuse_dead()
        name = f"{content.kind} {operation}"
        self.seen[name] += 1
        if not name.startswith(self.aim):
            return
        self.countdown -= 1
        if self.countdown == 0:
            if self.cut and change is not None:
                content.unsynced.append(change)  # the power fails in the middle of it
            self.end(f"at a {name}")
            self.refuse_dead()

    def fail_sync(self, content: Content) -> None:
        """As in Linux: pages that could not be written count as clean, and are lost with the power."""
        self.sync_error -= content.kind == "wal"
        if self.sync_error == 0 and content.kind == "wal":
            content.unsynced.clear()
            self.failed = True
            raise SyncFailed("the sync failed")

    def refuse_dead(self) -> None:
        if self.dead:
            raise NoPower("there is no power")

    def end(self, how: str) -> None:
        with self.lock:
            if self.dead:
                return
            self.dead, self.last = True, how
            if self.cut:
                self.image = self.after_cut()

    def revive(self) -> None:
        """Let another process start on the same machine: what was not synced still is not."""
        self.dead = False

    def after_cut(self) -> dict[str, bytes]:
        """The files by path, as they are found once the power is back."""
        entries = dict(self.entries)
        for name, content in self.renamed:
            if self.choice.random() < 0.5:
                continue
            if content is None:
                entries.pop(name, None)
            else:
                entries[name] = content
        how = self.choice.choice(("each alone", "each alone", "none", "all", "the first"))
        return {name: self.found(content, how) for name, content in entries.items()}

    def found(self, content: Content, how: str) -> bytes:
        """What is on the platter of a file. Two writes to one place keep their order."""
        found = bytearray(content.platter)
        first = self.choice.randrange(len(content.unsynced) + 1)
        for number, change in enumerate(content.unsynced):
            fate = "kept" if how == "all" or (how == "the first" and number < first) else "dropped"
            if how == "each alone" or (how == "the first" and number == first):
                fate = self.choice.choices(list(FATES), list(FATES.values()))[0]
            self.fates[fate] += 1
            self.meet(found, change, fate)
        return bytes(found)

    def meet(self, found: bytearray, change: Change, fate: str) -> None:
        offset, data = change
        if fate == "dropped" or (data is None and fate != "kept"):
            return
        if data is None or fate == "kept":
            apply(found, change)
        elif fate == "torn at a byte":
            apply(found, Change(offset, data[: self.choice.randrange(len(data) + 1)]))
        elif fate == "garbage":
            apply(found, Change(offset, self.choice.randbytes(len(data))))
        else:
            start = 0
            while start < len(data):
                end = min(len(data), start + SECTOR - (offset + start) % SECTOR)
                if self.choice.random() < 0.5:
                    apply(found, Change(offset + start, data[start:end]))
                start = end

    # Files

    def xOpen(self, name: str | apsw.URIFilename | None, flags: list[int]) -> apsw.VFSFile:
        kind = next((kind for bit, kind in KINDS if flags[0] & bit), None)
        if name is None or kind is None:  # a temporary file need not survive anything
            return apsw.VFSFile(BASE, name, flags)
        path = name.filename() if isinstance(name, apsw.URIFilename) else name
        with self.lock:
            self.refuse_dead()
            return File(self, name, flags, self.content(path, kind))

    def content(self, path: str, kind: str) -> Content:
        """The file of this name; it is created if there is none."""
        self.known.add(path)
        if path in self.files:
            return self.files[path]
        there = os.path.exists(path)
        content = Content(kind, Path(path).read_bytes() if there else b"")
        if there:
            self.entries[path] = content
        else:
            self.step("make", content)
            self.renamed.append((path, content))
        self.files[path] = content
        return content

    def xDelete(self, filename: str, syncdir: bool) -> None:
        with self.lock:
            self.refuse_dead()
            content = self.files.get(filename)
            if content is not None:
                self.step("delete", content)
            super().xDelete(filename, syncdir)
            self.files.pop(filename, None)
            self.renamed.append((filename, None))
            if syncdir:
                self.sync_directory()

    def sync_directory(self) -> None:
        for name, content in self.renamed:
            if content is None:
                self.entries.pop(name, None)
            else:
                self.entries[name] = content
        self.renamed.clear()


class File(apsw.VFSFile):
    """An open file of a `Disk`."""

    def __init__(self, disk: Disk, name: str | apsw.URIFilename, flags: list[int], content: Content) -> None:
        super().__init__(BASE, name, flags)
        self.disk = disk
        self.content = content
        # As unixOpen has it (UNIXFILE_DIRSYNC): whether or not the log was there before.
        self.syncs_directory = bool(flags[0] & apsw.SQLITE_OPEN_CREATE) and content.kind != "database"

    def xWrite(self, data: bytes, offset: int) -> None:
        change = Change(offset, bytes(data))
        with self.disk.lock:
            self.disk.step("write", self.content, change)
            super().xWrite(data, offset)
            self.content.unsynced.append(change)

    def xTruncate(self, newsize: int) -> None:
        with self.disk.lock:
            self.disk.step("truncate", self.content, Change(newsize, None))
            super().xTruncate(newsize)
            self.content.unsynced.append(Change(newsize, None))

    def xSync(self, flags: int) -> None:
        with self.disk.lock:  # the real disk need not sync: only this one loses its power
            self.disk.step("sync", self.content)
            if self.content.kind == self.disk.lying:
                return
            self.disk.fail_sync(self.content)
            self.content.sync()
            if self.syncs_directory:
                self.disk.sync_directory()
                self.syncs_directory = False
