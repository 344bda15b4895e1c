"""What a browser loads to show a page: all of it together is light, whatever the modules are called."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.callers.browser import browser_page
from tests.support.callers.rest import RestClient
from tests.support.events import delta, done, final
from tests.support.services import Serve

pytestmark = pytest.mark.needs("chromium")
MAX_BYTES, MAX_ZIPPED = 140_000, 52_000
LOADED = """performance.getEntriesByType("resource").filter((one) => one.name.includes("/ui/assets/"))
    .map((one) => [one.name, one.decodedBodySize, one.encodedBodySize])"""


@pytest.mark.parametrize(("path", "shown"), [("calls", "tbody tr"), ("calls/call-1", ".msg .words")])
async def test_a_page_is_light(serve: Serve, tmp_path: Path, path: str, shown: str) -> None:
    """Scripts, styles and pictures of the list, and of a call, stay below 140 kB, and 52 kB as they are sent."""
    app = await serve()
    rest = RestClient(app)
    await rest.create("call-1")
    await rest.send(final(1, "Hello.", 1000), delta(1, "Hi.", 2000), done(1, 2500), session_id="call-1")
    async with browser_page(tmp_path / "profile") as page:
        await page.open(f"http://{app.rest_address}/ui/{path}")
        await page.until(f"document.querySelector({shown!r}) !== null")
        loaded = await page.evaluate(LOADED)
    assert len(loaded) > 10
    assert sum(size for _, size, _ in loaded) < MAX_BYTES
    assert sum(size for *_, size in loaded) < MAX_ZIPPED
