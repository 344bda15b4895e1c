"""Several tabs, and stores that change under an open page, in a real browser."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.callers.browser import Page, another_tab
from tests.support.callers.call_page import call_page
from tests.support.callers.rest import RestClient
from tests.support.events import typed
from tests.support.services import Serve, running_service
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.store.sqlite.backup import back_up, restore_backup

TABS = 8
pytestmark = pytest.mark.needs("chromium")


async def open_tails(app: App) -> int:
    """How many tails are read."""
    return len(app.services.tails.open_tails)


def no_progress(done: int, total: int) -> None:
    """No one looks."""


async def test_eight_tabs_with_live_calls_are_all_usable(serve: Serve, page: Page) -> None:
    """A hidden tab holds no tail; the one that comes to the front has what was said meanwhile and then."""
    app = await serve()
    api = RestClient(app)
    async with AsyncExitStack() as stack:
        tabs = [page, *[await stack.enter_async_context(another_tab(page)) for _ in range(TABS - 1)]]
        for number, tab in enumerate(tabs):
            name = f"call-{number}"
            await api.create(name, idle_timeout=0)
            await api.send(typed(1, "Hello.", 1_000), session_id=name)
            await tab.ask("Page.bringToFront")
            await tab.open(f"http://{app.rest_address}/ui/calls/{name}")
            await tab.until("document.querySelectorAll('.talk-list .msg').length === 1")
        await eventually(1, lambda: open_tails(app))
        for number, tab in enumerate(tabs):
            said = typed(2, "Are you there?", 2_000)
            await api.send(said, session_id=f"call-{number}")
            await tab.ask("Page.bringToFront")
            await tab.until("document.querySelectorAll('.talk-list .msg').length === 2")
            said = typed(3, "Yes.", 3_000)
            await api.send(said, session_id=f"call-{number}")
            await tab.until("document.querySelectorAll('.talk-list .msg').length === 3")
            await eventually(1, lambda: open_tails(app))


async def test_a_store_that_was_restored_shows_what_it_has(tmp_path: Path) -> None:
    """A page that is open while the store goes back to a backup says so, and shows exactly the history again."""
    store, copy = tmp_path / "calls.db", tmp_path / "copy.db"
    async with AsyncExitStack() as browser:
        async with running_service(store=f"sqlite:{store}") as first:
            address, api = first.rest_address, RestClient(first)
            await api.create("s", idle_timeout=0)
            await api.send(typed(1, "Before.", 1_000))
            back_up(str(store), str(copy), False, no_progress)
            await api.send(typed(2, "Lost.", 2_000))
            shown = await browser.enter_async_context(call_page(first, tmp_path))
            await shown.open("s")
            await shown.says(await api.contents())
        await shown.until_text(".alert:not([hidden])", "Connection lost")
        restore_backup(str(copy), str(store), True, no_progress)
        async with running_service(store=f"sqlite:{store}", rest=address) as second:
            await shown.page.until("document.querySelectorAll('.talk-list .msg').length === 1")
            await shown.says(await RestClient(second).contents())
            await shown.page.until("document.querySelector('.alert').hidden")


async def test_an_ended_call_that_somebody_erases_leaves_the_page(serve: Serve, tmp_path: Path) -> None:
    """Nothing is told of a call that has ended; so the page looks for itself, and shows nothing of it any more."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0, reopen_window=0)
    await api.send(typed(1, "My number is seven.", 1_000))
    await api.end("s")
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.until_text(".talk-list", "My number is seven.")
        assert 204 == (await api.delete("/v1/sessions/s")).status
        async with another_tab(shown.page):
            pass
        await shown.page.ask("Page.bringToFront")
        await shown.until_text("h1", "This call was erased")
        assert "seven" not in await shown.page.evaluate("document.documentElement.outerHTML")
        shown.page.problems.clear()  # the browser notes the 404
