"""The JavaScript tee in a page of a real browser: around its websockets, and around data channels of WebRTC."""

from __future__ import annotations

import json
import signal
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest
from aiohttp import WSMsgType, web

from tests.support.callers.browser import Page, browser_page
from tests.support.callers.tees import recordings_of, text_of
from tests.support.dialects import Recording
from tests.support.paths import ROOT
from tests.support.processes.ports import free_ports
from tests.support.processes.service_process import ServiceProcess, running_process
from tests.support.waiting import eventually

SOURCE = ROOT / "clients" / "javascript" / "source"
KEY = "an operator's own key"
PAGE = """<!doctype html><link rel="icon" href="data:,">
<script type="module">
  import { Client } from "/source/index.js";
  import { CLOCK } from "/source/tee/frames.js";
  import { memoryOf, tee } from "/source/tee/tee.js";

  const opened = (one) => new Promise((resolve) => one.addEventListener("open", () => resolve(one)));

  async function sockets() {
    const ends = ["app", "vendor"].map((name) => new WebSocket(`ws://${location.host}/pair/${name}`));
    return Promise.all(ends.map(opened));
  }

  async function channels() {
    const [ours, theirs] = [new RTCPeerConnection(), new RTCPeerConnection()];
    for (const [one, other] of [[ours, theirs], [theirs, ours]]) {
      one.addEventListener("icecandidate", ({ candidate }) => candidate && other.addIceCandidate(candidate));
    }
    const app = ours.createDataChannel("oai-events");
    const vendor = new Promise((resolve) => theirs.addEventListener("datachannel", ({ channel }) => resolve(channel)));
    const both = Promise.all([opened(app), vendor]);
    await ours.setLocalDescription();
    await theirs.setRemoteDescription(ours.localDescription);
    await theirs.setLocalDescription();
    await ours.setRemoteDescription(theirs.localDescription);
    window.peers = [ours, theirs]; // else they may be collected
    return both;
  }

  window.begin = async (kind, dialect, id, ingest, token) => {
    const [app, vendor] = await { sockets, channels }[kind]();
    const client = new Client(ingest, { key: token, firstDelayMs: 50, awayDelayMs: 200, closeTimeoutMs: 60_000 });
    window.ends = { app: tee(app, client, { sessionId: id, dialect }), vendor };
    window.memory = memoryOf(app);
  };

  window.cross = (from, ts, text, binary) => new Promise((resolve) => {
    CLOCK.now = () => ts;
    const { [from]: sender, [from === "app" ? "vendor" : "app"]: receiver } = window.ends;
    const arrived = async ({ data }) => resolve(typeof data === "string" ? data : await new Response(data).text());
    receiver.addEventListener("message", arrived, { once: true });
    sender.send(binary ? new TextEncoder().encode(text) : text);
  });

  window.hangUp = async (ts) => {
    CLOCK.now = () => ts;
    await window.memory.close();
    return [window.memory.dropped, window.memory.counts.malformed];
  };
  window.isReady = true;
</script>"""


@asynccontextmanager
async def site() -> AsyncIterator[str]:
    """The page, the modules of the package, and a pair of websockets of which each gives what the other gets."""
    pair: dict[str, web.WebSocketResponse] = {}

    async def page(request: web.Request) -> web.Response:
        return web.Response(text=PAGE, content_type="text/html")

    async def end(request: web.Request) -> web.WebSocketResponse:
        name = request.match_info["name"]
        pair[name] = websocket = web.WebSocketResponse()
        await websocket.prepare(request)
        async for message in websocket:
            other = pair["vendor" if name == "app" else "app"]
            await (other.send_str if message.type is WSMsgType.TEXT else other.send_bytes)(message.data)
        return websocket

    app = web.Application()
    app.router.add_get("/", page)
    app.router.add_get("/pair/{name}", end)
    app.router.add_static("/source", SOURCE)
    runner = web.AppRunner(app, shutdown_timeout=0)
    await runner.setup()
    try:
        listening = web.TCPSite(runner, "127.0.0.1", 0)
        await listening.start()
        yield listening.name
    finally:
        await runner.cleanup()


