"""The files of the page: one document at known addresses, and assets that a browser may keep for ever."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import gzip
import re

import aiohttp
import pytest

from tests.support.callers.page import PageClient
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.server.page.files import FOLDER, HEADERS, page_files, takes_gzip

POLICY = (
    "default-src 'none'; script-src 'self'; style-src 'self'; img-src 'self'; connect-src 'self'; form-action 'self'; "
    "media-src https: http:; base-uri 'none'; frame-ancestors 'none'; require-trusted-types-for 'script'; "
    "trusted-types 'none'"
)
KNOWN = ["/ui/", "/ui/calls", "/ui/calls/s", "/ui/calls/s/memory", "/ui/deliveries", "/ui/operator"]
UNKNOWN = ["/ui/x", "/ui/calls/s/x", "/ui/calls/s/memory/x", "/ui/index.html", "/ui/p/shop", "/ui//", "/uix"]


async def test_the_document_is_at_the_addresses_of_the_page_and_nowhere_else(serve: Serve) -> None:
    """Each known address gives the same document, in each project; others are not found."""
    page = PageClient(await serve())
    first = await page.get("/ui/")
    assert (200, "text/html; charset=utf-8") == (first.status, first.headers["Content-Type"])
    for path in [*KNOWN, *(path.replace("/ui/", "/ui/p/shop/") for path in KNOWN)]:
        assert first.body == (await page.get(path)).body, path
    for path in UNKNOWN:
        assert (404, "not_found") == (await page.get(path)).problem, path


async def test_assets_are_kept_for_ever_and_named_by_what_is_in_them(serve: Serve) -> None:
    """All that the document names is there, immutable; at the address of another version there is nothing."""
    page = PageClient(await serve())
    shell = (await page.get("/ui/")).body.decode()
    assert "no-store" == (await page.get("/ui/")).headers["Cache-Control"]
    named = re.findall(r'(?:src|href)="([^"]+)"', shell)
    assert named
    for path in named:
        answer = await page.get(path)
        assert 200 == answer.status, path
        assert "public, max-age=31536000, immutable" == answer.headers["Cache-Control"]
        assert 404 == (await page.get(path.replace(page_files().version, "0" * 16))).status
    kept = await page.get(named[0], {"If-None-Match": answer.headers["ETag"]})
    assert 200 == kept.status
    assert 304 == (await page.get(path, {"If-None-Match": answer.headers["ETag"]})).status


async def test_every_asset_of_the_folder_is_served_also_zipped(serve: Serve) -> None:
    """What is sent is the file without comments and indentation, plain or gzipped, as the browser takes it."""

    def lines(body: bytes) -> list[str]:
        """The lines that are more than a comment, without the types in them."""
        text = re.sub(r"/\*((?!\*/).)*\*/ ?", "", body.decode(), flags=re.DOTALL)
        return [line.strip() for line in text.splitlines() if line.strip() and not line.strip().startswith("//")]

    app = await serve()
    files = page_files()
    async with aiohttp.ClientSession(auto_decompress=False) as http:
        for name, asset in files.assets.items():
            url = f"http://{app.rest_address}/ui/assets/{files.version}/{name}"
            for accepted in ("gzip, br", "identity"):
                async with http.get(url, headers={"Accept-Encoding": accepted}) as answer:
                    body = await answer.read()
                    assert asset.media_type == answer.headers["Content-Type"]
                    zipped = answer.headers.get("Content-Encoding") == "gzip"
                    assert zipped == (accepted != "identity")
                    sent = gzip.decompress(body) if zipped else body
                    assert asset.body == sent
                    assert lines((FOLDER / name).read_bytes()) == lines(sent)


@pytest.mark.parametrize("path", ["/ui/", "/ui/v1/sessions", "/ui/session", "/ui/x", "/ui/v1/sessions/nobody"])
async def test_every_answer_says_what_a_browser_may_do_with_it(serve: Serve, path: str) -> None:
    """Shell, data and errors alike have the headers, and are not kept."""
    answer = await PageClient(await serve()).get(path)
    assert POLICY == answer.headers["Content-Security-Policy"]
    assert HEADERS.items() <= dict(answer.headers).items()
    assert "no-store" == answer.headers["Cache-Control"]


async def test_rest_has_none_of_these_headers(serve: Serve) -> None:
    """The API itself is as it was."""
    answer = await PageClient(await serve()).get("/v1/sessions")
    assert not HEADERS.keys() & set(answer.headers)


async def test_a_browser_at_the_root_is_led_to_the_page(serve: Serve) -> None:
    """Programs find nothing there, as before."""
    page = PageClient(await serve())
    led = await page.get("/", {"Accept": "text/html,application/xhtml+xml,*/*;q=0.8"})
    assert (303, "/ui/") == (led.status, led.headers["Location"])
    assert (404, "not_found") == (await page.get("/", {"Accept": "*/*"})).problem
    assert (303, "/ui/") == ((await page.get("/ui")).status, (await page.get("/ui")).headers["Location"])


async def test_the_page_can_be_turned_off(serve: Serve) -> None:
    """Then nothing of it is there."""
    page = PageClient(await serve(ui=False))
    for path in ("/", "/ui", "/ui/", "/ui/v1/sessions", "/ui/session"):
        assert (404, "not_found") == (await page.get(path, {"Accept": "text/html"})).problem, path


@every_row(
    ("accepted", "expected"),
    [("gzip", True), ("br;q=1.0, GZIP;q=0.8", True), ("", False), ("br", False), ("gzip;q=0", False), ("xgzip", False)],
)
def test_gzip_is_for_who_takes_it(accepted: str, expected: bool) -> None:
    """A browser names it, or does not."""
    assert expected == takes_gzip(accepted)
