"""The list of calls, as people see it in a real browser."""

from __future__ import annotations

import json

import pytest

from tests.support.callers.axe import violations
from tests.support.callers.browser import Page
from tests.support.callers.rest import LOOPBACK, RestClient, make_key
from tests.support.callers.webhooks import add
from tests.support.paths import ROOT
from tests.support.services import Serve
from voicemem.app import App

KEY = "an operator's own key"
pytestmark = pytest.mark.needs("chromium")
CALLS = "[...document.querySelectorAll('.calls tbody tr')].map((row) => row.dataset.id)"


async def record(app: App, session_id: str, fixture: str, **config: object) -> None:
    """Replay one of the project's calls under this name."""
    rest = RestClient(app)
    assert (await rest.post("/v1/sessions", {"session_id": session_id, "idle_timeout": 0, **config})).status == 201
    lines = (ROOT / "fixtures" / "voicemem" / f"{fixture}.jsonl").read_bytes()
    assert (await rest.post(f"/v1/sessions/{session_id}/events?producer=main", lines)).appended["errors"] == []


async def test_every_call_has_its_row(serve: Serve, page: Page) -> None:
    """The list shows each call with its user, its picture and its last words, and nothing goes wrong in the browser."""
    app = await serve()
    await record(app, "call-1", "barge_in_twice_in_one_reply", user_id="ann", name="front desk")
    await record(app, "call-2", "still_running")
    await page.open(f"http://{app.rest_address}/ui/")
    await page.until(f"{CALLS}.length === 2 && document.querySelectorAll('.mini .cutmark').length > 1")
    assert await page.evaluate(CALLS) == ["call-2", "call-1"]
    text = await page.evaluate("document.querySelector('[data-id=call-1]').textContent")
    assert "ann" in text
    assert "Enjoy the slopes!" in text
    assert await page.evaluate("document.querySelector('h1 + span').textContent") == "1 live 2 calls"


async def test_filters_stand_in_the_address(serve: Serve, page: Page) -> None:
    """Reload, back and a sent link give the list that was chosen."""
    app = await serve()
    await record(app, "call-1", "chinese", user_id="ann")
    await record(app, "call-2", "still_running", user_id="bo")
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until(f"{CALLS}.length === 2")
    await page.click("input[value=running]")
    await page.until(f"{CALLS}.join() === 'call-2'")
    assert await page.evaluate("location.search") == "?state=running"
    await page.ask("Page.reload")
    await page.until(f"document.readyState === 'complete' && {CALLS}.join() === 'call-2'")
    assert await page.evaluate("document.querySelector('input[value=running]').checked")
    await page.evaluate("history.back()")
    await page.until(f"{CALLS}.length === 2")
    await page.open(f"http://{app.rest_address}/ui/calls?user=ann")
    await page.until(f"{CALLS}.join() === 'call-1'")


async def test_calls_whose_webhook_waits_are_found(serve: Serve, page: Page) -> None:
    """A delivery that is tried again has not failed, and is looked for as one that is pending."""
    app = await serve(allow_addresses=LOOPBACK)
    await add(RestClient(app), "http://127.0.0.1:65535/hook", 103)
    await record(app, "call-1", "still_running")
    await record(app, "call-2", "chinese")
    await RestClient(app).end("call-2")
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until(f"{CALLS}.length === 2")
    choose = "(() => {{ const one = document.querySelector('[name=webhook]'); one.value = '{state}';" + (
        " one.dispatchEvent(new Event('change')); }})()"
    )
    await page.evaluate(choose.format(state="pending"))
    await page.until(f"{CALLS}.join() === 'call-2'")
    await page.evaluate(choose.format(state="failed"))
    await page.until(f"{CALLS}.length === 0")
    assert await page.evaluate("location.search") == "?webhook=failed"


async def test_a_call_that_begins_appears_by_itself(serve: Serve, page: Page) -> None:
    """No one reloads: the first call takes the place of the word that there is none."""
    app = await serve()
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.empty h2')?.textContent === 'No calls yet'")
    await record(app, "call-1", "still_running")
    await page.until(f"{CALLS}.join() === 'call-1' && !document.querySelector('.empty')")


async def test_the_theme_is_kept(serve: Serve, page: Page) -> None:
    """The button goes from the system's theme to light and to dark, by the keyboard too; a reload keeps it."""
    app = await serve()
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.who button') !== null")
    await page.evaluate("document.querySelector('.who button').focus()")
    await page.press("Enter", times=2)
    assert await page.evaluate("document.documentElement.dataset.theme") == "dark"
    await page.ask("Page.reload")
    await page.until("document.querySelector('.who button')?.textContent === 'Theme: dark'")
    assert await page.evaluate("getComputedStyle(document.body).colorScheme") == "dark"


