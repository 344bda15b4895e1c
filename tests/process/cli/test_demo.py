"""`voicemem demo` on a terminal of the usual size, and in a pipe."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import sys

from tests.support.processes.terminal import in_terminal


async def test_the_demo_fits_a_screen_and_says_how_to_go_on() -> None:
    """Nothing of it scrolls away on 24 lines of 100 columns, and it ends with the next commands and the page."""
    async with in_terminal("demo", "--fast", rows=24, columns=100) as terminal:
        assert 0 == await terminal.ended()
        assert [] == terminal.scrolled
        shown = " ".join(terminal.text.split())
        assert 3 == shown.count("✓ verified")
        assert "36 of 36 events on disk and acknowledged" in shown
        last = " ".join(terminal.shown[-3:])
        for wanted in ("voicemem serve", "voicemem ui", "http://127.0.0.1:8080/ui/", "voicemem quickstart"):
            assert wanted in last


async def test_the_demo_in_a_pipe_is_plain_text() -> None:
    """What was never heard stands between tildes, and nothing is drawn over."""
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "voicemem", "demo", "--fast"), stdout=asyncio.subprocess.PIPE
    )
    output, _ = await asyncio.wait_for(process.communicate(), 60)
    assert (0, False, 1) == (process.returncode, b"\x1b" in output, output.count(b"~~win an award?"))
