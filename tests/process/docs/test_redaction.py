"""What redaction does to a sentence."""

from __future__ import annotations

import asyncio
import sys
from pathlib import Path

from tests.support.documentation import TEXTS, code_blocks


async def test_the_program_of_the_page_prints_what_it_shows(tmp_path: Path) -> None:
    """The first program in docs/redaction.md runs as printed."""
    program, shown = (code_blocks(TEXTS["redaction.md"], language)[0] for language in ("python", "text"))
    running = await asyncio.create_subprocess_exec(
        sys.executable, "-c", program, cwd=tmp_path, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    printed, errors = await asyncio.wait_for(running.communicate(), 60)
    assert (0, "", shown) == (running.returncode, errors.decode(), printed.decode())
