"""The page finds things: a cut in a long call, words that were said, the place of a tool, a moment of the timeline."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.callers.browser import Page
from tests.support.callers.call_page import call_page
from tests.support.callers.rest import RestClient
from tests.support.events import final, typed
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject

pytestmark = pytest.mark.needs("chromium")
TURNS = 60
CUTS = (9, 14, 28, 37, 52)
LOST = "The room is yours until six. Without a card number the booking lapses, so shall I take it now?"
CURRENT = "document.querySelector('.msg.current')"
IN_VIEW = f"""(() => {{
    const {{ top, bottom }} = {CURRENT}?.getBoundingClientRect() ?? {{ top: -1, bottom: -1 }};
    return top > 40 && bottom < innerHeight;
}})()"""
COUNT = "document.querySelector('.steps .step-group:not([hidden]) [role=status]').textContent"


def turn(number: int) -> list[JsonObject]:
    """A question and its reply; some are cut, and one of these loses a booking."""
    at, text = number * 10_000, LOST if number == 37 else f"Answer {number}: breakfast is from seven until eleven."
    reply: list[JsonObject] = [
        final(number, f"Question {number}?", at),
        {"type": "llm.done", "turn_id": number, "ts": at + 900, "text": text},
        {"type": "tts", "turn_id": number, "ts": at + 1000, "audio_ms": 0},
    ]
    if number in CUTS:
        return [*reply, {"type": "interrupt", "turn_id": number, "ts": at + 2800, "cause": "vad"}]
    return [*reply, {"type": "tts", "turn_id": number, "ts": at + 4000, "done": True}]


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with a call of sixty turns."""
    started = await serve()
    await RestClient(started).create("hotel", idle_timeout=0, user_id="ann")
    await RestClient(started).send(
        *(event for number in range(1, TURNS + 1) for event in turn(number)), session_id="hotel"
    )
    await RestClient(started).end("hotel")
    return started


async def test_the_cut_that_lost_a_booking_is_three_clicks_away(app: App, page: Page) -> None:
    """The call, its cuts, and the one that says it: then the reply is in view, in its place in the conversation."""
    await page.open(f"http://{app.rest_address}/ui/calls")
    await page.until("document.querySelector('.calls a.call') !== null")
    await page.click(".calls a.call")
    await page.until(f"document.querySelectorAll('.msg').length === {2 * TURNS}")
    await page.click("input[name=only]")
    await page.until(f"[...document.querySelectorAll('.msg')].filter((one) => one.offsetParent).length === {len(CUTS)}")
    await page.evaluate(
        "[...document.querySelectorAll('.msg')].find((one) => one.textContent.includes('lapses')).dataset.lost = ''"
    )
    await page.click("[data-lost] .said")
    await page.until(IN_VIEW)
    assert "the booking lapses" in await page.evaluate(f"{CURRENT}.querySelector('del').textContent")
    assert await page.evaluate("document.querySelector('.msg:not(.cut)').offsetParent !== null")
    await page.open(await page.evaluate("location.href"))
    await page.until(f"{IN_VIEW} && {CURRENT}.textContent.includes('lapses')")


async def test_n_and_p_lead_from_cut_to_cut(app: App, page: Page) -> None:
    """Around the end they begin again; what is typed into a field stays text; the count says which one it is."""
    await page.open(f"http://{app.rest_address}/ui/calls/hotel")
    await page.until(f"document.querySelectorAll('.msg').length === {2 * TURNS}")
    seen = []
    for key in ("n", "n", "n", "n", "n", "n", "p"):
        await page.press(key)
        await page.until(IN_VIEW)
        seen.append(await page.evaluate(COUNT))
    assert [f"{place} of 5 cuts" for place in (1, 2, 3, 4, 5, 1, 5)] == seen
    assert "cut at about 2 s" in await page.evaluate(f"{CURRENT}.querySelector('.cutline').textContent")


async def test_a_hit_opens_at_its_message(app: App, page: Page) -> None:
    """With the words marked, in whatever form; a second one is a click away."""
    await page.open(f"http://{app.rest_address}/ui/calls?q=questions")
    await page.until("document.querySelector('.found .said a') !== null")
    target = await page.evaluate("document.querySelector('.found .said a mark').parentElement.textContent")
    await page.click(".found .said a")
    await page.until(f"{IN_VIEW} && {CURRENT}.querySelector('mark')?.textContent === 'Question'")
    assert target in await page.evaluate(f"{CURRENT}.textContent")
    assert (await page.evaluate("document.querySelector('.steps [role=status]').textContent")).endswith(
        "say “questions”"
    )


async def test_the_timeline_leads_to_what_was_said(app: App, page: Page) -> None:
    """A click on a bar leads to its message, from another tab too; the smaller one stays in view."""
    await page.open(f"http://{app.rest_address}/ui/calls/hotel/journal")
    await page.until("document.querySelector('.call-timeline rect[data-turn=\"37\"][data-lane=unheard]') !== null")
    await page.click(".call-timeline rect[data-turn='37'][data-lane=unheard]")
    await page.until(f"{IN_VIEW} && {CURRENT}.textContent.includes('lapses')")
    await page.until("document.querySelector('.compact rect[data-turn=\"5\"][data-lane=user]') !== null")
    assert "hotel" in await page.evaluate("document.querySelector('.compact').innerText")
    await page.click(".compact rect[data-turn='5'][data-lane=user]")
    await page.until(f"{IN_VIEW} && {CURRENT}.textContent.includes('Question 5?')")


