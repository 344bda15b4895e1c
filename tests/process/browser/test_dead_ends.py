"""Wherever one ends up on the page, it says where one is and leads on."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.callers.browser import Page
from tests.support.callers.call_page import call_page
from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.callers.webhooks import add
from tests.support.events import done, final, typed
from tests.support.services import Serve, running_service

pytestmark = pytest.mark.needs("chromium")
TEXT = "document.querySelector('main').innerText"


@pytest.mark.parametrize(
    ("path", "words", "action"),
    [
        ("calls", "No calls yet", "voicemem replay --pace 1"),
        ("calls?user=zzz", "No calls match these filters", "Show all calls"),
        ("calls?q=zzz", "No calls match “zzz”", ""),
        ("deliveries", "No endpoints yet", "Add an endpoint…"),
        ("deliveries?state=failed", "No endpoints yet", "Add an endpoint…"),
        ("calls/nobody", "There is no such call", "Back to calls"),
        ("nothing", "There is no such page", "Back to calls"),
        ("calls/nobody/nothing", "There is no such page", "Back to calls"),
        ("%", "There is no such page", "Back to calls"),
    ],
)
async def test_an_empty_page_says_what_to_do(serve: Serve, page: Page, path: str, words: str, action: str) -> None:
    """In plain words, with the next step beside them."""
    app = await serve()
    await page.ask("Page.enable")
    await page.ask("Page.navigate", url=f"http://{app.rest_address}/ui/{path}")
    await page.until(f"document.querySelector('main') !== null && {TEXT}.includes({words!r})")
    assert action in await page.evaluate(TEXT)
    page.problems.clear()  # the browser notes a 404


async def test_a_service_that_is_gone_says_so_on_every_tab(tmp_path: Path) -> None:
    """Not in the browser's words; when it is back, the page is as well."""
    async with AsyncExitStack() as browser:
        async with running_service(store=f"sqlite:{tmp_path / 'calls.db'}") as first:
            address = first.rest_address
            await RestClient(first).create("s", idle_timeout=0)
            await RestClient(first).send(typed(1, "Hello."))
            shown = await browser.enter_async_context(call_page(first, tmp_path))
            await shown.open("s")
            await shown.until_text(".talk-list", "Hello.")
        await shown.page.until("!document.querySelector('.away').hidden")
        for tab in ("Timeline", "Memory", "Deliveries", "Journal", "Settings"):
            await shown.page.evaluate(
                f"[...document.querySelectorAll('.tabs a')].find((one) => one.textContent === '{tab}')?.click()"
            )
            await shown.page.until(f"/does not answer/.test({TEXT})")
            assert "Failed to fetch" not in await shown.page.evaluate("document.body.innerText")
        async with running_service(store=f"sqlite:{tmp_path / 'calls.db'}", rest=address):
            await shown.page.until(
                "document.querySelector('.away')?.hidden && document.querySelector('.tabs') !== null"
            )


async def test_a_question_goes_with_its_page(serve: Serve, page: Page) -> None:
    """Whoever goes back from a page with an open dialog is not asked about a call that is no longer shown."""
    app = await serve()
    await RestClient(app).create("s", idle_timeout=0)
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.calls a.call') !== null")
    await page.click(".calls a.call")
    await page.until("document.querySelector('.btn.danger') !== null")
    await page.click(".btn.danger")
    await page.until("document.querySelector('dialog[open]') !== null")
    await page.evaluate("history.back()")
    await page.until("document.querySelector('.calls a.call') !== null")
    assert 0 == await page.evaluate("document.querySelectorAll('dialog').length")


async def test_a_broken_place_in_an_address_shows_the_call(serve: Serve, page: Page) -> None:
    """As if it named no message."""
    app = await serve()
    await RestClient(app).create("s", idle_timeout=0)
    await RestClient(app).send(typed(1, "Hello."))
    await page.open(f"http://{app.rest_address}/ui/calls/s#m-%E0%A4%A")
    await page.until(f"{TEXT}.includes('Hello.') && {TEXT}.includes('What the next LLM call gets')")


async def test_all_labels_can_be_seen(serve: Serve, tmp_path: Path) -> None:
    """The ninth is one click away."""
    app = await serve()
    await RestClient(app).create("s", idle_timeout=0, labels={f"name{number}": "x" for number in range(11)})
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        assert "3 more" == await shown.text(".more-tags")
        await shown.page.click(".more-tags")
        assert 11 == await shown.page.evaluate("document.querySelectorAll('.tags .tag').length")


@pytest.mark.parametrize("width", [1024, 1440])
async def test_no_column_of_the_list_is_cut_off(serve: Serve, page: Page, width: int) -> None:
    """Whatever the calls are called, and while their webhooks wait."""
    app = await serve(allow_addresses=LOOPBACK)
    api = RestClient(app)
    await add(api, "http://127.0.0.1:65535/hook", 103)
    for number in range(3):
        name = f"reservations-{number}"
        await api.create(name, idle_timeout=0, user_id="ann-marie.whitfield", labels={"line": "front-desk"})
        await api.send(
            final(1, "Is there a table for Friday evening?", 1000),
            done(1, 4000, text="There is one by the window, from half past seven on."),
            session_id=name,
        )
        await api.end(name)
    await page.viewport(width)
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelectorAll('.calls .state .wait:not(.dot)').length === 3")
    await page.until("document.fonts.status === 'loaded'")
    assert await page.evaluate("""(() => {
        const waiting = document.querySelectorAll(".calls .state .wait:not(.dot)");
        waiting.forEach((one) => (one.textContent = "next try in 20 minutes"));
        const table = document.querySelector(".wide-table");
        return table.scrollWidth <= table.clientWidth;
    })()""")
