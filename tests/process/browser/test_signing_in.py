"""Signing in to the page by its form, in a real browser: one key, two projects, and the end of a key."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.callers.browser import Page, browser_page
from tests.support.callers.rest import RestClient, client_with_key, make_key
from tests.support.samples.audit_lines import ADMIN_KEY
from tests.support.services import Serve
from voicemem.app import App
from voicemem.server.page.login import NAME

CALLS = "[...document.querySelectorAll('.calls tbody tr')].map((row) => row.dataset.id)"
KEPT = "JSON.stringify([{ ...localStorage }, { ...sessionStorage }, location.href, document.cookie, document.title])"
pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
async def page(tmp_path: Path) -> AsyncIterator[Page]:
    """A browser that notes what it is asked for."""
    async with browser_page(tmp_path / "profile") as shown:
        await shown.watch()
        yield shown


async def sign_in(page: Page, key: str) -> None:
    """Write a key into the form, and press Enter."""
    await page.until("document.activeElement?.id === 'key'")
    await page.evaluate("document.activeElement.select()")
    await page.type(key)
    await page.press("Enter")


async def cookies_of(page: Page, app: App, path: str) -> list[dict[str, Any]]:
    """The cookies that the browser would send along."""
    found = await page.ask("Network.getCookies", urls=[f"http://{app.rest_address}{path}"])
    return list(found["cookies"])


async def test_a_key_is_shown_once_and_kept_nowhere(serve: Serve, page: Page) -> None:
    """Who is not signed in is asked for a key, and is then where they wanted to be; the key is in no store or URL."""
    app = await serve(admin_key=ADMIN_KEY)
    await RestClient(app, ADMIN_KEY).create("call-1", user_id="ann")
    await RestClient(app, ADMIN_KEY).create("call-2", user_id="bo")
    base = f"http://{app.rest_address}"
    await page.ask("Page.enable")
    await page.ask("Page.navigate", url=f"{base}/ui/calls?user=ann")
    await page.until("document.activeElement?.id === 'key'")
    assert [] == page.problems
    await sign_in(page, f"{ADMIN_KEY} not")
    await page.until("document.querySelector('[role=alert]')?.textContent.includes('not known')")
    assert [] == await cookies_of(page, app, "/ui/")
    await sign_in(page, ADMIN_KEY)
    await page.until(f"{CALLS}.join() === 'call-1'")
    assert f"{base}/ui/calls?user=ann" == await page.evaluate("location.href")
    (cookie,) = await cookies_of(page, app, "/ui/v1/sessions")
    assert (f"{NAME}0", "/ui", "Strict", True) == tuple(cookie[key] for key in ("name", "path", "sameSite", "httpOnly"))
    assert [] == await cookies_of(page, app, "/v1/sessions")
    kept = await page.evaluate(KEPT)
    assert not [secret for secret in (ADMIN_KEY, cookie["value"]) if secret in kept]
    history = json.dumps(await page.ask("Page.getNavigationHistory"))
    assert not [text for text in (history, *page.requests) if ADMIN_KEY in text or cookie["value"] in text]
    assert [] == [url for url in page.requests if not url.startswith(base)]
    assert 401 == await page.evaluate("fetch('/v1/sessions').then((answer) => answer.status)")


async def test_signing_out(serve: Serve, page: Page) -> None:
    """The browser has no cookie any more, and shows nothing on the way back."""
    app = await serve(admin_key=ADMIN_KEY)
    await RestClient(app, ADMIN_KEY).create("call-1")
    await page.open(f"http://{app.rest_address}/ui/sign-in")
    await sign_in(page, ADMIN_KEY)
    await page.until(f"{CALLS}.join() === 'call-1'")
    await page.evaluate(
        "[...document.querySelectorAll('button')].find((one) => one.textContent === 'Sign out').click()"
    )
    await page.until("location.pathname === '/ui/sign-in' && document.querySelector('#key') !== null")
    assert [] == await cookies_of(page, app, "/ui/")
    await page.evaluate("(window.isThisPage = true, history.back())")
    await page.until("!window.isThisPage && document.querySelector('#key') !== null")
    assert "call-1" not in await page.evaluate("document.body.textContent")


async def test_a_key_that_may_not_look_is_told_so(serve: Serve, page: Page) -> None:
    """The sentence is the service's own."""
    app = await serve(admin_key=ADMIN_KEY)
    await page.open(f"http://{app.rest_address}/ui/sign-in")
    await sign_in(page, await make_key(app, "ingest"))
    await page.until("document.querySelector('[role=alert]')?.textContent.includes('the scope read or admin')")
    assert [] == await cookies_of(page, app, "/ui/")


async def test_a_revoked_key_ends_the_page_that_is_open(serve: Serve, page: Page) -> None:
    """No one has to reload: the list that was followed goes, and a key is asked for."""
    app = await serve(admin_key=ADMIN_KEY)
    admin, key = RestClient(app, ADMIN_KEY), await make_key(app, "read")
    await admin.create("call-1")
    await page.open(f"http://{app.rest_address}/ui/sign-in")
    await sign_in(page, key)
    await page.until(f"{CALLS}.join() === 'call-1'")
    assert 204 == (await admin.delete(f"/v1/keys/{key.split('_')[1]}")).status
    await page.until("location.pathname === '/ui/sign-in' && document.querySelector('#key') !== null")
    assert "call-1" not in await page.evaluate("document.body.textContent")


async def test_two_projects_never_show_in_each_other(serve: Serve, page: Page) -> None:
    """Neither what was there nor what begins while one looks; the switch and the address choose."""
    app = await serve(admin_key=ADMIN_KEY)
    one, two = [await client_with_key(app, "admin", project=project) for project in ("one", "two")]
    await one.create("first-of-one", user_id="ann")
    await two.create("first-of-two", user_id="ann")
    base = f"http://{app.rest_address}"
    await page.open(f"{base}/ui/sign-in")
    await sign_in(page, await make_key(app, "read", project="one"))
    await page.until(f"{CALLS}.join() === 'first-of-one'")
    await page.open(f"{base}/ui/sign-in?add=1")
    await sign_in(page, await make_key(app, "read", project="two"))
    await page.until(f"location.pathname === '/ui/p/two/calls' && {CALLS}.join() === 'first-of-two'")
    await one.create("second-of-one", user_id="ann")
    await two.create("second-of-two", user_id="ann")
    await page.until(f"{CALLS}.length === 2")
    assert ["second-of-two", "first-of-two"] == await page.evaluate(CALLS)
    await page.until("document.querySelector('select[aria-label=Project]')?.value === 'two'")
    await page.evaluate(
        "(() => { const one = document.querySelector('select[aria-label=Project]');"
        "one.value = 'one'; one.dispatchEvent(new Event('change')) })()"
    )
    await page.until(f"location.pathname === '/ui/p/one/calls' && {CALLS}.length === 2")
    assert ["second-of-one", "first-of-one"] == await page.evaluate(CALLS)
    await page.open(f"{base}/ui/p/two/calls?user=ann")
    await page.until(f"{CALLS}.length === 2")
    assert "of-one" not in await page.evaluate("document.body.textContent")
