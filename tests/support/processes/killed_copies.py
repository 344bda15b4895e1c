"""`voicemem copy` in a process of its own that is killed: at a time, or at a call of one of its ends."""

from __future__ import annotations

import asyncio
import sys

PROGRAM = """
import os, signal, sys
from voicemem.cli import main
from voicemem.store import copying
from voicemem.store.postgresql.copying import PostgresqlCopy
from voicemem.store.sqlite.copying import SqliteCopy

moment, source, target = sys.argv[1:]
copying.PORTION_ROWS = 20  # so that there are many commits

def dying(method, when):
    def call(*arguments):
        if when == "before":
            os.kill(os.getpid(), signal.SIGKILL)
        method(*arguments)
        os.kill(os.getpid(), signal.SIGKILL)
    return call

if moment[:1].isdigit():
    signal.setitimer(signal.ITIMER_REAL, float(moment))  # SIGALRM ends the process where it is
elif moment:
    name, when = moment.split()
    for end in (PostgresqlCopy, SqliteCopy):
        setattr(end, name, dying(getattr(end, name), when))
main(["copy", "--from", source, "--to", target])
"""


async def run_copy(source: str, target: str, moment: str = "never") -> tuple[int, str]:
    """Exit code and output. The moment is seconds after its start, or "METHOD before" or "METHOD after"."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-c", PROGRAM, "" if moment == "never" else moment, source, target),
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
    )
    output, _ = await process.communicate()
    assert process.returncode is not None
    return process.returncode, output.decode()
