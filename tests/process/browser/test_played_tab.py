"""The tab of a replayed true call: what was really played, beside the memory, in a real browser."""

from __future__ import annotations

import time
from pathlib import Path

import pytest

from tests.support.callers.axe import violations
from tests.support.callers.browser import browser_page
from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final, interrupt
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject

pytestmark = pytest.mark.needs("chromium")
BEGAN = int(time.time() * 1000) - 60_000
PLAYED = "[...document.querySelectorAll('[data-part=played]')].map((cell) => cell.textContent)"
NEVER = "[...document.querySelectorAll('[data-part=played] del')].map((word) => word.textContent)"
MEMORY = "[...document.querySelectorAll('[data-part=memory]')].map((cell) => cell.textContent)"
APART = "[...document.querySelectorAll('tbody tr')].map((row) => row.lastElementChild.textContent)"
TABS = "[...document.querySelectorAll('nav.tabs a')].map((tab) => tab.textContent)"


NOT = (None, None, False)


def reply(turn: int, words: list[list[object]], cut_ms: int | None = None) -> JsonObject:
    heard = "".join(str(word[0]) for word in words if word[3])
    return {"turn_id": turn, "item": f"r{turn}", "text": "".join(str(word[0]) for word in words), "heard": heard,
            "cut_ms": cut_ms, "words": words}  # fmt: skip


TRUTH: JsonObject = {
    "call": "taxi", "evidence": "position", "began_ms": BEGAN, "ended_ms": BEGAN + 9000, "utterances": [],
    "replies": [
        reply(1, [["Hello ", BEGAN, BEGAN + 300, True], ["there.", BEGAN + 300, BEGAN + 600, True]]),
        reply(2, [["Your ", BEGAN + 3000, BEGAN + 3300, True], ["taxi ", *NOT], ["comes.", *NOT]], BEGAN + 3500),
    ],
}  # fmt: skip


async def test_what_was_played_stands_beside_the_memory(serve: Serve, tmp_path: Path) -> None:
    """Words that no one heard are struck out on both sides, and it says how many words the memory is wrong by."""
    app = await serve()
    rest = RestClient(app)
    await rest.create("taxi-1", labels={"truth": "taxi"})
    assert (await rest.patch("/v1/sessions/taxi-1/data", {"played": TRUTH})).status == 200
    await rest.send(
        delta(1, "Hello there.", BEGAN),
        done(1, BEGAN + 600),
        final(2, "A taxi.", BEGAN + 2000),
        delta(2, "Your taxi comes.", BEGAN + 3000),
        interrupt(2, BEGAN + 3500, heard_text="Your taxi "),
        session_id="taxi-1",
    )
    await rest.create("plain")
    async with browser_page(tmp_path / "profile") as page:
        await page.watch()
        await page.open(f"http://{app.rest_address}/ui/calls/taxi-1/played")
        await page.until(f"{MEMORY}.length === 2 && {MEMORY}[1] !== ''")
        assert await page.evaluate(PLAYED) == ["Hello there.", "Your taxi comes."]
        assert await page.evaluate(NEVER) == ["taxi ", "comes."]
        assert await page.evaluate(MEMORY) == ["Hello there.", "Your taxi comes."]
        assert await page.evaluate(APART) == ["0", "+1"]
        assert "1 of 2 replies are remembered to the word" in await page.evaluate("document.body.innerText")
        assert await violations(page) == []
        assert "Played" in await page.evaluate(TABS)
        await page.open(f"http://{app.rest_address}/ui/calls/plain")
        await page.until(f"{TABS}.length > 0")
        assert "Played" not in await page.evaluate(TABS)
        assert page.problems == []
