"""The page of a call that goes on while one looks: it grows, it is cut, it ends, it is erased, the service restarts."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from contextlib import AsyncExitStack
from pathlib import Path

import pytest

from tests.support.callers.axe import WIDTHS
from tests.support.callers.call_page import SAID, CallPage, call_page
from tests.support.callers.rest import RestClient
from tests.support.services import Serve, running_service
from voicemem.protocol.types import JsonObject

pytestmark = pytest.mark.needs("chromium")
HOSTILE = [
    "<img src=x onerror=alert(1)>",
    "</script><script>document.title = 'taken'</script>",
    "\u202eturned around\u202c and \u2066isolated",
    "a\u0000b\u0007c \U0001f469\u200d\U0001f680 {{assets}}",
]
PICTURE = "document.querySelector('.call-timeline svg')?.getAttribute('aria-label')"


def typed(turn: int, text: str) -> JsonObject:
    return {"type": "message", "turn_id": turn, "ts": turn * 1000, "role": "user", "source": "message", "text": text}


async def order(shown: CallPage) -> list[str]:
    """All texts in their order, those in progress too."""
    texts: list[str] = await shown.page.evaluate(
        "[...document.querySelectorAll('.talk-list .words')].map((words) => words.textContent)"
    )
    return texts


async def test_a_partial_becomes_its_final_in_its_place(serve: Serve, tmp_path: Path) -> None:
    """Partials are in italics and grow; the final takes their place, and the messages stay in order."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0)
    await api.send(typed(1, "Hello."))
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await api.send({"type": "asr", "turn_id": 2, "ts": 2000, "text": "And"})
        await shown.until_text(".words.partial", "And")
        assert "italic" == await shown.page.evaluate("getComputedStyle(document.querySelector('.partial')).fontStyle")
        await api.send({"type": "asr", "turn_id": 2, "ts": 2400, "text": "And when"})
        await shown.until_text(".words.partial", "And when")
        await api.send({"type": "asr", "turn_id": 2, "ts": 2800, "text": "And when is check-in?", "final": True})
        await shown.page.until("document.querySelector('.words.partial') === null")
        assert ["Hello.", "And when is check-in?"] == await order(shown)
        await shown.until_text("[role=status].sr", "caller: And when is check-in?")
        assert [] == shown.page.problems


async def test_a_reply_shows_what_was_heard_so_far_and_is_struck_out_when_it_is_cut(
    serve: Serve, tmp_path: Path
) -> None:
    """While it plays, the rest is grey; after a barge-in it is struck out, without loading anything again."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0)
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.page.evaluate("window.stays = true")
        await api.send({"type": "llm.delta", "turn_id": 1, "ts": 1000, "text": "Check-in is from three, "})
        await shown.until_text(".words.coming", "Check-in is from three, ")
        await api.send({"type": "llm.delta", "turn_id": 1, "ts": 1100, "text": "but leave your bags."})
        await api.send({"type": "tts", "turn_id": 1, "ts": 1500, "heard_text": "Check-in is "})
        await shown.until_text("[data-part=ahead]", "from three, but leave your bags.")
        assert "Check-in is " == await shown.text("[data-part=heard]")
        await api.send({"type": "interrupt", "turn_id": 1, "ts": 2000, "heard_text": "Check-in is from "})
        await shown.until_text("[data-part=unheard]", "three, but leave your bags.")
        assert [["assistant", "Check-in is from ", "three, but leave your bags."]] == await shown.page.evaluate(SAID)
        await shown.page.until(f"({PICTURE} ?? '').endsWith('1 cut')")
        assert await shown.page.evaluate("window.stays")


async def test_nothing_that_is_said_is_taken_for_markup(serve: Serve, tmp_path: Path) -> None:
    """Markup, scripts and directions are shown as the text that they are, and a very long text is folded."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0, name=HOSTILE[0], labels={"x": HOSTILE[1]})
    long_text = "words " * 40_000
    texts = [*HOSTILE, long_text]
    for turn, text in enumerate(texts, 1):
        await api.send(typed(turn, text))
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.page.until(f"document.querySelectorAll('.msg').length === {len(texts)}")
        assert [text.replace("\0", "\ufffd") for text in HOSTILE] == (await order(shown))[:-1]
        assert len((await order(shown))[-1]) < 2000
        await shown.page.click(".more-text")
        await shown.page.until(
            f"document.querySelector('.msg:last-of-type bdi').textContent === {json.dumps(long_text)}"
        )
        assert "● s · voicemem" == await shown.page.evaluate("document.title")
        assert 0 == await shown.page.evaluate("document.querySelectorAll('main img, main script').length")
        forbidden = (
            "(() => { try { document.body.innerHTML = '<p>'; return ''; } catch (error) { return error.name; } })()"
        )
        assert "TypeError" == await shown.page.evaluate(forbidden)


