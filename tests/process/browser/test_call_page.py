"""The page of one call: what was said and heard, what the next LLM call gets, when the parts of each turn were."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from websockets.asyncio.client import connect

from tests.support.callers.call_page import RAIL, call_page
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.dialects import RECORDINGS, Recording
from tests.support.paths import ROOT
from tests.support.services import Serve
from tests.support.waiting import all_connections_handled
from voicemem.app import App
from voicemem.protocol.types import JsonObject

CALLS = ROOT / "fixtures" / "voicemem"
NAMES = sorted(path.stem for path in CALLS.glob("*.jsonl"))
pytestmark = pytest.mark.needs("chromium")


def recorded(name: str) -> list[JsonObject]:
    """The events of a recorded call."""
    return [json.loads(line) for line in (CALLS / f"{name}.jsonl").read_text("utf-8").splitlines()]


def remembered(path: Path) -> list[JsonObject]:
    contents: list[JsonObject] = json.loads(path.read_text("utf-8"))["contents"]
    return contents


async def replay(app: App, name: str) -> None:
    api = RestClient(app)
    await api.create(name, idle_timeout=0)
    await api.send(*recorded(name), session_id=name)


async def replay_frames(app: App, recording: Recording, session_id: str) -> None:
    """Send another stack's call to its end."""
    async with connect(f"ws://{app.ingest_address}/v1/ingest/{recording.dialect}?session_id={session_id}") as socket:
        for envelope in recording.envelopes():
            await socket.send(json.dumps(envelope))
    await all_connections_handled()
    end = {"type": "session.end", "ts": recording.hang_up()}
    await RestClient(app).send(end, session_id=session_id, query="?producer=caller")
    await wait_until_closed(app, session_id)


async def test_recorded_calls_are_shown_as_their_memory_is(serve: Serve, tmp_path: Path) -> None:
    """Of every recorded call the text is the memory's, and what is struck out is what was generated beyond it."""
    app = await serve()
    async with call_page(app, tmp_path) as shown:
        for name in NAMES:
            await replay(app, name)
            await shown.open(name)
            await shown.says(remembered(CALLS / f"{name}.contents.json"))
        assert [] == shown.page.problems


async def test_calls_of_other_stacks_are_shown_as_their_memory_is(serve: Serve, tmp_path: Path) -> None:
    """The same for calls that were recorded as other stacks' frames."""
    app = await serve()
    async with call_page(app, tmp_path) as shown:
        for recording in RECORDINGS:
            session_id = str(recording).replace("/", ".")
            await replay_frames(app, recording, session_id)
            await shown.open(session_id)
            await shown.says(recording.document("contents")["contents"])
        assert [] == shown.page.problems


async def test_a_cut_says_when_why_and_how_it_is_known(serve: Serve, tmp_path: Path) -> None:
    """Beside the stroke stands how long the reply played, below it evidence and cause; a reader is told both ends."""
    app = await serve()
    await replay(app, "barge_in_on_greeting")
    async with call_page(app, tmp_path) as shown:
        await shown.open("barge_in_on_greeting")
        await shown.until_text(".note:last-of-type", "heard up to here")
        reply = ".msg.a:first-child"
        assert "cut at 1.70 s (the caller spoke)" == await shown.text(f"{reply} .cutline")
        assert "heard up to here by word times or a count" in await shown.text(f"{reply} .said")
        deleted = await shown.text(f"{reply} del")
        assert deleted.startswith("Not heard: your order in thirty minutes")
        assert " End of what was not heard." == await shown.text(f"{reply} del + .sr")


async def test_a_false_alarm_is_noted_and_strikes_nothing_out(serve: Serve, tmp_path: Path) -> None:
    """A reply that went on is shown whole, with a note that something did not interrupt it."""
    app = await serve()
    await RestClient(app).create("s", idle_timeout=0)
    await RestClient(app).send(
        {"type": "llm.done", "turn_id": 1, "ts": 1000, "text": "Shall I change it?"},
        {"type": "interrupt", "turn_id": 1, "ts": 1500, "heard_text": "Shall I "},
        {"type": "resume", "turn_id": 1, "ts": 1900},
        {"type": "tts", "turn_id": 1, "ts": 3000, "done": True},
    )
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.until_text(".msg.a .said", "a false alarm: the reply continued")
        assert "Shall I change it?" == await shown.text("[data-part=heard]")
        assert await shown.text("del") is None
        assert await shown.text(".cutline") is None


