"""When something stood on a page in a real browser, as `bench.page` asks for it.

The browser is driven as the tests of the page drive it. Scripts that the page does not know of note the times: of a
page that is loaded, when the next frame begins after the last element came; of a live call, which the page draws in
its frames, when a message to itself comes back that was sent in that frame, and so is read once it was painted.
"""

from __future__ import annotations

from tests.support.callers.browser import Page

COUNTED = """(() => {{
    new MutationObserver((_, observer) => {{
        if (document.querySelectorAll({selector!r}).length < {count}) return;
        observer.disconnect();
        requestAnimationFrame(() => {{ window.shownAt = performance.now(); }});
    }}).observe(document, {{ childList: true, subtree: true }});
}})()"""
"""Notes when so many elements are there, in ms since the page was asked for."""

MARKED = r"""(() => {
    window.marks = {};
    const painted = new MessageChannel();
    painted.port1.onmessage = ({ data }) => { window.marks[data] = performance.timeOrigin + performance.now(); };
    let newest = -1;
    new MutationObserver(() => {
        const texts = document.querySelectorAll(".talk-list .msg:last-child .words");
        const words = (texts[texts.length - 1]?.textContent ?? "").matchAll(/w(\d+)\./g);
        const now = Math.max(...[...words].map((one) => Number(one[1])));
        if (!(now > newest)) return;
        newest = now;
        painted.port2.postMessage(now);
    }).observe(document, { childList: true, subtree: true, characterData: true });
    window.longest = 0;
    new PerformanceObserver((list) => {
        for (const task of list.getEntries()) window.longest = Math.max(window.longest, task.duration);
    }).observe({ type: "longtask", buffered: true });
})()"""
"""Notes when each word `wNUMBER.` of the last message was there, in Unix ms, and the longest task of the page."""

FIRST_PAINT = "(performance.getEntriesByName('first-contentful-paint')[0]?.startTime ?? null)"


async def time_of(page: Page, url: str, selector: str, count: int) -> tuple[float, float]:
    """Open a page again: ms until its first content was painted, and until so many elements were there."""
    await page.open("about:blank")
    noted = await page.ask(
        "Page.addScriptToEvaluateOnNewDocument", source=COUNTED.format(selector=selector, count=count)
    )
    await page.ask("Page.navigate", url=url)
    await page.until(f"window.shownAt !== undefined && {FIRST_PAINT} !== null")
    await page.ask("Page.removeScriptToEvaluateOnNewDocument", identifier=noted["identifier"])
    return await page.evaluate(FIRST_PAINT), await page.evaluate("window.shownAt")