async def token_of(process: ServiceProcess) -> str:
    """A token for a new session, which a backend would make."""
    process.api.headers = {"Authorization": f"Bearer {KEY}"}
    await process.api.create("call")
    token: str = (await process.api.post("/v1/sessions/call/tokens")).json["token"]
    return token


async def play(page: Page, recording: Recording, first: int = 0, last: int | None = None, binary: bool = False) -> None:
    """Send frames of a recorded call from the end that sent them, and see them arrive at the other."""
    for envelope in recording.envelopes()[first:last]:
        text = text_of(envelope["frame"])
        given = json.dumps([envelope.get("from", "vendor"), envelope["ts"], text, binary])
        assert await page.evaluate(f"window.cross(...{given})") == text


async def check(page: Page, process: ServiceProcess, recording: Recording) -> None:
    """Hang up; the service has the memory of the recording then."""
    assert await page.evaluate(f"window.hangUp({recording.hang_up()})") == [0, 0]

    async def state() -> str:
        session: str = (await process.api.get("/v1/sessions/call")).json["state"]
        return session

    await eventually("ended", state)
    assert recording.document("contents")["contents"] == await process.api.contents("call")


REALTIME = {one.name: one for one in recordings_of("openai-realtime")}
CALLS = [
    ("sockets", REALTIME["barge_in_and_hang_up"], False),
    ("channels", REALTIME["webrtc"], False),
    ("channels", recordings_of("pipecat-rtvi")[0], False),
    ("sockets", recordings_of("gemini-live")[1], True),
]
"""The kind of the connection, the call, and whether its frames are binary: browsers give those as `Blob`."""


@pytest.mark.needs("chromium")
@pytest.mark.parametrize(("kind", "recording", "binary"), CALLS, ids=str)
async def test_a_call_of_a_page_is_remembered(tmp_path: Path, kind: str, recording: Recording, binary: bool) -> None:
    """Both directions, with a session token; the page goes on as before."""
    env = {"VOICEMEM_ADMIN_KEY": KEY}
    async with (
        site() as url,
        browser_page(tmp_path / "profile") as page,
        running_process(tmp_path / "calls.db", env=env) as process,
    ):
        await page.watch()
        await page.open(f"{url}/")
        await page.until("window.isReady")
        given = [kind, recording.dialect, "call", f"ws://{process.ingest_address}", await token_of(process)]
        await page.evaluate(f"window.begin(...{json.dumps(given)})")
        await play(page, recording, binary=binary)
        await check(page, process, recording)
        assert page.problems == []


@pytest.mark.needs("chromium")
@pytest.mark.parametrize("kind", ["sockets", "channels"])
async def test_a_memory_that_goes_away_costs_the_page_nothing(tmp_path: Path, kind: str) -> None:
    """Frozen in mid-call, then killed, then there again: every frame passes, and the memory is the same."""
    rest, ingest = free_ports(2)
    store, env, recording = tmp_path / "calls.db", {"VOICEMEM_ADMIN_KEY": KEY}, REALTIME["barge_in_and_hang_up"]
    third = len(recording.envelopes()) // 3
    async with site() as url, browser_page(tmp_path / "profile") as page:
        await page.open(f"{url}/")
        await page.until("window.isReady")
        async with running_process(store, rest=rest, ingest=ingest, env=env) as process:
            given = [kind, recording.dialect, "call", f"ws://{process.ingest_address}", await token_of(process)]
            await page.evaluate(f"window.begin(...{json.dumps(given)})")
            await play(page, recording, last=third)
            await page.until("window.memory.session.isOpen")
            process.signal(signal.SIGSTOP)
            await play(page, recording, third, 2 * third)
            await process.kill()
        await play(page, recording, 2 * third)
        async with running_process(store, rest=rest, ingest=ingest, env=env) as process:
            process.api.headers = {"Authorization": f"Bearer {KEY}"}
            await check(page, process, recording)
