"""Proxies of deploy/ as processes of their own."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from tests.support.paths import DEPLOY

START_S = 20.0


def replaced(name: str, changes: dict[str, str]) -> str:
    """A file of deploy/ with what every user of it changes, and the ports and folders of this test."""
    text = (DEPLOY / name).read_text()
    for before, after in changes.items():
        assert before in text, before
        text = text.replace(before, after)
    return text


@asynccontextmanager
async def running_proxy(command: list[str], port: int) -> AsyncIterator[None]:
    """A proxy that listens, stopped at the end of the block."""
    process = await asyncio.create_subprocess_exec(
        *command, stdout=asyncio.subprocess.DEVNULL, stderr=asyncio.subprocess.DEVNULL
    )
    try:
        async with asyncio.timeout(START_S):
            while True:
                try:
                    _, writer = await asyncio.open_connection("127.0.0.1", port)
                    writer.close()
                    break
                except OSError:
                    assert process.returncode is None, "the proxy has not started"
                    await asyncio.sleep(0.05)
        yield
    finally:
        if process.returncode is None:
            process.terminate()
        await asyncio.wait_for(process.wait(), START_S)
