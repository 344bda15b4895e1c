"""The browser page of docs/first-client-javascript.md in a real browser, and what the page says that pages meet."""

from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from tests.support.callers.browser import Page, browser_page
from tests.support.callers.rest import RestClient, make_key
from tests.support.processes.doc_programs import (
    install_javascript_client,
    printed_programs,
    running_program,
    save_programs,
)
from tests.support.servers.network_proxy import NetworkProxy
from tests.support.services import Serve
from voicemem.app import App
from voicemem.config.service import Address

PAGE = "first-client-javascript.md"
KEY = "an operator's own key"
FOREIGN = "calls.example"
SHOWN = printed_programs(PAGE, "text")[1].splitlines()
LINES = "[...document.querySelectorAll('#call li')].map((line) => line.textContent)"
pytestmark = pytest.mark.needs("chromium", "node")


@asynccontextmanager
async def opened(app: App, folder: Path, key: str | None = None, ingest: Address | None = None) -> AsyncIterator[Page]:
    """The page as its own backend serves it, in a browser that knows a foreign name for loopback."""
    changes = {
        "127.0.0.1:8765": str(ingest or app.ingest_address),
        "http://127.0.0.1:8080": f"http://{app.rest_address}",
        "listen(9100,": "listen(0,",
    }
    env = {}
    if key is not None:
        env["VOICEMEM_KEY"] = await make_key(app, "admin")
    save_programs(PAGE, folder / "site", changes)
    if not (folder / "site" / "node_modules").exists():
        install_javascript_client(folder / "site")
    async with (
        running_program(folder / "site", "server.mjs", **env) as backend,
        browser_page(folder / "profile", f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1") as page,
    ):
        await backend.says("/\n")
        await page.open(backend.out.strip())
        yield page


def websocket(app: App) -> str:
    """An expression: whether a page may open the ingest."""
    url = json.dumps(f"ws://{app.ingest_address}/v1/ingest")
    return f"""new Promise((tell) => {{
        const socket = new WebSocket({url});
        socket.onopen = () => tell("open");
        socket.onclose = (close) => tell(close.code);
    }})"""


def fetched(app: App, path: str, options: str = "{}") -> str:
    """An expression: the status that a page sees, or the error."""
    url = json.dumps(f"http://{app.rest_address}{path}")
    return f"fetch({url}, {options}).then((answer) => answer.status, (error) => error.name)"


@pytest.mark.parametrize("key", [None, KEY], ids=["without keys", "with keys"])
async def test_the_page_shows_the_call_that_it_recorded(serve: Serve, tmp_path: Path, key: str | None) -> None:
    """The page sends over its websocket, if need be with a token in the first frame, and reads by its backend."""
    app = await serve(admin_key=key)
    async with opened(app, tmp_path, key) as page:
        await page.until(f"{LINES}.length >= {len(SHOWN)}")
        assert await page.evaluate(LINES) == SHOWN
        given = await page.evaluate("fetch('/call', { method: 'POST' }).then((answer) => answer.text())")
    assert "vm_" not in given
    assert ("token" in json.loads(given)) == (key is not None)


async def test_the_page_goes_on_after_lost_connections(serve: Serve, tmp_path: Path) -> None:
    """In a browser too, connections that break off in the middle lose nothing."""
    app = await serve()
    async with NetworkProxy(app.ingest_address) as proxy:
        proxy.to_server.limit_bytes = 850  # a browser's handshake takes some 450 of them, the call 600
        async with opened(app, tmp_path, ingest=proxy.address) as page:
            await page.until(f"{LINES}.length >= {len(SHOWN)}")
            assert await page.evaluate(LINES) == SHOWN
        assert proxy.accepted >= 2
    (session,) = (await RestClient(app).get("/v1/sessions")).json["sessions"]
    rows = await RestClient(app).journal(session["session_id"])
    assert [row["seq"] for row in rows if row["seq"] is not None] == [1, 2, 3, 4]


async def test_a_page_cannot_read_from_the_service_itself(serve: Serve, tmp_path: Path) -> None:
    """Another port is another origin: the browser keeps REST's answers from the page, with keys and without."""
    app = await serve()
    async with opened(app, tmp_path) as page:
        assert await page.evaluate(fetched(app, "/v1/sessions")) == "TypeError"
        assert await page.evaluate(fetched(app, "/livez")) == "TypeError"
    keyed = await serve(admin_key=KEY)
    async with opened(keyed, tmp_path, KEY) as page:
        key = json.dumps({"headers": {"Authorization": f"Bearer {KEY}"}})
        assert await page.evaluate(fetched(keyed, "/v1/sessions", key)) == "TypeError"


async def test_whose_page_may_send(serve: Serve, tmp_path: Path) -> None:
    """Without keys pages from loopback may open the ingest, and neither foreign pages nor files; with keys all may."""
    app, keyed = await serve(), await serve(admin_key=KEY)
    (tmp_path / "file.html").write_text("<!doctype html>")
    async with opened(app, tmp_path) as page:
        assert await page.evaluate(websocket(app)) == "open"
        address = await page.evaluate("location.href")
        await page.open(address.replace("127.0.0.1", "localhost"))
        assert await page.evaluate(websocket(app)) == "open"
        for url in (address.replace("127.0.0.1", FOREIGN), (tmp_path / "file.html").as_uri()):
            await page.open(url)
            assert await page.evaluate(websocket(app)) == 1006
            assert await page.evaluate(websocket(keyed)) == "open"
