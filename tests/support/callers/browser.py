"""A real browser without a window: Chromium, spoken to over its DevTools port."""

from __future__ import annotations

import asyncio
import json
import re
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from itertools import count
from pathlib import Path
from typing import Any

import aiohttp
from websockets.asyncio.client import ClientConnection, connect

from tests.support.needs import needs

START_S = 60.0
PAGE_S = 30.0


class Page:
    """The browser's only page."""

    def __init__(self, devtools: ClientConnection) -> None:
        self.devtools = devtools
        self.numbers = count(1)

    async def open(self, url: str) -> None:
        """Go there, and wait until the page and its scripts are loaded."""
        await self.ask("Page.enable")
        await self.ask("Page.navigate", url=url)
        await self.until(f"location.href === {json.dumps(url)} && document.readyState === 'complete'")

    async def evaluate(self, expression: str) -> Any:
        """What a JavaScript expression (or its promise) gives."""
        answer = await self.ask("Runtime.evaluate", expression=expression, awaitPromise=True, returnByValue=True)
        assert "exceptionDetails" not in answer, answer
        return answer["result"].get("value")

    async def until(self, expression: str) -> None:
        """Wait until an expression is true."""
        async with asyncio.timeout(PAGE_S):
            while True:
                if await self.evaluate(expression):
                    return
                await asyncio.sleep(0.05)

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        await self.devtools.send(json.dumps({"id": number, "method": method, "params": params}))
        async with asyncio.timeout(PAGE_S):
            while True:
                answer = json.loads(await self.devtools.recv())
                if answer.get("id") == number:  # the rest are notices
                    assert "error" not in answer, answer
                    return dict(answer["result"])


@asynccontextmanager
async def browser_page(profile: Path, *arguments: str) -> AsyncIterator[Page]:
    """A page of a browser that knows nothing yet; `profile` is a new folder for what it keeps."""
    process = await asyncio.create_subprocess_exec(
        *(
            needs("chromium"),
            "--headless",
            "--no-sandbox",
            "--disable-gpu",
            "--disable-dev-shm-usage",
            "--no-first-run",
        ),
        *("--no-proxy-server", "--disable-background-networking", "--disable-component-update"),
        *(f"--user-data-dir={profile}", "--remote-debugging-port=0", *arguments, "about:blank"),
        stdout=asyncio.subprocess.DEVNULL,
        stderr=asyncio.subprocess.PIPE,
    )
    try:
        port = await asyncio.wait_for(devtools_port(process), START_S)
        async with aiohttp.ClientSession() as http, http.get(f"http://127.0.0.1:{port}/json/list") as answer:
            url = next(one["webSocketDebuggerUrl"] for one in await answer.json() if one["type"] == "page")
        async with connect(url, max_size=None) as devtools:
            yield Page(devtools)
    finally:
        with suppress(ProcessLookupError):
            process.kill()
        await process.communicate()


async def devtools_port(process: asyncio.subprocess.Process) -> int:
    assert process.stderr is not None
    while line := (await process.stderr.readline()).decode(errors="replace"):
        if match := re.search(r"DevTools listening on ws://[^:]+:(\d+)/", line):
            return int(match[1])
    raise AssertionError("the browser has not started")
