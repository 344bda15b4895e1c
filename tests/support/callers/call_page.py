"""The page of one call, as a person sees it in a browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from tests.support.callers.browser import Page, browser_page
from voicemem.app import App
from voicemem.protocol.types import JsonObject

SAID = """[...document.querySelectorAll(".talk-list .msg:not(.open)")].map((item) => {
    const part = (name) => item.querySelector(`[data-part=${name}]`)?.textContent ?? "";
    return [item.classList.contains("u") ? "user" : "assistant", part("heard"), part("unheard")];
})"""
"""Who said what, and what of it no one heard."""
RAIL = """[...document.querySelectorAll(".talk-list .msg:not(.open) .rail")].map((line) => line.className.slice(5))"""
"""What becomes of each message in the next LLM call."""
LOADED = "[...document.styleSheets].length > 0 && document.querySelector('.talk-list') !== null"


class CallPage:
    """The page of a call in the browser's only tab."""

    def __init__(self, page: Page, base: str) -> None:
        self.page = page
        self.base = base

    async def open(self, session_id: str, tab: str = "", query: str = "") -> None:
        """Go to a call, and wait until the page has begun to show it."""
        path = f"/ui/calls/{quote(session_id, safe='')}{f'/{tab}' if tab else ''}{query}"
        await self.page.open(self.base + path)
        await self.page.until(LOADED if not tab else "document.querySelector('.tab-body')?.childElementCount > 0")

    async def says(self, messages: list[JsonObject]) -> None:
        """Wait until exactly these messages are shown, and assert that they are."""
        expected = [list(one) for one in as_shown(messages)]
        await self.page.until(f"document.querySelectorAll('.talk-list .msg:not(.open)').length >= {len(expected)}")
        assert await self.page.evaluate(SAID) == expected

    async def text(self, selector: str) -> Any:
        """The text of an element; None where there is none."""
        return await self.page.evaluate(f"document.querySelector({json.dumps(selector)})?.textContent")

    async def choose(self, selector: str, value: str) -> None:
        """Choose from a menu, as a person does who then leaves it."""
        await self.page.evaluate(f"""(() => {{
            const menu = document.querySelector({json.dumps(selector)});
            menu.value = {json.dumps(value)};
            menu.dispatchEvent(new Event("change", {{ bubbles: true }}));
        }})()""")

    async def until_text(self, selector: str, text: str) -> None:
        """Wait until an element's text contains this."""
        await self.page.until(
            f"(document.querySelector({json.dumps(selector)})?.textContent ?? '').includes({json.dumps(text)})"
        )


def as_shown(messages: list[JsonObject]) -> list[tuple[str, str, str]]:
    """Who said what, and the rest that no one heard: what was generated beyond it."""
    shown = []
    for message in messages:
        original = message["metadata"].get("original", message["content"])
        beyond = original.removeprefix(message["content"])
        shown.append((message["role"], message["content"], beyond))
    return shown


@asynccontextmanager
async def call_page(app: App | str, folder: Path) -> AsyncIterator[CallPage]:
    """A browser for the page of this service, which notes errors and requests."""
    base = app if isinstance(app, str) else f"http://{app.rest_address}"
    async with browser_page(folder / "profile") as page:
        await page.watch()
        yield CallPage(page, base)
