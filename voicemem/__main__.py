"""The command `voicemem`, also as `python -m voicemem`."""

from __future__ import annotations

import gc
import io
import os
import sys
from importlib.metadata import PackageNotFoundError, distribution

from voicemem.version import without_server


def main() -> None:
    """Run the command line, or say in one sentence why it cannot be run."""
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="replace")  # a terminal without UTF-8 shows a question mark for what it has not
    warning = namesake_warning()
    if warning is not None:
        sys.stderr.write(f"voicemem: {warning}\n")
    gc.disable()  # nearly all that is imported stays
    try:
        from voicemem import cli
    except ModuleNotFoundError as error:
        explained = without_server(error)
        if explained is error:
            raise
        sys.exit(f"voicemem: {explained}")
    gc.enable()
    try:
        cli.main()
    except OSError as error:
        # What is still in the buffer cannot be written either, and Python would try that at its end, and complain.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        sys.exit(f"voicemem: {error.strerror or error}")


def namesake_warning() -> str | None:
    """Return the warning that another project has put its files into this package's folder: its name is `voicemem`."""
    try:
        other = distribution("voicemem")
    except PackageNotFoundError:
        return None
    if "voicemem/__init__.py," not in (other.read_text("RECORD") or ""):
        return None  # an editable install of ours, from before it was called voicemem-core
    return (
        f"The distribution voicemem {other.version} belongs to another project, whose files overwrite ours or are "
        "overwritten by them: run pip uninstall voicemem voicemem-core, then install voicemem-core again."
    )


if __name__ == "__main__":
    main()
