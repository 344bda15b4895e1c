"""voicemem without a server."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

import pytest

from tests.support.documentation import TEXTS, code_blocks


@pytest.mark.parametrize("number", range(2))
async def test_the_programs_of_the_page_print_what_it_shows(number: int, tmp_path: Path) -> None:
    """Each program in docs/library.md runs as printed, a second time on its own file too."""
    program, shown = (
        code_blocks(TEXTS["library.md"], "python")[number],
        code_blocks(TEXTS["library.md"], "text")[number],
    )
    for _ in range(2):
        running = await asyncio.create_subprocess_exec(
            sys.executable, "-c", program, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
        )
        printed, errors = await asyncio.wait_for(running.communicate(), 60)
        assert (0, "", shown) == (running.returncode, errors.decode(), printed.decode())


async def test_a_session_is_shown_as_over_rest() -> None:
    """`info`, `update` and `end` return the record that REST shows."""
    from voicemem import open
    from voicemem.sessions.lifecycle import SessionInfo

    async with open() as library:
        call = await library.create("call-1", name="Desk")
        assert isinstance(await call.info(), SessionInfo)
        assert (await call.update(labels={"desk": "front"})).config["labels"] == {"desk": "front"}
        ended = await call.end(reason="hangup")
        assert (ended.session_id, ended.state, ended.reason) == ("call-1", "ended", "hangup")
        assert await call.info() == ended
