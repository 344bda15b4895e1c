"""The files of a store: private to their owner, and held by one server."""

from __future__ import annotations

import fcntl
import os
from contextlib import suppress

from voicemem.errors import CannotStart


def make_private(path: str) -> None:
    """Make a new file readable for its owner alone, since it holds secrets; its log and index take that over."""
    if os.path.exists(path):  # to close it here would let go of the locks that this process has on it
        return
    with suppress(OSError):  # what cannot be made is told by SQLite
        os.close(os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600))


def lock_file(path: str) -> int:
    """Hold `PATH.lock` for this process: one server per file. A killed process lets go of it by itself."""
    try:
        descriptor = os.open(f"{path}.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    except OSError as error:
        raise CannotStart(f"The folder of {path} cannot be written: {error.strerror}.") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        raise CannotStart(f"Another server holds {path}; one server per file.") from None
    return descriptor