async def policy_shown(shown: Any, policy: str) -> tuple[list[list[str]], Counter[str]]:
    """The panel's messages under a policy, and how many messages have each look beside them."""
    await shown.choose(".choose label:last-child select", policy)
    await shown.page.until(f"new URLSearchParams(location.search).get('policy') === {json.dumps(policy)}")
    await shown.page.until(
        "document.querySelector('.panel').dataset.shown === new URLSearchParams(location.search).get('policy')"
    )
    messages = await shown.page.evaluate(
        "[...document.querySelectorAll('.ctx li')].map((row) => [row.dataset.role, row.lastChild.textContent])"
    )
    return messages, Counter(await shown.page.evaluate(RAIL))


async def test_the_choice_of_a_policy_shows_the_context_of_that_policy(serve: Serve, tmp_path: Path) -> None:
    """Each policy shows the messages, tokens and reasons of the context, and marks what is left out, and only that."""
    app = await serve()
    api = RestClient(app)
    await replay(app, "two_users")
    await replay(app, "silence_reminder")
    async with call_page(app, tmp_path) as shown:
        for name in ("two_users", "silence_reminder"):
            await shown.open(name)
            for policy in ("full", "recent", "window", "summary", "priority"):
                context = await api.context(f"?policy={policy}&usage=true&peek=true&style=openai", name)
                messages, looks = await policy_shown(shown, policy)
                assert [[one["role"], one["content"]] for one in context["messages"]] == messages
                left_out = len(context["left_out"])
                assert left_out == sum(count for look, count in looks.items() if look != "in"), (policy, looks)
                assert f"{context['tokens']} tokens" == await shown.text(".pairs dd")


async def test_a_small_window_marks_exactly_what_is_left_out(serve: Serve, tmp_path: Path) -> None:
    """Forgotten messages and those beyond the budget have their own looks, at their own places."""
    app = await serve()
    api = RestClient(app)
    await api.create("s", idle_timeout=0, memory={"policy": "recent", "max_messages": 2})
    for turn in range(1, 5):
        await api.send(
            {
                "type": "message",
                "turn_id": turn,
                "ts": turn * 1000,
                "role": "user",
                "source": "message",
                "text": f"Number {turn}",
            }
        )
    assert 200 == (await api.post("/v1/sessions/s/forget", {"through_turn": 1})).status
    async with call_page(app, tmp_path) as shown:
        await shown.open("s")
        await shown.page.until(f"{RAIL}.join() === 'gone,out,in,in'")
        await shown.until_text(".divide", "forgotten up to here")
        assert "left out: over the policy’s message limit" == await shown.text(".msg:nth-of-type(3) .rail .sr")


async def test_the_request_of_an_earlier_turn_can_be_seen(serve: Serve, tmp_path: Path) -> None:
    """What the LLM got in a turn is the context of that moment; what came later is marked as such."""
    app = await serve()
    await replay(app, "barge_in_on_greeting")
    async with call_page(app, tmp_path) as shown:
        await shown.open("barge_in_on_greeting")
        await shown.page.until("document.querySelectorAll('.choose select')[0].options.length === 4")
        await shown.choose(".choose label:first-child select", "2")
        context = await RestClient(app).context("?at_turn=2&style=openai", "barge_in_on_greeting")
        assert 2 == len(context["messages"])
        await shown.page.until(f"document.querySelectorAll('.ctx li').length === {len(context['messages'])}")
        await shown.page.until(f"{RAIL}.join() === 'in,in,open,open,open'")
        assert "after the chosen turn" == await shown.text(".msg:nth-of-type(3) .rail .sr")


@pytest.mark.parametrize("style", ["openai", "anthropic", "gemini"])
async def test_the_next_request_is_there_as_json(serve: Serve, tmp_path: Path, style: str) -> None:
    """The body in the style of each vendor can be read and copied; Escape closes it and gives the focus back."""
    app = await serve()
    await replay(app, "two_users")
    async with call_page(app, tmp_path) as shown:
        await shown.open("two_users")
        name = {"openai": "OpenAI", "anthropic": "Anthropic", "gemini": "Gemini"}[style]
        await shown.until_text(".as-json", name)
        place = ["openai", "anthropic", "gemini"].index(style) + 2
        await shown.page.evaluate(f"document.querySelector('.as-json :nth-child({place})').focus()")
        await shown.page.press("Enter")
        await shown.page.until("document.querySelector('dialog.json pre')?.textContent.startsWith('{')")
        body = json.loads(await shown.text("dialog.json pre"))
        assert body == await RestClient(app).context(f"?style={style}&peek=true", "two_users")
        await shown.page.press("Escape")
        await shown.page.until("document.querySelector('dialog') === null")
        assert name == await shown.page.evaluate("document.activeElement.textContent")


