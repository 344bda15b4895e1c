"""A browser's requests to the page's own paths, as headers and cookies tell them."""

from __future__ import annotations

from http.cookies import SimpleCookie
from typing import Any

import aiohttp
from yarl import URL

from tests.support.callers.rest import RestResponse
from voicemem.app import App
from voicemem.protocol.types import JsonObject


class PageClient:
    """Asks as the page does: from its own origin, with the cookies that it was given."""

    def __init__(self, app: App, **headers: str) -> None:
        self.base = f"http://{app.rest_address}"
        self.headers = {"Sec-Fetch-Site": "same-origin", **headers}
        self.cookies: dict[str, str] = {}
        self.last_cookies = SimpleCookie()
        """What the last answer set, with all that it says of it."""

    async def call(self, method: str, path: str, headers: JsonObject | None = None, **more: Any) -> RestResponse:
        """One request; the path is sent as it is written."""
        sent = {**self.headers, **(headers or {})}
        if self.cookies:
            sent["Cookie"] = "; ".join(f"{name}={value}" for name, value in self.cookies.items())
        if method not in ("GET", "HEAD"):
            sent.setdefault("Content-Type", "application/json")
        url = URL(self.base + path, encoded=True)
        async with (
            aiohttp.ClientSession(cookie_jar=aiohttp.DummyCookieJar()) as http,
            http.request(method, url, headers=sent, allow_redirects=False, **more) as answer,
        ):
            self.last_cookies = answer.cookies
            for name, cookie in answer.cookies.items():
                self.cookies[name] = cookie.value
                if cookie["max-age"] == "0":
                    del self.cookies[name]
            return RestResponse(answer.status, answer.headers, await answer.read())

    async def get(self, path: str, headers: JsonObject | None = None) -> RestResponse:
        return await self.call("GET", path, headers)

    async def sign_in(self, key: str) -> RestResponse:
        """Show a key for a cookie."""
        return await self.call("POST", "/ui/session", json={"key": key})