async def test_what_was_said_is_text(serve: Serve, page: Page) -> None:
    """Markup in names, labels and words is shown as it is written, and does nothing."""
    hostile = "<img src=x onerror=alert(1)>"
    app = await serve()
    rest = RestClient(app)
    config = {"session_id": "call-1", "name": hostile, "user_id": hostile, "labels": {"a": hostile}}
    assert (await rest.post("/v1/sessions", config)).status == 201
    assert (await rest.post("/v1/sessions/call-1/messages", {"role": "user", "content": hostile})).status == 200
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until(f"document.querySelector('.last')?.textContent.includes({json.dumps(hostile)})")
    assert await page.evaluate("document.images.length") == 0
    assert (await page.evaluate("document.querySelector('tbody').textContent")).count(hostile) == 4


async def test_words_that_were_said_lead_to_their_call(serve: Serve, page: Page) -> None:
    """The box finds what was heard; the words stand in the address."""
    app = await serve()
    await record(app, "call-1", "barge_in_twice_in_one_reply")
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until(f"{CALLS}.length === 1")
    await page.evaluate("document.querySelector('[type=search]').focus()")
    await page.type("slopes")
    await page.until("document.querySelector('.found a[href*=\"/calls/call-1?find=slopes\"]') !== null")
    assert await page.evaluate("location.search") == "?q=slopes"


async def test_calls_are_found_by_how_they_or_their_users_begin(serve: Serve, page: Page) -> None:
    """What is chosen beside the words holds as well; the user of a call leads to all calls of that user."""
    app = await serve()
    await record(app, "front-desk-1", "barge_in_twice_in_one_reply", user_id="ann")
    await record(app, "front-desk-2", "still_running", user_id="ann")
    await record(app, "billing-1", "chinese", user_id="bo")
    await RestClient(app).end("front-desk-1")
    found = "[...document.querySelectorAll('.found ul:first-of-type a')].map((one) => one.textContent)"
    for query, expected in (
        ("q=front", ["front-desk-2", "front-desk-1"]),
        ("q=ann", ["front-desk-2", "front-desk-1"]),
        ("q=front&state=ended", ["front-desk-1"]),
        ("q=nobody", []),
    ):
        await page.open(f"http://{app.rest_address}/ui/calls?{query}")
        await page.until("document.querySelector('.found h2') !== null")
        assert await page.evaluate(found) == expected, query
    await page.open(f"http://{app.rest_address}/ui/calls/billing-1")
    await page.until(
        "document.querySelector('.facts a') !== null && document.querySelector('.talk-list .msg') !== null"
    )
    await page.click(".facts a")
    await page.until(f"{CALLS}.join() === 'billing-1'")


async def test_everybody_can_use_the_list(serve: Serve, page: Page) -> None:
    """axe finds nothing in both themes at both widths, with calls and without; nothing scrolls sideways."""
    app = await serve()
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.empty') !== null")
    assert await violations(page) == []
    await record(app, "call-1", "barge_in_twice_in_one_reply", user_id="ann", labels={"line": "sales", "lang": "en"})
    await record(app, "call-2", "still_running")
    await page.until(f"{CALLS}.length === 2")
    assert await violations(page) == []


async def test_who_has_no_key_is_asked_for_one(serve: Serve, page: Page) -> None:
    """A wrong key is explained; the right one leads back to where one wanted to go; signing out asks again."""
    app = await serve(admin_key=KEY)
    key = await make_key(app, "read")
    await page.ask("Page.navigate", url=f"http://{app.rest_address}/ui/calls?state=ended")
    await page.until("document.querySelector('#key') !== null && document.activeElement.id === 'key'")
    assert await violations(page) == []
    await page.type("vm_wrong")
    await page.press("Enter")
    await page.until("document.querySelector('#key-error')?.textContent.includes('not known')")
    page.problems.clear()  # the browser notes the 401
    await page.type(key)
    await page.press("Enter")
    await page.until("location.search === '?state=ended' && document.querySelector('.empty, .calls tr') !== null")
    assert (
        await page.evaluate("JSON.stringify([localStorage, sessionStorage, document.cookie]).includes('vm_')") is False
    )
    await page.until("document.querySelector('.who select') !== null")
    assert await page.evaluate("[...document.querySelectorAll('.who option')].map((one) => one.textContent)") == [
        "default",
        "Add a project…",
    ]
    assert await violations(page) == []
    await page.click(".who button:last-child")
    await page.until("location.pathname === '/ui/sign-in' && document.querySelector('#key') !== null")


async def test_live_calls_are_counted_where_not_all_are_shown(serve: Serve, page: Page) -> None:
    """A live call that is older than the rows of the first page counts as live, and once, also when it goes on."""
    app = await serve()
    rest = RestClient(app)
    await record(app, "oldest", "still_running")
    for number in range(60):
        await rest.create(f"call-{number}", idle_timeout=0)
        if number:
            await rest.end(f"call-{number}")
    counts = "document.querySelector('h1 + span').textContent"
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until(f"{CALLS}.length === 50 && {counts} === '2 live 61 calls'")
    await rest.send(
        {"type": "message", "turn_id": 9, "ts": 1, "role": "user", "source": "message", "text": "Hm."},
        session_id="oldest",
    )
    await rest.end("oldest")
    await page.until(f"{counts} === '1 live 61 calls'")
    assert "oldest" not in await page.evaluate(CALLS)
