"""The page behind nginx with deploy/nginx.conf, in a real browser: https, HTTP/2, many tabs."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.process.deploy.test_behind_proxies import NAME, nginx
from tests.support.callers.browser import browser_page
from tests.support.callers.rest import RestClient
from tests.support.samples.audit_lines import ADMIN_KEY
from tests.support.services import Serve
from voicemem.server.page.login import SECURE_NAME

TABS = 8
"""More than the six connections that a browser opens to a host over HTTP/1.1."""
FOLLOWED = f"""Promise.all([...Array({TABS}).keys()].map(() => new Promise((tell) => {{
    new EventSource("/ui/v1/events").onopen = () => tell("open");
}})))"""
pytestmark = pytest.mark.needs("nginx", "chromium")


async def test_the_page_behind_nginx(serve: Serve, tmp_path: Path) -> None:
    """It opens at the operator's name, the cookie is for https only, and eight tails leave room for more."""
    origin = f"https://{NAME}"
    app = await serve(admin_key=ADMIN_KEY, ui_origin=origin, ui=True)
    await RestClient(app, ADMIN_KEY).create("s")
    signing_in = {"method": "POST", "headers": {"Content-Type": "application/json"}}
    signing_in["body"] = json.dumps({"key": ADMIN_KEY})
    async with nginx(app, tmp_path) as proxy:
        resolve = f"--host-resolver-rules=MAP {NAME}:443 127.0.0.1:{proxy.port}"
        async with browser_page(tmp_path / "profile", resolve, "--ignore-certificate-errors") as page:
            await page.open(f"{origin}/ui/sign-in")
            assert "h2" == await page.evaluate("performance.getEntriesByType('navigation')[0].nextHopProtocol")
            status = "fetch('/ui/session', %s).then((answer) => answer.status)"
            assert 204 == await page.evaluate(status % json.dumps(signing_in))
            (cookie,) = (await page.ask("Network.getCookies", urls=[f"{origin}/ui/"]))["cookies"]
            assert (f"{SECURE_NAME}0", "/ui", "Strict") == (cookie["name"], cookie["path"], cookie["sameSite"])
            assert cookie["secure"]
            assert cookie["httpOnly"]
            assert ["open"] * TABS == await page.evaluate(FOLLOWED)
            assert 200 == await page.evaluate("fetch('/ui/v1/sessions').then((answer) => answer.status)")
