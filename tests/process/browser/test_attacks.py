"""Pages of others in a browser that is signed in: they read nothing, do nothing, and show nothing of the page."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from tests.support.callers.browser import Page, browser_page
from tests.support.callers.rest import RestClient
from tests.support.samples.audit_lines import ADMIN_KEY, acts
from tests.support.services import Serve
from tests.support.waiting import eventually
from voicemem.app import App

FOREIGN = "evil.example"
"""A name that the browser knows for this machine: another site's, or one that was bent to it (DNS rebinding)."""
FORM = """
<!doctype html><form method="post" enctype="text/plain" action="{action}">
<input name='{{"reason":"x","more":"' value='"}}'></form>
<iframe name="framed" src="{base}/ui/"></iframe>
"""
pytestmark = pytest.mark.needs("chromium")


def tried(url: str, **options: Any) -> str:
    """An expression: the status and text that a page gets, or the error."""
    return (
        f"fetch({json.dumps(url)}, {json.dumps({'credentials': 'include', **options})})"
        ".then(async (answer) => `${answer.type} ${answer.status} ${await answer.text()}`, (error) => error.name)"
    )


def loaded(element: str, url: str) -> str:
    """An expression: whether an element of a page can load this."""
    return f"""new Promise((tell) => {{
        const element = document.createElement({json.dumps(element)});
        element.onload = () => tell("load");
        element.onerror = () => tell("error");
        element.src = {json.dumps(url)};
        document.body.append(element);
    }})"""


def followed(url: str) -> str:
    """An expression: what becomes of a stream of events."""
    return f"""new Promise((tell) => {{
        const source = new EventSource({json.dumps(url)}, {{ withCredentials: true }});
        source.onopen = () => tell("open");
        source.onerror = () => tell("error");
    }})"""


@asynccontextmanager
async def attacker(app: App) -> AsyncIterator[int]:
    """The port of another site's pages, which know where the service is."""
    base = f"http://{app.rest_address}"
    text = FORM.format(base=base, action=f"{base}/ui/v1/sessions/s/end")

    async def answer(_: web.Request) -> web.Response:
        return web.Response(text=text, content_type="text/html")

    site = web.Application()
    site.router.add_get("/{path:.*}", answer)
    runner = web.AppRunner(site)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        yield runner.addresses[0][1]
    finally:
        await runner.cleanup()


