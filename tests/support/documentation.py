"""The pages of the documentation, and the programs in them."""

from __future__ import annotations

import asyncio
import re
import sys

from tests.support.paths import ROOT

PAGES = [path for path in sorted((ROOT / "docs").glob("*.md")) if path.name != "README.md"]
TEXTS = {path.name: path.read_text() for path in [ROOT / "README.md", *PAGES]}


def code_blocks(text: str, language: str) -> list[str]:
    """The fenced code blocks of one language."""
    return re.findall(rf"```{language}\n(.*?)```", text, re.DOTALL)


async def start_program(program: str) -> asyncio.subprocess.Process:
    return await asyncio.create_subprocess_exec(
        sys.executable, "-u", "-c", program, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
