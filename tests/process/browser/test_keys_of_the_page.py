"""What a key shows of the page, in a real browser: who may only look finds nothing to press, and who acts is asked."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.callers.browser import Page, browser_page
from tests.support.callers.rest import RestClient, make_key
from tests.support.events import final
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.services import Serve
from voicemem.app import App

BUTTONS = "[...document.querySelectorAll('button')].map((one) => one.textContent)"
SAID = "[...document.querySelectorAll('.said')].some((one) => one.textContent.includes('Hello there.'))"
pytestmark = pytest.mark.needs("chromium")


def pressed(words: str) -> str:
    """An expression: press the button with these words."""
    return f"[...document.querySelectorAll('button')].find((one) => one.textContent === {json.dumps(words)}).click()"


@asynccontextmanager
async def signed_in(app: App, folder: Path, key: str) -> AsyncIterator[Page]:
    """The page of a running call, in a browser that is signed in with this key."""
    async with browser_page(folder / "profile") as page:
        await page.open(f"http://{app.rest_address}/ui/sign-in?next=/ui/calls/s")
        await page.until("document.activeElement?.id === 'key'")
        await page.type(key)
        await page.press("Enter")
        await page.until(f"location.pathname === '/ui/calls/s' && {SAID}")
        yield page


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with the operator's key, and a call on which something was said."""
    app = await serve(admin_key=ADMIN_KEY)
    admin = RestClient(app, ADMIN_KEY)
    await admin.create("s", idle_timeout=0)
    await admin.send(final(1, "Hello there.", seq=1))
    return app


async def test_a_key_that_reads_shows_no_action(app: App, tmp_path: Path) -> None:
    """No button to end or erase, and the requests that these would send are refused; nothing is done."""
    async with signed_in(app, tmp_path, await make_key(app, "read")) as page:
        shown = await page.evaluate(BUTTONS)
        assert not [words for words in shown if words.startswith(("End", "Erase", "Resend", "Rotate"))]
        for method, path in (("POST", "/s/end"), ("DELETE", "/s"), ("PATCH", "/s"), ("POST", "/s/fork")):
            sent = {"method": method, "headers": {"Content-Type": "application/json"}, "body": "{}"}
            asked = f"fetch('/ui/v1/sessions{path}', {json.dumps(sent)}).then((answer) => answer.status)"
            assert 403 == await page.evaluate(asked), path
    assert "running" == (await RestClient(app, ADMIN_KEY).session("s"))["state"]


async def test_an_admin_s_key_acts_once_it_was_asked(
    app: App, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Ending asks, erasing wants the id as well; each is one line of the audit, by this key at the page."""
    key = await make_key(app, "admin")
    async with signed_in(app, tmp_path, key) as page:
        await page.evaluate(pressed("End session…"))
        assert "running" == (await RestClient(app, ADMIN_KEY).session("s"))["state"]
        await page.evaluate(pressed("End session"))
        await page.until(f"!{BUTTONS}.includes('End session…')")
        await page.evaluate(pressed("Erase…"))
        assert await page.evaluate("document.querySelector('dialog button[type=submit]').disabled")
        await page.evaluate("document.querySelector('dialog input').focus()")
        await page.type("s")
        await page.evaluate(pressed("Erase for good"))
        await page.until("document.querySelector('.done')?.textContent === 's was erased.'")
    by = {"by": key.split("_")[1], "project": "default"}
    assert [
        {"act": "page_signed_in", **by},
        {"act": "session_ended", **by, "session": "s", "via": "page"},
        {"act": "session_erased", **by, "session": "s", "via": "page"},
    ] == acts(caplog)


async def test_no_request_leaves_the_service(app: App, tmp_path: Path) -> None:
    """Whatever is looked at, only the service itself is asked; nothing goes wrong, and no rule is broken."""
    base = f"http://{app.rest_address}"
    async with signed_in(app, tmp_path, ADMIN_KEY) as page:
        await page.watch()
        for path in (
            "/ui/calls/s",
            "/ui/calls/s/timeline",
            "/ui/calls",
            "/ui/deliveries",
            "/ui/operator",
            "/ui/p/default/calls/s",
        ):
            await page.open(base + path)
            await page.until("document.querySelector('main')?.textContent.includes('s')")
        assert [] == [url for url in page.requests if not url.startswith(base)]
        assert len(page.requests) > 20
        assert [] == page.problems
