"""The program in docs/managing-memory.md runs, and what it asserts is so."""

from __future__ import annotations

import asyncio

from tests.support.documentation import TEXTS, code_blocks, start_program
from tests.support.services import Serve


async def test_the_program_that_manages_a_memory_runs(serve: Serve) -> None:
    """All examples of the page, one after the other, against a running service."""
    app = await serve()
    program = "\n".join(code_blocks(TEXTS["managing-memory.md"], "python"))
    running = await start_program(program.replace("127.0.0.1:8080", str(app.rest_address)))
    printed, errors = await asyncio.wait_for(running.communicate(), 60)
    assert (running.returncode, errors.decode()) == (0, "")
    assert printed.startswith(b"From an earlier call with this user, begun 2")