@asynccontextmanager
async def victim(app: App, folder: Path) -> AsyncIterator[Page]:
    """A browser that is signed in to the page with the operator's key, and a running call."""
    await RestClient(app, ADMIN_KEY).create("s", name="A secret name")
    async with browser_page(folder / "profile", f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1") as page:
        await page.open(f"http://{app.rest_address}/ui/sign-in")
        headers = {"Content-Type": "application/json"}
        body = json.dumps({"key": ADMIN_KEY})
        assert "basic 204 " == await page.evaluate(tried("/ui/session", method="POST", headers=headers, body=body))
        assert "A secret name" in await page.evaluate(tried("/ui/v1/sessions"))
        assert "" == await page.evaluate("document.cookie")
        yield page


async def state_of(app: App) -> str:
    return str((await RestClient(app, ADMIN_KEY).session("s"))["state"])


@pytest.mark.parametrize("host", ["127.0.0.1", FOREIGN], ids=["another port", "another site"])
async def test_a_page_of_others_reads_nothing(serve: Serve, tmp_path: Path, host: str) -> None:
    """Whether it asks by script, as a script, a picture or a stream; the cookie that goes along opens nothing."""
    app = await serve(admin_key=ADMIN_KEY)
    base = f"http://{app.rest_address}"
    async with attacker(app) as port, victim(app, tmp_path) as page:
        await page.open(f"http://{host}:{port}/")
        for path in ("/ui/v1/sessions", "/ui/session", "/ui/v1/sessions/s/history", "/ui/"):
            assert "TypeError" == await page.evaluate(tried(base + path))
            for element in ("script", "img"):
                assert "error" == await page.evaluate(loaded(element, base + path)), (element, path)
        opaque = await page.evaluate(tried(f"{base}/ui/v1/sessions", mode="no-cors"))
        assert "A secret name" not in opaque
        assert "error" == await page.evaluate(followed(f"{base}/ui/v1/events"))


@pytest.mark.parametrize("host", ["127.0.0.1", FOREIGN], ids=["another port", "another site"])
async def test_a_page_of_others_does_nothing(
    serve: Serve, tmp_path: Path, host: str, caplog: pytest.LogCaptureFixture
) -> None:
    """Neither by script, with and without asking the browser's leave, nor by a form that is sent in its name."""
    app = await serve(admin_key=ADMIN_KEY)
    base = f"http://{app.rest_address}"
    wanted = {"method": "POST", "headers": {"Content-Type": "application/json"}, "body": "{}"}
    async with attacker(app) as port, victim(app, tmp_path) as page:
        signed_in = acts(caplog)
        await page.open(f"http://{host}:{port}/")
        for path, more in (("/s/end", {}), ("/s", {"method": "DELETE"}), ("/s", {"method": "PATCH"})):
            assert "TypeError" == await page.evaluate(tried(f"{base}/ui/v1/sessions{path}", **{**wanted, **more}))
        plain = {"method": "POST", "mode": "no-cors", "body": "{}"}
        await page.evaluate(tried(f"{base}/ui/v1/sessions/s/end", **plain))
        await page.evaluate(f"navigator.sendBeacon({json.dumps(base)} + '/ui/v1/sessions/s/end', '{{}}')")
        await page.evaluate("document.forms[0].submit()")
        await page.until(f"location.href === {json.dumps(base + '/ui/v1/sessions/s/end')}")
        assert "foreign_origin" in await page.evaluate("document.body.textContent")
        assert "running" == await state_of(app)
        assert signed_in == acts(caplog)
        await page.open(f"{base}/ui/operator")
        assert "basic 200" in await page.evaluate(tried("/ui/v1/sessions/s/end", **wanted))
    assert "ended" == await state_of(app)


@pytest.mark.parametrize("host", ["127.0.0.1", FOREIGN], ids=["another port", "another site"])
async def test_the_page_is_shown_in_no_frame(serve: Serve, tmp_path: Path, host: str) -> None:
    """No one can lay something over it and have a person click on what is below."""
    app = await serve(admin_key=ADMIN_KEY)
    async with attacker(app) as port, victim(app, tmp_path) as page:
        await page.watch()
        await page.open(f"http://{host}:{port}/")

        async def is_refused() -> bool:
            await page.evaluate("document.readyState")  # the browser tells of it in its own time
            return any("frame-ancestors 'none'" in one for one in page.problems)

        await eventually(True, is_refused, timeout_s=60)


@pytest.mark.parametrize("keys", [None, ADMIN_KEY], ids=["without keys", "with keys"])
async def test_a_name_that_was_bent_to_this_machine_gets_nothing(
    serve: Serve, tmp_path: Path, keys: str | None
) -> None:
    """Not the page, nor what is behind it: its own address is no origin of ours (DNS rebinding)."""
    app = await serve(admin_key=keys)
    await RestClient(app, keys).create("s", name="A secret name")
    bent = f"http://{FOREIGN}:{app.rest_address.port}"
    async with browser_page(tmp_path / "profile", f"--host-resolver-rules=MAP {FOREIGN} 127.0.0.1") as page:
        for path in ("/ui/", "/ui/calls/s", "/ui/session", "/ui/v1/sessions", "/ui/v1/sessions/s/history"):
            await page.open(bent + path)
            assert "foreign_host" in await page.evaluate("document.body.textContent")
            assert "basic 403" in await page.evaluate(tried("/ui/v1/sessions"))
            ended = tried(
                "/ui/v1/sessions/s/end", method="POST", headers={"Content-Type": "application/json"}, body="{}"
            )
            assert "basic 403" in await page.evaluate(ended)
    assert "running" == (await RestClient(app, keys).session("s"))["state"]


async def test_without_keys_pages_of_others_are_refused_as_well(serve: Serve, tmp_path: Path) -> None:
    """There is no cookie to steal then, and nothing to read or do either."""
    app = await serve()
    await RestClient(app).create("s", name="A secret name")
    base = f"http://{app.rest_address}"
    async with attacker(app) as port, browser_page(tmp_path / "profile") as page:
        await page.open(f"http://127.0.0.1:{port}/")
        assert "TypeError" == await page.evaluate(tried(f"{base}/ui/v1/sessions"))
        await page.evaluate("document.forms[0].submit()")
        await page.until(f"location.href === {json.dumps(base + '/ui/v1/sessions/s/end')}")
        assert "foreign_origin" in await page.evaluate("document.body.textContent")
    assert "running" == (await RestClient(app).session("s"))["state"]


async def test_text_becomes_no_markup_and_no_script(serve: Serve, tmp_path: Path) -> None:
    """What would make markup or code of a text throws in the page, and a script of others is not loaded."""
    app = await serve()
    made = "document.body.appendChild(document.createElement('script'))"
    async with attacker(app) as port, browser_page(tmp_path / "profile") as page:
        await page.open(f"http://{app.rest_address}/ui/")
        for act in (
            "document.body.innerHTML = '<b>x</b>'",
            "document.body.insertAdjacentHTML('beforeend', '<b>x</b>')",
            "document.write('x')",
            f"{made}.text = 'x'",
            f"{made}.src = '/ui/x.js'",
            "new DOMParser().parseFromString('<b>x</b>', 'text/html')",
            "window.trustedTypes.createPolicy('default', {})",
        ):
            assert "TypeError" == await page.evaluate(
                f"(() => {{ try {{ {act} }} catch (e) {{ return e.name }} }})()"
            ), act
        assert "error" == await page.evaluate(loaded("img", f"http://127.0.0.1:{port}/x.png"))
        assert "TypeError" == await page.evaluate(tried(f"http://127.0.0.1:{port}/"))
        assert await page.evaluate("document.body.style.cssText === '' && document.styleSheets.length > 0")