async def test_a_call_that_ends_says_so(serve: Serve, tmp_path: Path) -> None:
    """After the end there is a reason instead of the live mark, nothing to follow and nothing to end."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0, reopen_window=0)
    await api.send(typed(1, "Bye."))
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.until_text(".title .state", "live")
        await shown.page.until("!document.querySelector('.follow').hidden")
        await api.end("s", reason="hangup")
        await shown.until_text(".title .state", "ended: hangup")
        assert await shown.page.evaluate("document.querySelector('.follow').hidden")
        assert "End session" not in await shown.text(".title .acts")


async def test_a_call_that_comes_back_is_live_again(serve: Serve, tmp_path: Path) -> None:
    """A call that was closed as idle and goes on within its window is live again, with what is said then."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=1)
    await api.send(typed(1, "One moment."))
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.until_text(".title .state", "ended: idle")
        await api.send(typed(2, "Here I am."))
        await shown.until_text(".title .state", "live")
        await shown.until_text(".talk-list", "Here I am.")


async def test_erasing_wants_the_id_and_leaves_nothing(serve: Serve, tmp_path: Path) -> None:
    """By keyboard: only the call's id opens the button; then nothing of the call is on the page, nor in its past."""
    app = await serve()
    api = RestClient(app)
    await api.create("call-1", idle_timeout=0)
    await api.send(typed(1, "My number is seven."), session_id="call-1")
    async with call_page(app, tmp_path) as shown:
        await shown.open("call-1", "timeline")
        await shown.open("call-1")
        await shown.until_text(".talk-list", "My number is seven.")
        await shown.page.evaluate("document.querySelector('.title .btn.danger').focus()")
        await shown.page.press("Enter")
        await shown.page.until("document.activeElement?.matches('dialog input')")
        await shown.page.type("call-2")
        assert await shown.page.evaluate("document.querySelector('dialog .danger').disabled")
        await shown.page.evaluate("document.querySelector('dialog input').select()")
        await shown.page.type("call-1")
        await shown.page.press("Enter")
        await shown.until_text(".done", "call-1 was erased.")
        assert "seven" not in await shown.page.evaluate("document.documentElement.outerHTML")
        await shown.page.evaluate("history.back()")
        await shown.until_text("h1", "There is no such call")
        assert "seven" not in await shown.page.evaluate("document.documentElement.outerHTML")
    assert 404 == (await api.get("/v1/sessions/call-1")).status


async def test_a_restart_of_the_service_is_said_and_then_forgotten(tmp_path: Path) -> None:
    """While the service is away the page says so; then it comes back by itself and shows exactly the history."""
    store = f"sqlite:{tmp_path / 'calls.db'}"
    async with AsyncExitStack() as browser:
        async with running_service(store=store) as first:
            address = first.rest_address
            await RestClient(first).create("s", idle_timeout=0)
            await RestClient(first).send(typed(1, "Before."))
            shown = await browser.enter_async_context(call_page(first, tmp_path))
            await shown.open("s")
            await shown.says(await RestClient(first).contents())
        await shown.until_text(".alert:not([hidden])", "Connection lost")
        async with running_service(store=store, rest=address) as second:
            await RestClient(second).send(typed(2, "After."), query="?producer=other")
            await shown.page.until("document.querySelectorAll('.msg').length === 2")
            await shown.says(await RestClient(second).contents())
            await shown.page.until("document.querySelector('.alert').hidden")


@pytest.mark.parametrize("width", WIDTHS)
async def test_who_follows_sees_what_comes(serve: Serve, tmp_path: Path, width: int) -> None:
    """The newest words of a long live call are in view from the start, and stay so, on a phone too."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0)
    await api.send(*(typed(number, f"Number {number}, " + "and so on " * 30) for number in range(1, 41)))
    is_seen = """(() => {
        const last = [...document.querySelectorAll('.talk-list .msg')].at(-1);
        const { top, bottom } = last.getBoundingClientRect();
        const end = document.querySelector('.follow').getBoundingClientRect().top;
        return last.textContent.includes(%s) && top > 0 && bottom <= end;
    })()"""
    async with call_page(app, tmp_path) as shown:
        await shown.page.viewport(width)
        await shown.open("s")
        await shown.page.until(is_seen % "'Number 40,'")
        await api.send(typed(41, "Number 41, the last."))
        await shown.page.until(is_seen % "'Number 41,'")
        assert "following" == await shown.text(".follow .state")
