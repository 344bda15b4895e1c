"""The page without a mouse, in high contrast, enlarged, and for those who hear it, in a real browser."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections.abc import AsyncIterator

import pytest

from tests.support.callers.axe import violations
from tests.support.callers.browser import Page
from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.callers.webhooks import CALL, add, finish, settled
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import Serve
from voicemem.app import App

KEY = "an operator's own key"
MOST_STOPS = 120
FOCUS_IS_SEEN = """(() => {
    const { outlineStyle, outlineWidth, boxShadow } = getComputedStyle(document.activeElement);
    const { top, bottom, width } = document.activeElement.getBoundingClientRect();
    const marked = (outlineStyle !== "none" && parseFloat(outlineWidth) > 0) || boxShadow !== "none";
    return marked && width > 0 && bottom > 0 && top < innerHeight;
})()"""
pytestmark = pytest.mark.needs("chromium")


@pytest.fixture
async def app(serve: Serve) -> AsyncIterator[App]:
    """A service with a call that was cut, and one delivery of it."""
    async with webhook_receiver() as hook:
        started = await serve(allow_addresses=LOOPBACK, admin_key=KEY)
        yield await prepared(started, hook)


async def prepared(app: App, hook: WebhookReceiver) -> App:
    caller = RestClient(app, KEY)
    made = await add(caller, hook.url(), 103, description="CRM")
    await finish(caller, "call-1", *CALL, user_id="ann")
    await settled(caller, made, "delivered")
    return app


async def tab_to(page: Page, found: str) -> None:
    """Press Tab until what has the focus is what is looked for; wherever it stops on the way, that is seen."""
    for _ in range(MOST_STOPS):
        await page.press("Tab")
        if await page.evaluate("document.activeElement !== document.body"):
            assert await page.evaluate(FOCUS_IS_SEEN), await page.evaluate("document.activeElement.outerHTML")
        if await page.evaluate(f"(({found})(document.activeElement))"):
            return
    raise AssertionError(f"no number of Tabs leads to {found}")


def words(text: str) -> str:
    return f"(one) => one.textContent.trim() === {json.dumps(text)}"


async def test_a_keyboard_is_enough(app: App, page: Page) -> None:
    """Sign in, open a call, choose a policy, ask for a delivery, sign out; the focus is always seen and comes back."""
    await page.open(f"http://{app.rest_address}/ui/sign-in")
    await page.until("document.activeElement?.id === 'key'")
    await page.type(KEY)
    await page.press("Enter")
    await page.until("document.querySelector('.calls a') !== null")
    await tab_to(page, "(one) => one.matches('.calls a')")
    await page.press("Enter")
    await page.until("document.querySelector('.talk-list .msg') !== null")
    await tab_to(page, "(one) => one.options?.[0].textContent.endsWith('(this call’s)')")
    await page.press("ArrowDown")
    await page.until("new URLSearchParams(location.search).has('policy')")
    await page.open(f"http://{app.rest_address}/ui/deliveries")
    await page.until("document.querySelector('.sent tbody tr') !== null")
    await tab_to(page, words("Resend…"))
    await page.press("Enter")
    await page.until("document.querySelector('dialog[open]')?.contains(document.activeElement)")
    await page.press("Escape")
    await page.until("document.querySelector('dialog[open]') === null")
    assert "Resend…" == await page.evaluate("document.activeElement.textContent.trim()")
    await tab_to(page, words("Sign out"))
    await page.press("Enter")
    await page.until("location.pathname === '/ui/sign-in' && document.activeElement?.id === 'key'")


@pytest.mark.parametrize(
    ("path", "shown"),
    [
        ("/ui/calls", ".calls tbody tr"),
        ("/ui/calls/call-1", ".talk-list .msg"),
        ("/ui/calls/call-1/timeline", ".tab-body svg"),
        ("/ui/calls/call-1/memory", ".tab-body > *"),
        ("/ui/calls/call-1/deliveries", ".sent tbody tr"),
        ("/ui/calls/call-1/journal", ".journal tbody tr"),
        ("/ui/calls/call-1/settings", ".tab-body > *"),
        ("/ui/deliveries", ".sent tbody tr"),
        ("/ui/operator", ".tile"),
        ("/ui/calls/nobody", "h1"),
    ],
)
async def test_axe_finds_nothing(app: App, page: Page, path: str, shown: str) -> None:
    """In both themes at both widths; and at none of these, nor enlarged, does the page scroll sideways."""
    await page.open(f"http://{app.rest_address}/ui/sign-in")
    await page.until("document.activeElement?.id === 'key'")
    await page.type(KEY)
    await page.press("Enter")
    await page.until("document.querySelector('.calls a') !== null")
    await page.open(f"http://{app.rest_address}{path}")
    await page.until(f"document.querySelector({json.dumps(shown)}) !== null")
    assert [] == await violations(page)
    if path.endswith("nobody"):
        page.problems.clear()  # the browser notes the 404


HAS_COLOURS = """((selector, property) => {
    const none = [getComputedStyle(document.body).backgroundColor, "rgba(0, 0, 0, 0)", "none"];
    const colours = [...document.querySelectorAll(selector)].map((one) => getComputedStyle(one)[property]);
    return colours.length > 0 && !colours.some((one) => none.includes(one));
})"""
"""Whether there are such elements, each in a colour that is not that of the ground."""


async def test_high_contrast_keeps_rail_and_timeline(serve: Serve, page: Page) -> None:
    """Where the system's few colours take the place of the page's, lines and bars are still there."""
    app = await serve()
    api = RestClient(app)
    await finish(api, "call-1", *CALL)
    await page.media(forced_colors="active")
    await page.open(f"http://{app.rest_address}/ui/calls/call-1")
    assert await page.evaluate("matchMedia('(forced-colors: active)').matches")
    for selector, property in ((".rail.in", "backgroundColor"), (".call-timeline svg rect", "fill")):
        await page.until(f"{HAS_COLOURS}({json.dumps(selector)}, {json.dumps(property)})")


async def test_motion_stops_for_those_who_asked(serve: Serve, page: Page) -> None:
    """The mark of a live call does not breathe where the system says that motion should be reduced."""
    app = await serve()
    await RestClient(app).create("call-1", idle_timeout=0)
    await page.media(prefers_reduced_motion="reduce")
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.live .dot') !== null")
    assert "none" == await page.evaluate("getComputedStyle(document.querySelector('.live .dot')).animationName")


@pytest.mark.parametrize("path", ["/ui/calls", f"/ui/calls/{'i' * 128}", f"/ui/calls/{'i' * 128}/played"])
async def test_long_names_break_nothing(serve: Serve, page: Page, path: str) -> None:
    """Ids, users, names and labels without a space in them have room at every width."""
    app = await serve()
    labels = {"truth": "t" * 200, "k" * 60: "v" * 200}
    await RestClient(app).create("i" * 128, user_id="u" * 128, name="n" * 128, labels=labels, idle_timeout=0)
    await page.open(f"http://{app.rest_address}{path}")
    await page.until("document.querySelector('.calls tbody tr, .tab-body > *') !== null")
    assert [] == await violations(page)
