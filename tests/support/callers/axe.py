"""Whether a page can be used by everybody, as axe-core sees it in a real browser."""

from __future__ import annotations

from functools import cache
from importlib.resources import files

from tests.support.callers.browser import Page

WIDTHS = (360, 1280)
BETWEEN = (640, 768, 1024)
"""Widths at which nothing may scroll sideways either; the first is what is left of 1,280 px at a zoom of 200 %."""
THEMES = ("light", "dark")
RULES = """axe.run({ runOnly: ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa", "best-practice"] })
    .then(({ violations }) => violations.map(({ id, nodes }) => `${id}: ${nodes[0].html.slice(0, 200)}`))"""

SIDEWAYS = "document.documentElement.scrollWidth > innerWidth"


@cache
def axe_script() -> str:
    """axe-core, out of the wheel that carries it; no other part of that wheel is used."""
    return (files("axe_playwright_python") / "axe.min.js").read_text()


async def violations(page: Page) -> list[str]:
    """What axe finds wrong with what is shown, in both themes at both widths, and what makes it scroll sideways."""
    found = []
    for theme in THEMES:
        await page.media(prefers_color_scheme=theme, prefers_reduced_motion="reduce")
        for width in WIDTHS:
            await page.viewport(width)
            await page.evaluate(f"{axe_script()}; null")
            found += [f"{theme} {width}: {one}" for one in await page.evaluate(RULES)]
            if await page.evaluate(SIDEWAYS):
                found.append(f"{theme} {width}: it scrolls sideways")
    for width in BETWEEN:
        await page.viewport(width)
        if await page.evaluate(SIDEWAYS):
            found.append(f"{width}: it scrolls sideways")
    return found
