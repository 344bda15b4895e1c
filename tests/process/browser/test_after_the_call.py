"""What the page has of a call that is over: its recording, which it plays, and what an LLM found out about it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import io
import wave
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest
from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.callers.axe import violations
from tests.support.callers.browser import Page
from tests.support.callers.rest import RestClient
from tests.support.events import done, final, interrupt, tts
from tests.support.paths import ROOT
from tests.support.servers.extracting_llm import finds
from tests.support.servers.llm_server import llm_server
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App
from voicemem.protocol.types import JsonObject

pytestmark = pytest.mark.needs("chromium")
START, RATE = 1_763_800_000_000, 8_000
SCHEMA: JsonObject = {
    "type": "object",
    "properties": {
        "outcome": {"enum": ["booked", "cancelled", "callback"]},
        "people": {"type": "integer"},
        "recording_announced": {"type": "boolean", "x-said-by": "agent"},
    },
}
FOUND = finds(
    outcome=("booked", 3, "Book it"), people=(4, 1, "table for four"), recording_announced=(True, 3, "Book it")
)
PLAYHEAD = "document.querySelector('.call-timeline .playhead')"
UNCUT = "[...document.querySelectorAll('.tabs a')].every((one) => one.scrollWidth <= one.offsetWidth)"
"""No tab is narrower than its words, which would run into those of the next."""
AUDIO = "document.querySelector('.player audio')"


def recording(seconds: int) -> bytes:
    """A WAV file of silence."""
    file = io.BytesIO()
    with wave.open(file, "wb") as audio:
        audio.setnchannels(1)
        audio.setsampwidth(2)
        audio.setframerate(RATE)
        audio.writeframes(bytes(2 * RATE * seconds))
    return file.getvalue()


@asynccontextmanager
async def recordings() -> AsyncIterator[tuple[str, list[str]]]:
    """A server of recordings: its address, and what was asked of it."""
    asked: list[str] = []

    async def answer(request: web.Request) -> web.StreamResponse:
        asked.append(request.path)
        if request.path != "/call.wav":
            raise web.HTTPNotFound
        return web.Response(body=recording(30), content_type="audio/wav")

    app = web.Application()
    app.router.add_get("/{name}", answer)
    async with TestServer(app) as running:
        yield str(running.make_url("")).rstrip("/"), asked


async def end_call(app: App, url: str) -> RestClient:
    """A call of half a minute that is over, whose second reply was cut, with a recording and an analysis."""
    api = RestClient(app)
    extract = {"strategy": "analysis", "schema": SCHEMA}
    await api.create("hotel", user_id="ann", recording=url, memory={"extract": extract})
    await api.send(
        final(1, "A table for four, please.", START + 2_000),
        done(1, START + 3_000, text="At seven?"),
        tts(1, START + 3_200, audio_ms=0),
        tts(1, START + 5_000, done=True),
        final(2, "Book it.", START + 8_000),
        done(2, START + 9_000, text="It is booked, and it lapses at six unless you call again."),
        tts(2, START + 9_200, audio_ms=0),
        interrupt(2, START + 11_000, heard_text="It is booked,"),
        final(3, "Thanks, bye.", START + 20_000),
        session_id="hotel",
    )
    await api.end("hotel")
    return api


async def test_a_recording_plays_beside_its_timeline(serve: Serve, page: Page) -> None:
    """Nothing of it is loaded before; a click on the timeline goes there in both; the line moves with what is heard."""
    async with recordings() as (address, asked):
        app = await serve()
        await end_call(app, f"{address}/call.wav")
        await page.open(f"http://{app.rest_address}/ui/calls/hotel")
        await page.until("document.querySelector('.call-timeline rect') !== null")
        assert ([], True) == (asked, await page.evaluate(f"{PLAYHEAD}.hidden"))
        await page.click(".call-timeline svg")
        await page.evaluate(f"{AUDIO}.play()")
        await page.until(f"{AUDIO}.currentTime > 1 && !{PLAYHEAD}.hidden")
        before = await page.evaluate(f"{PLAYHEAD}.getBoundingClientRect().x")
        begun = await page.evaluate(f"{AUDIO}.currentTime")
        await page.until(f"{AUDIO}.currentTime > {begun} + 0.5")
        assert before < await page.evaluate(f"{PLAYHEAD}.getBoundingClientRect().x")
        assert {"/call.wav"} == {*asked}
        await page.click(".tabs a[href$='/journal']")
        await page.until("document.querySelector('.journal tbody tr') !== null")


async def test_a_recording_that_is_gone_says_so(serve: Serve, page: Page) -> None:
    """In words, where the player is."""
    async with recordings() as (address, _):
        app = await serve()
        await end_call(app, f"{address}/gone.wav")
        await page.open(f"http://{app.rest_address}/ui/calls/hotel")
        await page.until(f"{AUDIO} !== null && document.querySelector('.call-timeline rect') !== null")
        await page.click(".call-timeline svg")
        await page.evaluate(f"{AUDIO}.play().catch(() => null)")
        await page.until("document.querySelector('.player [role=status]').textContent.includes('cannot be played')")
        page.problems.clear()


async def test_an_analysis_shows_the_words_it_rests_on(serve: Serve, page: Page) -> None:
    """The outcome is in the head of every tab; a value leads to its words; one that nothing shows is named."""
    async with recordings() as (address, _), llm_server(FOUND) as llm:
        app = await serve(llm_url=llm.url)
        api = await end_call(app, f"{address}/call.wav")

        async def state() -> object:
            return (await api.get("/v1/sessions/hotel/analysis")).json["state"]

        await eventually("current", state)
        for width in (1440, 1024, 390):
            await page.viewport(width)
            await page.open(f"http://{app.rest_address}/ui/calls/hotel")
            await page.until("document.querySelector('.analysis li') !== null")
            await page.until("document.querySelector('.facts')?.textContent.includes('outcomebooked')")
            await page.screenshot(ROOT / "build" / "screenshots" / f"analysis-{width}.png")
            assert [] == await violations(page)
            assert await page.evaluate(UNCUT)
        shown = await page.evaluate("document.querySelector('.analysis').innerText")
        assert "Nothing said on the call supports: recording_announced." in shown
        await page.viewport(1440)
        await page.open(f"http://{app.rest_address}/ui/calls/hotel")
        await page.until("document.querySelector('.analysis li') !== null")
        await page.click(".analysis li:nth-of-type(2) button.link")
        await page.until("document.querySelector('.msg.current')?.textContent.includes('table for four')")
        await page.open(f"http://{app.rest_address}/ui/calls/hotel/settings")
        await page.until("document.querySelector('.facts')?.textContent.includes('outcomebooked')")
