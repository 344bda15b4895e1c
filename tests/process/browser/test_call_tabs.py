"""Tabs of a call beside its conversation: memory, journal, settings and deliveries, in a real browser."""

from __future__ import annotations

import pytest

from tests.support.callers.axe import violations
from tests.support.callers.browser import Page
from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from voicemem.app import App

pytestmark = pytest.mark.needs("chromium")
TEXT = "document.querySelector('main').innerText"
ROWS = "[...document.querySelectorAll('.journal tbody tr')].map((row) => row.id)"
CHANGES = "[...document.querySelectorAll('.document ins, .document del')].map((line) => line.textContent.trim())"
EVENTS = (
    {"type": "asr", "ts": 1000, "turn_id": 1, "text": "A room for three nights, please.", "final": True},
    {"type": "llm.delta", "ts": 2000, "turn_id": 1, "text": "Gladly."},
    {"type": "llm.done", "ts": 2100, "turn_id": 1, "text": "Gladly."},
)


@pytest.fixture
async def app(serve: Serve) -> App:
    """A service with one call that has something on each tab."""
    started = await serve()
    rest = RestClient(started)
    await rest.create("call-1", user_id="ann", name="front desk", idle_timeout=0)
    await rest.send(*EVENTS, session_id="call-1")
    path = "/v1/sessions/call-1/working-memory"
    for content in ({"name": "Ann"}, {"nights": 3}, {"floor": 2}):
        assert (await rest.patch(path, {"content": content})).status == 200
    assert (await rest.post("/v1/sessions/call-1/forget", {"through_turn": 1})).status == 200
    kept = {"session_id": "call-1", "text": "Ann likes quiet rooms."}
    assert (await rest.post("/v1/memories", kept)).status == 200
    return started


async def choose(page: Page, select: str, value: str) -> None:
    """Choose an option, as a person does."""
    await page.evaluate(
        f"(() => {{ const select = document.querySelector({select!r}); select.value = {value!r};"
        " select.dispatchEvent(new Event('change')); })()"
    )


async def test_the_memory_is_shown_with_what_changed(app: App, page: Page) -> None:
    """The document, the difference between any two versions, what was forgotten, and what lasts."""
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/memory")
    await page.until(f"{CHANGES}.length > 0 && {TEXT}.includes('Ann likes quiet rooms.')")
    assert '+   "floor": 2' in await page.evaluate(CHANGES)
    await page.until(f"{TEXT}.includes('Everything through turn 1.')")
    await choose(page, "select[aria-label='Compare with']", "1")
    await page.until(f"""{CHANGES}.includes('+   "nights": 3,')""")
    assert await violations(page) == []


async def test_the_journal_is_filtered_and_has_places_to_link_to(app: App, page: Page) -> None:
    """Types and turns stand in the address; a position in it is marked, also after a reload."""
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/journal")
    await page.until(f"{ROWS}.length > 5")
    await choose(page, "select[aria-label=Type]", "llm.*")
    await page.until(f"{ROWS}.length === 2")
    assert await page.evaluate("new URLSearchParams(location.search).get('types')") == "llm.*"
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/journal#p2")
    await page.until("document.querySelector('tr[aria-current]')?.id === 'p2'")
    await page.ask("Page.reload")
    await page.until("document.readyState === 'complete' && document.querySelector('tr[aria-current]')?.id === 'p2'")
    assert await violations(page) == []


async def test_a_journal_that_could_not_be_read_is_asked_for_again(app: App, page: Page) -> None:
    """It says why, and a button asks once more."""
    await page.ask("Network.setBlockedURLs", urls=["*native=true*"])
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/journal")
    await page.until("document.querySelector('.tab-body .more .btn')?.textContent === 'Try again'")
    await page.ask("Network.setBlockedURLs", urls=[])
    await page.click(".tab-body .more .btn")
    await page.until(f"{ROWS}.length > 5")
    page.problems.clear()


async def test_settings_are_shown(app: App, page: Page) -> None:
    """Every setting has its row; nothing can be changed by accident."""
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/settings")
    await page.until(f"{TEXT}.includes('idle_timeout') && {TEXT}.includes('front desk')")
    assert await violations(page) == []


async def test_a_call_without_deliveries_says_so(app: App, page: Page) -> None:
    """The tab explains when notices go out."""
    await page.open(f"http://{app.rest_address}/ui/calls/call-1/deliveries")
    await page.until(f"{TEXT}.includes('No deliveries yet')")
    assert await violations(page) == []


async def test_looking_changes_nothing(app: App, page: Page) -> None:
    """The journal is as long after all these tabs as before."""
    before = len(await RestClient(app).journal("call-1"))
    for tab in ("memory", "journal", "settings", "deliveries"):
        await page.open(f"http://{app.rest_address}/ui/calls/call-1/{tab}")
        await page.until("document.querySelector('.tab-body')?.innerText.length > 20")
    assert len(await RestClient(app).journal("call-1")) == before
