"""Deliveries and the operator's page, as people see them in a real browser."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from tests.support.callers.axe import violations
from tests.support.callers.browser import Page
from tests.support.callers.page import PageClient
from tests.support.callers.rest import LOOPBACK, RestClient, make_key
from tests.support.callers.webhooks import CALL, add, finish, settled
from tests.support.servers.webhook_receiver import Reply, WebhookReceiver, webhook_receiver
from tests.support.services import Serve
from voicemem.app import App

pytestmark = pytest.mark.needs("chromium")
ROWS = "document.querySelectorAll('.sent tbody tr:not(.more-of)').length"
BUTTONS = "[...document.querySelectorAll('main .btn:not(.tries-of)')].map((button) => button.textContent)"
DIALOG = "document.querySelector('dialog[open]')"


@pytest.fixture
async def hook() -> AsyncIterator[WebhookReceiver]:
    async with webhook_receiver() as running:
        yield running


async def press(page: Page, words: str, within: str = "main") -> None:
    """Press a button by its words."""
    found = f"[...document.querySelectorAll('{within} .btn')].find((one) => one.textContent === '{words}')"
    await page.until(f"{found} !== undefined")
    await page.evaluate(f"{found}.click()")  # at once: a list that is drawn again has other buttons


async def prepared(serve: Serve, hook: WebhookReceiver, **settings: str) -> tuple[App, RestClient]:
    app = await serve(allow_addresses=LOOPBACK, **settings)
    return app, RestClient(app, settings.get("admin_key"))


async def test_what_was_sent_and_when_it_is_tried_again(serve: Serve, hook: WebhookReceiver, page: Page) -> None:
    """Attempts have their time, status, length and answer; the payload is what was sent; a page may be sent on."""
    app, caller = await prepared(serve, hook)
    hook.otherwise = Reply(500)
    made = await add(caller, hook.url(), 103, description="quality review")
    await finish(caller, "call-1", *CALL)
    await page.open(f"http://{app.rest_address}/ui/deliveries")
    await page.until(f"{ROWS} === 1 && document.body.textContent.includes('failing for')")
    await page.until("document.querySelector('.head .count').textContent.includes('1 failing')")
    await page.click(".tries-of")
    await page.until("document.querySelectorAll('.tries li').length >= 2")
    first = await page.evaluate("document.querySelector('.tries li').textContent")
    assert "500" in first
    await press(page, "Show the payload")
    await page.until("document.querySelector('.payload pre')?.textContent.includes('Hello.')")
    await page.open(f"http://{app.rest_address}/ui/deliveries/{made['id']}?state=delivered")
    await page.until("document.body.textContent.includes('No deliveries are in this state.')")
    assert await page.evaluate("document.querySelector('.chosen h2').textContent") == "quality review"


async def test_each_action_asks_once(serve: Serve, hook: WebhookReceiver, page: Page) -> None:
    """Resend, rotate, disable and enable ask in a dialog, which can be left; the secret is shown once."""
    app, caller = await prepared(serve, hook)
    made = await add(caller, hook.url(), 103, description="CRM")
    await finish(caller, "call-1")
    await settled(caller, made, "delivered")
    await page.open(f"http://{app.rest_address}/ui/deliveries")
    await press(page, "Resend…")
    await page.until(f"{DIALOG} !== null")
    await press(page, "Cancel", "dialog[open]")
    await page.until(f"{DIALOG} === null")
    assert len(hook.webhook_events) == 1
    await press(page, "Resend…")
    await press(page, "Resend", "dialog[open]")
    await hook.wait(2)
    await press(page, "Rotate secret…")
    await press(page, "Rotate secret", "dialog[open]")
    await page.until(f"{DIALOG}?.textContent.includes('whsec_')")
    await press(page, "Done", "dialog[open]")
    await page.until("!document.body.textContent.includes('whsec_')")
    await press(page, "Disable…")
    await press(page, "Disable", "dialog[open]")
    await page.until("document.body.textContent.includes('disabled: by request')")
    await press(page, "Enable…")
    await press(page, "Enable", "dialog[open]")
    await page.until(f"{BUTTONS}.includes('Disable…')")


async def test_a_call_has_its_own_deliveries(serve: Serve, hook: WebhookReceiver, page: Page) -> None:
    """In the same table, without the call: attempts, what was sent, and sending again, which asks."""
    app, caller = await prepared(serve, hook)
    made = await add(caller, hook.url(), 103, description="CRM")
    await finish(caller, "call-1")
    await finish(caller, "call-2")
    await settled(caller, made, "delivered", "delivered")
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/deliveries")
    await page.until(f"{ROWS} === 1")
    assert "call-2" not in await page.evaluate("document.querySelector('.sent').textContent")
    await page.click(".tries-of")
    await press(page, "Show the payload")
    await page.until("document.querySelector('.payload pre')?.textContent.includes('call-1')")
    assert await violations(page) == []
    before = len(hook.webhook_events)
    await press(page, "Resend…")
    await press(page, "Resend", "dialog[open]")
    await hook.wait(before + 1)


async def sign_in_to_look(page: Page, app: App) -> None:
    """The browser has a cookie of a key with the scope read."""
    client = PageClient(app)
    assert (await client.sign_in(await make_key(app, "read"))).status == 204
    for name, value in client.cookies.items():
        await page.ask("Network.setCookie", name=name, value=value, url=f"http://{app.rest_address}/ui", path="/ui")


async def test_a_key_that_may_only_look_is_told_what_fails(serve: Serve, hook: WebhookReceiver, page: Page) -> None:
    """The head of every page counts endpoints that fail, for whoever looks."""
    app, caller = await prepared(serve, hook, admin_key="an operator's own key")
    hook.otherwise = Reply(500)
    await add(caller, hook.url(), 103)
    await finish(caller, "call-1")
    await hook.wait(1)
    await sign_in_to_look(page, app)
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.head .count')?.textContent.includes('1 failing')")


async def test_a_key_that_may_only_look_has_no_actions(serve: Serve, hook: WebhookReceiver, page: Page) -> None:
    """What was sent is there; nothing that the key may not do is."""
    app, caller = await prepared(serve, hook, admin_key="an operator's own key")
    made = await add(caller, hook.url(), 103)
    await finish(caller, "call-1")
    await settled(caller, made, "delivered")
    await sign_in_to_look(page, app)
    await page.open(f"http://{app.rest_address}/ui/deliveries")
    await page.until(f"{ROWS} === 1")
    assert await page.evaluate(BUTTONS) == []
    await page.open(f"http://{app.rest_address}/ui/operator")
    await page.until("document.querySelectorAll('.tile').length === 8")
    assert await page.evaluate(BUTTONS) == []


async def test_the_operator_sees_how_things_go(serve: Serve, hook: WebhookReceiver, page: Page, tmp_path: Path) -> None:
    """Figures, what fails with a way to it, what was refused, and keys; nothing is wider than a phone."""
    app, caller = await prepared(serve, hook)
    hook.otherwise = Reply(500)
    await add(caller, hook.url(), 103, description="quality review")
    await finish(caller, "call-1", *CALL)
    await page.open(f"http://{app.rest_address}/ui/operator")
    await page.until("document.querySelector('.alert')?.textContent.includes('quality review')")
    assert (
        await page.evaluate("document.querySelector('[role=status]').textContent")
        == "ready: the last commit is on disk"
    )
    for width in (1280, 360):
        await page.viewport(width)
        for path in ("operator", "deliveries"):
            await page.open(f"http://{app.rest_address}/ui/{path}")
            await page.until("document.querySelector('.tile, .sent tbody tr') !== null")
            assert await page.evaluate("document.documentElement.scrollWidth <= innerWidth")