async def test_tools_stand_where_they_ran(serve: Serve, tmp_path: Path) -> None:
    """Between what was said before and after; a long result is folded; the next request has them, unless left out."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0)
    await api.send(
        final(1, "Is there a room?", 1000),
        {"type": "tool.call", "turn_id": 1, "ts": 1200, "call_id": "a", "name": "find", "arguments": {"beds": 2}},
        {"type": "tool.result", "turn_id": 1, "ts": 1700, "call_id": "a", "result": {"rooms": ["quiet"] * 200}},
        {"type": "llm.done", "turn_id": 1, "ts": 2000, "text": "One moment.", "item": "r1"},
        {"type": "tool.call", "turn_id": 1, "ts": 2500, "call_id": "b", "name": "hold", "arguments": {}},
        {"type": "llm.done", "turn_id": 1, "ts": 3000, "text": "It is held.", "item": "r2"},
        typed(2, "Thanks.", 9000),
    )
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.page.until("document.querySelectorAll('.ran .tool-call').length === 4")
        items = "[...document.querySelectorAll('.talk-list > li .said')]"
        order = f"{items}.map((one) => one.innerText.slice(0, 6))"
        expected = ["Is the", "find(b", "One mo", "hold()", "It is ", "Thanks"]
        await shown.page.until(f"JSON.stringify({order}) === JSON.stringify({expected})")
        folded = await shown.text(".ran .tool-call.soft")
        assert folded.endswith("… all 1,611 characters")
        await shown.until_text(".ctx", "find(")
        await shown.page.click("input[name=tools]")
        await shown.page.until("!document.querySelector('.ctx').textContent.includes('find(')")
        assert "?tools=off" == await shown.page.evaluate("location.search")
        assert [] == shown.page.problems


async def test_tools_that_could_not_be_read_are_read_later(serve: Serve, tmp_path: Path) -> None:
    """A request that fails leaves the call as it is; the next change of the turn brings what the tool was asked."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0)
    await api.send(
        {"type": "tool.call", "turn_id": 1, "ts": 1200, "call_id": "a", "name": "find", "arguments": {"beds": 2}}
    )
    async with call_page(app, tmp_path) as shown:
        await shown.page.ask("Network.setBlockedURLs", urls=["*types=tool*"])
        await shown.open("s")
        await shown.until_text(".ran", "find()")
        await shown.page.ask("Network.setBlockedURLs", urls=[])
        await api.send(final(1, "Is there a room?", 1000))
        await shown.until_text(".ran", "find(beds: 2)")
        shown.page.problems.clear()


SMALL = """[...document.querySelectorAll("a, button, input, select, summary")].filter((one) => one.checkVisibility())
    .map((one) => one.closest("label, .sr, .skip") ?? one)
    .filter((one) => !one.matches(".sr, .skip") && !one.matches(":is(p:not(.crumb, .said, .alert), .note) a"))
    .map((one) => [one, one.getBoundingClientRect()])
    .filter(([, { width, height }]) => width > 1 && (width < 43.5 || height < 43.5))
    .map(([one, { width, height }]) => `${one.outerHTML.slice(0, 90)} ${Math.round(width)} x ${Math.round(height)}`)"""


@pytest.mark.parametrize(
    "path", ["calls", "calls?q=question", "calls/hotel", "calls/hotel/journal", "calls/hotel/memory", "deliveries"]
)
async def test_a_finger_hits_what_it_means(app: App, page: Page, path: str) -> None:
    """On a phone everything that can be touched has 44 px either way."""
    await page.viewport(390, 844)
    await page.open(f"http://{app.rest_address}/ui/{path}")
    await page.until("document.querySelector('.calls tbody tr, .msg, .journal tr, .panel, .empty') !== null")
    assert [] == await page.evaluate(SMALL)


SHEET = "getComputedStyle(document.querySelector('.sheet')).visibility"


async def test_a_phone_keeps_what_matters_in_view(app: App, page: Page) -> None:
    """The chosen tab is in view; past the head, name and timeline stay; the next request is a sheet, one tap away."""
    await page.viewport(390, 844)
    await page.open(f"http://{app.rest_address}/ui/calls/hotel/settings")
    await page.until("(document.querySelector('.tabs [aria-current]')?.getBoundingClientRect().right ?? 999) <= 390")
    await page.open(f"http://{app.rest_address}/ui/calls/hotel")
    await page.until(f"document.querySelectorAll('.msg').length === {2 * TURNS}")
    await page.evaluate("window.scrollTo(0, 2000)")
    await page.until("document.querySelector('.compact').getBoundingClientRect().height > 40")
    assert await page.evaluate("document.querySelector('.steps').getBoundingClientRect().bottom < 844 / 4")
    await page.click(".sheet-open")
    await page.until(f"document.querySelector('.sheet .ctx') !== null && {SHEET} === 'visible'")
    await page.press("Escape")
    await page.until(f"{SHEET} === 'hidden'")
    assert await page.evaluate("document.activeElement.matches('.sheet-open')")
