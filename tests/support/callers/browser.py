"""A real browser without a window: Chromium, spoken to over its DevTools port."""

from __future__ import annotations

import asyncio
import base64
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
PHONE_PX = 600
KEYS = {
    "Tab": (9, None),
    "Enter": (13, "\r"),
    "Escape": (27, None),
    " ": (32, " "),
    "ArrowDown": (40, None),
    "ArrowUp": (38, None),
}
"""By name: the number of a key, and what it writes."""


GONE = ("target navigated or closed", "context was destroyed", "find default execution context")
"""What the browser says when a page went away while it was asked."""


class PageGone(Exception):
    """Another page has come in the place of the one that was asked."""


class Page:
    """A page of the browser."""

    def __init__(self, devtools: ClientConnection, address: str) -> None:
        self.devtools = devtools
        self.address = address
        """Where the browser is spoken to about this page."""
        self.numbers = count(1)
        self.problems: list[str] = []
        """What went wrong in the page since `watch`: errors, failed requests, breaches of its policy."""
        self.requests: list[str] = []
        """The URLs that the page asked for since `watch`."""

    async def watch(self) -> None:
        """Note from now on what the page asks for, and what goes wrong in it."""
        for domain in ("Runtime", "Log", "Network", "Audits"):
            await self.ask(f"{domain}.enable")

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
                with suppress(PageGone):  # the next page may be what is waited for
                    if await self.evaluate(expression):
                        return
                await asyncio.sleep(0.05)

    async def click(self, selector: str) -> None:
        """Click on the middle of an element, as a mouse does, once it no longer moves."""
        before, box = None, await self.middle_of(selector)
        while box != before:
            await asyncio.sleep(0.05)
            before, box = box, await self.middle_of(selector)
        where = {"x": box[0], "y": box[1], "button": "left", "clickCount": 1}
        for step in ("mousePressed", "mouseReleased"):
            await self.ask("Input.dispatchMouseEvent", type=step, **where)

    async def middle_of(self, selector: str) -> Any:
        """Scroll to an element; where its middle is then."""
        return await self.evaluate(f"""(() => {{
            const element = document.querySelector({json.dumps(selector)});
            element.scrollIntoView({{ block: "center", behavior: "instant" }});
            const {{ x, y, width, height }} = element.getBoundingClientRect();
            return [x + width / 2, y + height / 2];
        }})()""")

    async def press(self, key: str, times: int = 1) -> None:
        """Press a key such as `Tab` or `Enter`, as a keyboard does."""
        code, text = KEYS.get(key, (0, None))
        for _ in range(times):
            pressed = {"key": key, "code": key, "windowsVirtualKeyCode": code}
            await self.ask("Input.dispatchKeyEvent", type="keyDown", **pressed, **({"text": text} if text else {}))
            await self.ask("Input.dispatchKeyEvent", type="keyUp", **pressed)

    async def type(self, text: str) -> None:
        """Write into what has the focus."""
        await self.ask("Input.insertText", text=text)

    async def viewport(self, width: int, height: int = 900) -> None:
        """Give the page this size, in CSS pixels."""
        size = {"width": width, "height": height, "deviceScaleFactor": 1, "mobile": width < PHONE_PX}
        await self.ask("Emulation.setDeviceMetricsOverride", **size)

    async def media(self, **features: str) -> None:
        """Have the page see these preferences: `prefers_color_scheme="dark"`."""
        given = [{"name": name.replace("_", "-"), "value": value} for name, value in features.items()]
        await self.ask("Emulation.setEmulatedMedia", features=given)

    async def screenshot(self, path: Path) -> None:
        """Keep a picture of what the page shows, as PNG."""
        picture = await self.ask("Page.captureScreenshot", format="png")
        save(path, base64.b64decode(picture["data"]))

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        number = next(self.numbers)
        await self.devtools.send(json.dumps({"id": number, "method": method, "params": params}))
        async with asyncio.timeout(PAGE_S):
            while True:
                answer = json.loads(await self.devtools.recv())
                if answer.get("id") == number:
                    if any(sign in str(answer.get("error")) for sign in GONE):
                        raise PageGone
                    assert "error" not in answer, answer
                    return dict(answer["result"])
                self.note(answer.get("method", ""), answer.get("params", {}))

    def note(self, method: str, params: dict[str, Any]) -> None:
        """Keep what a webhook event of the browser says, where that is of interest."""
        if method == "Network.requestWillBeSent":
            self.requests.append(params["request"]["url"])
        elif method == "Runtime.exceptionThrown":
            self.problems.append(json.dumps(params["exceptionDetails"]))
        elif method == "Log.entryAdded" and params["entry"]["level"] == "error":
            self.problems.append(json.dumps(params["entry"]))
        elif method == "Runtime.consoleAPICalled" and params["type"] == "error":
            self.problems.append(json.dumps(params["args"]))
        elif method == "Audits.issueAdded" and "contentSecurityPolicy" in json.dumps(params["issue"]["details"]):
            self.problems.append(json.dumps(params["issue"]))


@asynccontextmanager
async def another_tab(page: Page) -> AsyncIterator[Page]:
    """A new tab beside a page, in front of it: the page is hidden then."""
    made = await page.ask("Target.createTarget", url="about:blank")
    address = f"{page.address.rpartition('/')[0]}/{made['targetId']}"
    async with connect(address, max_size=None) as devtools:
        yield Page(devtools, address)


def save(path: Path, body: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(body)


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
            yield Page(devtools, url)
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
