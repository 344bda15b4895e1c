"""Files that get their names once they are complete, and that only their owner may read."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from voicemem.cli.common import CommandFailed


@contextmanager
def written_file(output: Path, force: bool) -> Iterator[BinaryIO]:
    """A file to write; it is there once the block ends well. Raises `CommandFailed` if it exists, unless by `force`."""
    if output.exists() and not force:
        raise CommandFailed(f"{output} exists; --force replaces it.")
    part = output.with_name(f"{output.name}.part")
    try:
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        raise CommandFailed(f"{output} cannot be written: {error.strerror}.") from None
    try:
        with open(opened, "wb") as file:
            yield file
        part.replace(output)
    finally:
        part.unlink(missing_ok=True)
