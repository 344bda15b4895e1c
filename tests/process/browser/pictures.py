"""Pictures of the page with the project's recorded calls, for the docs and to look at.

    python -m tests.process.browser.pictures      writes docs/pictures/

The tests keep more of them, of each page in both themes at both widths, in build/screenshots/.
"""

from __future__ import annotations

import asyncio
import json
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import NamedTuple

from tests.support.callers.axe import WIDTHS
from tests.support.callers.browser import Page, browser_page
from tests.support.callers.rest import LOOPBACK, RestClient
from tests.support.callers.webhooks import add
from tests.support.paths import ROOT
from tests.support.servers.webhook_receiver import WebhookReceiver, webhook_receiver
from tests.support.services import running_service
from voicemem.app import App
from voicemem.protocol.types import JsonObject

DOCS = ROOT / "docs" / "pictures"
HEIGHT = 800


class Call(NamedTuple):
    """A recorded call under another name, which began so many minutes ago."""

    recording: str
    name: str
    user: str
    minutes_ago: int


CALLS = (
    Call("long_call", "ski-hotel-4471", "mia", 190),
    Call("two_replies_around_tool_call", "weather-0912", "tom", 95),
    Call("false_alarm_resume", "front-desk-3307", "ann", 64),
    Call("two_users", "front-desk-3308", "kim", 41),
    Call("silence_reminder", "survey-118", "joe", 33),
    Call("failed_llm", "billing-2204", "ann", 21),
    Call("hang_up_mid_second_sentence", "billing-2205", "bo", 14),
    Call("barge_in_twice_in_one_reply", "front-desk-3312", "ann", 6),
    Call("still_running", "front-desk-3313", "lea", 0),
)
SHOTS = {
    "calls": (
        "/ui/calls",
        "[...document.querySelectorAll('.calls .mini')].filter((one) => one.querySelector('rect')).length === 9",
    ),
    "call": (
        "/ui/calls/front-desk-3312",
        "document.querySelector('.ctx .role') !== null && document.querySelector('.call-timeline rect') !== null",
    ),
    "timeline": ("/ui/calls/front-desk-3312/timeline", "document.querySelector('.tab-body svg') !== null"),
    "live": (
        "/ui/calls/front-desk-3313",
        "document.querySelector('.ctx .role') !== null && document.querySelector('.call-timeline rect') !== null",
    ),
    "memory": ("/ui/calls/front-desk-3312/memory", "document.querySelector('.tab-body > *') !== null"),
    "journal": ("/ui/calls/front-desk-3312/journal", "document.querySelector('.journal tbody tr') !== null"),
    "deliveries": ("/ui/deliveries", "document.querySelector('.sent tbody tr') !== null"),
    "operator": ("/ui/operator", "document.querySelector('.tile') !== null"),
}
"""Pages, and what is there once they are drawn."""
IN_DOCS = {"calls": "light", "call": "light", "timeline": "dark", "live": "dark"}


async def record(app: App, hook: WebhookReceiver) -> None:
    """Calls that began lately; all but the last have ended, and were sent to a receiver."""
    caller = RestClient(app)
    await add(caller, hook.url(), 103, description="CRM")
    now = int(time.time() * 1000)
    for call in CALLS:
        lines = (ROOT / "fixtures" / "voicemem" / f"{call.recording}.jsonl").read_text("utf-8").splitlines()
        events: list[JsonObject] = [json.loads(line) for line in lines]
        later = now - call.minutes_ago * 60_000 - 20_000 - min(event["ts"] for event in events if "ts" in event)
        await caller.create(call.name, user_id=call.user, idle_timeout=0, labels={"line": call.name.rpartition("-")[0]})
        for event in events:
            event["ts"] = event.get("ts", 0) + later
        await caller.send(*events, session_id=call.name)
        if call is not CALLS[-1]:
            await caller.end(call.name)


async def take(page: Page, base: str, name: str, path: Path) -> None:
    """Keep a picture of one page, once it is drawn."""
    address, drawn = SHOTS[name]
    await page.open(base + address)
    await page.until(drawn)
    await page.until("document.querySelector('.loading, [aria-busy=true]') === null")
    await page.screenshot(path)


@asynccontextmanager
async def recorded_calls() -> AsyncIterator[str]:
    """The base address of a service that has these calls."""
    async with running_service(store="memory:", allow_addresses=LOOPBACK) as app, webhook_receiver() as hook:
        await record(app, hook)
        yield f"http://{app.rest_address}"


async def take_for_docs() -> None:
    with tempfile.TemporaryDirectory() as profile:
        async with recorded_calls() as base, browser_page(Path(profile), "--hide-scrollbars") as page:
            await page.viewport(WIDTHS[-1], HEIGHT)
            for name, theme in IN_DOCS.items():
                await page.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
                await take(page, base, name, DOCS / f"{name}.png")


if __name__ == "__main__":
    asyncio.run(take_for_docs())
    for path in sorted(DOCS.glob("*.png")):
        print(f"{path.relative_to(ROOT)}: {path.stat().st_size // 1000} kB")  # noqa: T201
