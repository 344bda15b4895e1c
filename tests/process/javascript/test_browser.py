"""The JavaScript client as a module in a page of a real browser."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import web

from tests.support.callers.browser import browser_page
from tests.support.paths import ROOT
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process

SOURCE = ROOT / "clients" / "javascript" / "source"
KEY = "an operator's own key"
SAID = ["Tell me a joke.", "Another one.", "Goodbye."]
PAGE = """<!doctype html><link rel="icon" href="data:,">
<script type="module">
  import { Client } from "/source/index.js";
  const { ingest, id, token } = Object.fromEntries(new URLSearchParams(location.search));
  const client = new Client(ingest, { key: token, firstDelayMs: 50, awayDelayMs: 200 });
  window.session = client.session(id);
  window.say = (turn_id, text) => window.session.record({ type: "asr", turn_id, text, final: true });
</script>"""


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """A page, and the modules of the client, as any web server serves them."""

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_static("/source", SOURCE)
    runner = web.AppRunner(app)
    await runner.setup()
    try:
        listening = web.TCPSite(runner, "127.0.0.1", 0)
        await listening.start()
        yield listening.name
    finally:
        await runner.cleanup()


async def heard(process: ServiceProcess, session_id: str) -> list[str]:
    return [message["content"] for message in await process.api.contents(session_id)]


@pytest.mark.needs("chromium")
async def test_a_page_records_a_call_and_goes_on_after_a_restart(tmp_path: Path) -> None:
    """A page records with a session token, keeps what was said while the server is away, and delivers it then."""
    rest, ingest = free_ports(2)
    store, env = tmp_path / "calls.db", {"VOICEMEM_ADMIN_KEY": KEY}
    async with site() as url, browser_page(tmp_path / "profile") as page:
        async with running_process(store, rest=rest, ingest=ingest, env=env) as process:
            process.api.headers = {"Authorization": f"Bearer {KEY}"}
            await process.api.create("call-1")
            token = (await process.api.post("/v1/sessions/call-1/tokens")).json["token"]
            await page.open(f"{url}/?ingest=ws://127.0.0.1:{ingest}&id=call-1&token={token}")
            await page.until("window.say !== undefined")
            assert await page.evaluate(f"window.say(1, {json.dumps(SAID[0])})") == 1
            await process.kill()
        await page.evaluate(f"void window.say(2, {json.dumps(SAID[1])})")
        assert await page.evaluate("window.session.unacknowledged") == 1
        async with running_process(store, rest=rest, ingest=ingest, env=env) as process:
            process.api.headers = {"Authorization": f"Bearer {KEY}"}
            assert await page.evaluate(f"window.say(3, {json.dumps(SAID[2])})") == 3
            assert await page.evaluate("window.session.end({ reason: 'hangup' })") == 4
            assert await heard(process, "call-1") == SAID
            assert await page.evaluate("[window.session.epoch, window.session.state]") == [2, "ended"]
