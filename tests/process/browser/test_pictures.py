"""Pictures of all pages, which are kept to be looked at, and those of the docs."""

from __future__ import annotations

import struct
from pathlib import Path

import pytest

from tests.process.browser.pictures import DOCS, HEIGHT, IN_DOCS, SHOTS, recorded_calls, take
from tests.support.callers.axe import THEMES, WIDTHS
from tests.support.callers.browser import Page
from tests.support.documentation import TEXTS
from tests.support.paths import ROOT

KEPT = ROOT / "build" / "screenshots"


def size(path: Path) -> tuple[int, int]:
    """Width and height of a PNG, as its header has them."""
    width, height = struct.unpack(">II", path.read_bytes()[16:24])
    return width, height


@pytest.mark.needs("chromium")
async def test_every_page_is_kept_as_a_picture(page: Page) -> None:
    """Each page of recorded calls, in both themes at both widths, is kept in build/screenshots."""
    async with recorded_calls() as base:
        for width in WIDTHS:
            await page.viewport(width, HEIGHT)
            for theme in THEMES:
                await page.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
                for name in SHOTS:
                    path = KEPT / f"{name}-{theme}-{width}.png"
                    await take(page, base, name, path)
                    assert (width, HEIGHT) == size(path)


def test_pictures_of_the_docs_are_shown() -> None:
    """Each picture that the docs need is there and is shown by a page, and none is left over."""
    assert {f"{name}.png" for name in IN_DOCS} == {path.name for path in DOCS.iterdir()}
    texts = "".join(TEXTS.values())
    for name in IN_DOCS:
        assert (WIDTHS[-1], HEIGHT) == size(DOCS / f"{name}.png")
        assert f"(pictures/{name}.png)" in texts