async def test_looking_leaves_no_trace(serve: Serve, tmp_path: Path) -> None:
    """After a look at every tab, the journals of a call and of the one that carries it over are as they were."""
    app = await serve()
    api = RestClient(app)
    await api.create("first", idle_timeout=0, user_id="ann")
    await api.send(
        {"type": "message", "turn_id": 1, "ts": 1000, "role": "user", "source": "message", "text": "Hello."},
        session_id="first",
    )
    await api.end("first")
    await api.create("s", idle_timeout=0, user_id="ann", memory_from={"sessions": 1, "what": "messages"})
    await api.send({"type": "message", "turn_id": 1, "ts": 2000, "role": "user", "source": "message", "text": "Again."})
    before = [(await api.session(name))["position"] for name in ("first", "s")]
    async with call_page(app, tmp_path) as shown:
        for tab in ("", "timeline", "memory", "deliveries", "journal", "settings"):
            await shown.open("s", tab)
        await shown.open("s")
        await shown.until_text(".pairs", "messages")
    assert before == [(await api.session(name))["position"] for name in ("first", "s")]


async def test_the_figures_of_the_timeline_are_also_in_its_table(serve: Serve, tmp_path: Path) -> None:
    """Every bar has its figure in the table, and a slow turn says so in a word."""
    app = await serve()
    await RestClient(app).create("s", idle_timeout=0)
    await RestClient(app).send(
        {"type": "asr", "turn_id": 1, "ts": 1000, "text": "Which"},
        {"type": "asr", "turn_id": 1, "ts": 2100, "text": "Which rooms?", "final": True},
        {"type": "metric", "turn_id": 1, "ts": 2300, "name": "asr_ttlw", "latency_ms": 200},
        {"type": "tool.call", "turn_id": 1, "ts": 2310, "call_id": "c", "name": "find", "arguments": {}},
        {"type": "tool.result", "turn_id": 1, "ts": 3150, "call_id": "c", "result": 3},
        {"type": "metric", "turn_id": 1, "ts": 3500, "name": "llm_ttft", "latency_ms": 350},
        {"type": "metric", "turn_id": 1, "ts": 3500, "name": "llm_ttfs", "latency_ms": 500},
        {"type": "llm.done", "turn_id": 1, "ts": 3500, "text": "Three rooms."},
        {"type": "metric", "turn_id": 1, "ts": 3650, "name": "tts_ttfb", "latency_ms": 150},
        {"type": "metric", "turn_id": 1, "ts": 3650, "name": "e2e_latency", "latency_ms": 1550},
        {"type": "tts", "turn_id": 1, "ts": 4650, "done": True},
    )
    async with call_page(app, tmp_path) as shown:
        await shown.open("s", "timeline")
        await shown.until_text("tbody", "1.55 s, slow")
        bars = await shown.page.evaluate(
            "[...document.querySelectorAll('.turns rect title')].map((one) => one.textContent)"
        )
        cells = await shown.page.evaluate("[...document.querySelectorAll('tbody td')].map((one) => one.textContent)")
        assert 6 == len(bars)
        assert "350 ms" in cells  # of the first token, not with what came after it
        assert [] == [bar for bar in bars if not any(bar.endswith(f" {cell}") for cell in cells)]
        assert "find 840 ms" in await shown.text(".turns .below")


@pytest.mark.parametrize("scale", [0.001, 1, 1_000_000_000])
async def test_any_clock_can_be_drawn(serve: Serve, tmp_path: Path, scale: float) -> None:
    """Seconds as milliseconds, nanoseconds, and times that run backwards break neither timeline."""
    app = await serve()
    await RestClient(app).create("s", idle_timeout=0)
    times = [int(ts * scale) for ts in (5_000_000, 4_000_000, 9_000_000, 1_000_000)]
    await RestClient(app).send(
        {"type": "asr", "turn_id": 1, "ts": times[0], "text": "Hello?", "final": True},
        {"type": "llm.done", "turn_id": 1, "ts": times[1], "text": "Yes, what is it?"},
        {"type": "interrupt", "turn_id": 1, "ts": times[2], "heard_text": "Yes, "},
        {"type": "asr", "turn_id": 2, "ts": times[3], "text": "Nothing.", "final": True},
    )
    async with call_page(app, tmp_path) as shown:
        for tab in ("", "timeline"):
            await shown.open("s", tab)
            await shown.page.until("document.querySelectorAll('.call-timeline rect').length > 2")
            assert "NaN" not in await shown.page.evaluate("document.body.innerHTML")
        assert [] == shown.page.problems
