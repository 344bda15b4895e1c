"""The body for the next LLM call, as the service gives it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import threading
from typing import Any

import pytest

from tests.support.callers.producer import send_over_websocket
from tests.support.callers.rest import RestClient, wait_until_closed
from tests.support.events import delta, done, event, final, interrupt, message, partial
from tests.support.paths import FIXTURES
from tests.support.rows import every_row
from tests.support.services import Serve
from voicemem.config.context import ContextConfig
from voicemem.context.builder import ContextOptions, ContextSelection, select_context
from voicemem.protocol.types import JsonObject

KIND = {"role": "system", "content": "Be kind."}


@pytest.fixture
async def api(serve: Serve) -> RestClient:
    """A caller of an empty service."""
    return RestClient(await serve())


async def said(api: RestClient, **config: Any) -> None:
    """A session with a greeting, a question, and an answer that was cut short."""
    await api.create(**config)
    await api.send(message(0, "Hello."), final(1, "A joke?", ts=1_778_390_400_000, user="ann"))
    await api.send(delta(1, "Why did the scarecrow win?"), done(1), interrupt(1, heard_text="Why did the "))
    await api.send(final(2, "Stop.", ts=1_778_390_401_000, user="ann"))


def contents(body: JsonObject) -> list[Any]:
    return [one["content"] for one in body["messages"]]


@pytest.mark.parametrize(
    ("llm", "document"),
    [({}, "standard"), ({"vendor": "custom", "model": "xxxx"}, "custom")],
    ids=["standard", "custom"],
)
@pytest.mark.parametrize("ended", [False, True], ids=["running", "ended"])
async def test_the_seed_call(serve: Serve, llm: JsonObject, document: str, ended: bool) -> None:
    """The joke-and-story call gives the documented requests, while it runs and after its end."""
    app = await serve()
    events = [json.loads(line) for line in (FIXTURES / "seed_call.jsonl").read_text().splitlines()]
    await send_over_websocket(app, events if ended else events[:-1], session={"llm": llm})
    if ended:
        await wait_until_closed(app)
    assert json.loads((FIXTURES / f"seed_call.{document}.json").read_bytes()) == await RestClient(app).context()


async def test_of_an_empty_session(api: RestClient) -> None:
    """Before the first word there are the system messages alone, and nothing about a newest message."""
    await api.create(system_messages=[KIND], llm={"vendor": "custom", "model": "m"})
    assert {"messages": [KIND], "interruptable": True, "model": "m"} == await api.context()


async def test_what_is_in_progress_is_not_in_it(api: RestClient) -> None:
    """An LLM gets finished messages only."""
    await api.create()
    await api.send(final(1, "Hi."), delta(1, "Good "), partial(2, "And"))
    assert ["Hi."] == contents(await api.context())


async def test_all_fields_of_the_messages(api: RestClient) -> None:
    """A reader may ask for turn, time and metadata of each message; tools and instructions have none."""
    await said(api, system_messages=[KIND])
    plain, full = [await api.context(f"?fields={word}") for word in ("false", "true")]
    assert plain.keys() == full.keys()
    assert [{name: one[name] for name in ("role", "content")} for one in full["messages"]] == plain["messages"]
    assert full["messages"][0] == KIND
    assert [(one["turn_id"], one["timestamp"]) for one in full["messages"] if one["role"] == "user"] == [
        (1, 1_778_390_400_000),
        (2, 1_778_390_401_000),
    ]
    assert full["messages"][-1]["metadata"]["user"] == "ann"


async def test_it_shows_what_was_acknowledged(api: RestClient) -> None:
    """The words that the user has just said are in the next request."""
    await api.create()
    for turn in range(1, 20):
        await api.send(final(turn, f"{turn}"))
        assert f"{turn}" == contents(await api.context())[-1]


async def test_the_vendor_alone_decides_what_is_passed(api: RestClient) -> None:
    """Custom gets every field of every message, any other vendor role and content of those that say something."""
    await said(api, llm={"vendor": "openai"})
    await api.send(delta(2, "Well."), done(2), interrupt(2, heard_text=""))
    assert all({"role", "content"} == set(one) for one in (await api.context())["messages"])
    assert 4 == len((await api.context())["messages"])
    await api.patch("/v1/sessions/s", {"llm": {"vendor": "custom"}})
    assert await api.contents() == (await api.context())["messages"]


async def test_model_and_params(api: RestClient) -> None:
    """Params stand beside what is made here and never replace it; the session's model wins over theirs."""
    params = {"model": "theirs", "messages": [], "temperature": 0.5}
    await api.create(llm={"params": params})
    assert {"messages": [], "model": "theirs", "temperature": 0.5} == await api.context()
    await api.patch("/v1/sessions/s", {"llm": {"model": "ours"}})
    assert {"messages": [], "model": "ours", "temperature": 0.5} == await api.context()


async def test_secrets_are_not_in_it(api: RestClient) -> None:
    """The body holds nothing of how the LLM is reached."""
    await said(api, llm={"api_key": "sk-hush", "url": "https://llm.example/hush"}, webhook={"secret": "hush"})
    for query in ("", "?style=anthropic", "?style=gemini"):
        assert b"hush" not in (await api.get(f"/v1/sessions/s/context{query}")).body


async def test_a_patch_is_in_the_next_request(api: RestClient) -> None:
    """System messages, interruptable and the length of the history can be changed during the call."""
    await said(api, llm={"vendor": "custom"})
    change = {"interruptable": False, "system_messages": [KIND], "llm": {"max_history": 1}}
    await api.patch("/v1/sessions/s", change)
    body = await api.context()
    assert ["Be kind.", "Stop."] == contents(body)
    assert body["interruptable"] is False


async def test_enrich_in_its_order(api: RestClient) -> None:
    """Enrichers write into what the user said, one after the other, and nowhere else."""
    await said(api)
    moment = "[2026-05-10T05:20:00.000Z] "
    assert f"{moment}A joke?" == contents(await api.context("?enrich=timestamps"))[1]
    assert f"ann: {moment}A joke?" == contents(await api.context("?enrich=timestamps,users"))[1]
    assert f"{moment}ann: A joke?" == contents(await api.context("?enrich=users,timestamps"))[1]
    body = contents(await api.context("?enrich=originals"))
    assert "Why did the " == body[2]
    assert "scarecrow win?" in body[3]
    assert body[3].endswith("Stop.")


async def test_enrichers_leave_the_memory_as_it_is(api: RestClient) -> None:
    """What an enricher writes is in the request, never in the history."""
    await said(api)
    before = await api.contents()
    await api.context("?enrich=timestamps,users,originals")
    assert before == await api.contents()


async def test_style_anthropic(api: RestClient) -> None:
    """Anthropic gets the system apart, max_tokens always, and sides that take turns."""
    await said(api, system_messages=[KIND], llm={"model": "claude"})
    body = await api.context("?style=anthropic")
    assert ("Be kind.", "claude") == (body["system"], body["model"])
    assert body["max_tokens"] >= 1
    assert ["(call started)", "Hello.", "A joke?", "Why did the ", "Stop."] == contents(body)


async def test_style_gemini(api: RestClient) -> None:
    """Gemini gets contents with parts, and calls the assistant model."""
    await said(api, llm={"params": {"temperature": 0.5}})
    body = await api.context("?style=gemini")
    assert ["user", "model", "user", "model", "user"] == [one["role"] for one in body["contents"]]
    assert [{"text": "Stop."}] == body["contents"][-1]["parts"]
    assert {"temperature": 0.5} == body["generationConfig"]


async def test_the_sessions_style_holds_unless_the_query_names_one(api: RestClient) -> None:
    """The query is for one request; the session's own style stays."""
    await said(api, llm={"style": "gemini"})
    assert "contents" in await api.context()
    assert "messages" in await api.context("?style=openai")
    assert "contents" in await api.context()


async def test_alternate(api: RestClient) -> None:
    """With alternate=true the sides take turns in the default style, too."""
    await said(api)
    await api.send(message(3, "Still there?", source="silence"))
    plain, alternating = contents(await api.context("?alternate=false")), contents(await api.context("?alternate=true"))
    assert ["(call started)", *plain, "(silence)"] == alternating


async def test_tools(api: RestClient) -> None:
    """With tools=true each result follows its call, and a call without a result is left out."""
    await said(api)
    await api.send(event("tool.call", 2, call_id="c1", name="look", arguments={"q": 1}))
    await api.send(event("tool.result", 2, call_id="c1", result="found"))
    await api.send(event("tool.call", 2, call_id="c2", name="wait", arguments={}))
    assert await api.context() == await api.context("?tools=false")
    call, result = (await api.context("?tools=true"))["messages"][-2:]
    assert ["c1"] == [one["id"] for one in call["tool_calls"]]
    assert ("tool", "c1", "found") == (result["role"], result["tool_call_id"], result["content"])


@pytest.mark.parametrize(("number", "count"), [(1, 1), (3, 3), (4, 4), (1024, 4)])
async def test_max_history_bounds_the_messages(api: RestClient, number: int, count: int) -> None:
    """The newest messages are kept, and system messages do not count."""
    await said(api, system_messages=[KIND], llm={"max_history": 2})
    assert ["Be kind.", "Why did the ", "Stop."] == contents(await api.context())
    body = contents(await api.context(f"?max_history={number}"))
    assert (count + 1, "Be kind.", "Stop.") == (len(body), body[0], body[-1])


async def test_without_a_wish_32_messages_are_kept(api: RestClient) -> None:
    """A long call does not grow the request without bound."""
    await api.create()
    await api.send(*(final(turn, f"{turn}") for turn in range(1, 41)))
    assert [f"{turn}" for turn in range(9, 41)] == contents(await api.context())


BAD = ["enrich=magic", "enrich=users,magic", "enrich=Users", "enrich=users%20", "style=claude", "style="]
BAD += ["alternate=maybe", "alternate=", "tools=2", "max_history=0", "max_history=1025", "max_history=-1"]
BAD += ["max_history=x", "max_history=", "limit=3", "open=true", "enrich=users&enrich=users"]


@every_row("query", BAD)
async def test_bad_wishes_are_refused(in_session: RestClient, query: str) -> None:
    """A wish that is unknown, doubled or cannot be met is never passed over."""
    assert (400, "invalid_query") == (await in_session.get(f"/v1/sessions/s/context?{query}")).problem


async def test_an_unknown_enricher_is_refused_without_repeating_it(api: RestClient) -> None:
    """The sentence names the enrichers that there are, never what was sent."""
    await api.create()
    answered = await api.get("/v1/sessions/s/context?enrich=magic")
    assert (400, "invalid_query") == answered.problem
    assert all(name in answered.json["detail"] for name in ("timestamps", "users", "originals"))
    assert "magic" not in answered.json["detail"]


async def test_the_newest_thousand_tool_calls_are_shown(api: RestClient) -> None:
    """With their results, in their order; in every style."""
    await api.create()
    await api.send(final(1, "Find it."))
    for first in range(0, 1_200, 400):
        calls = [
            {"type": "tool.call", "turn_id": 1, "call_id": f"c{n}", "name": "f", "arguments": {}}
            for n in range(first, first + 400)
        ]
        results = [{"type": "tool.result", "call_id": call["call_id"], "result": "ok"} for call in calls]
        await api.send(*(event for both in zip(calls, results, strict=True) for event in both))
    expected = [f"c{n}" for n in range(200, 1_200)]
    body = await api.context("?tools=true")
    assert expected == [one["tool_call_id"] for one in body["messages"] if one["role"] == "tool"]
    for style in ("anthropic", "gemini"):
        assert 1_000 == json.dumps(await api.context(f"?tools=true&style={style}")).count('"ok"')


async def test_a_context_of_very_many_messages_is_made_beside_others(serve: Serve) -> None:
    """It is the same as of few, and made off the event loop."""
    app = await serve()
    api = RestClient(app)
    await api.create()
    for first in range(0, 26_000, 500):
        await api.send(*(final(turn, "a") for turn in range(first, first + 500)))
    services, threads = app.services, list[int]()
    stream = await services.store.journal.get_session("default", "s")

    def make(selection: ContextSelection) -> int:
        threads.append(threading.get_ident())
        return len(selection.messages)

    for memory, count in ((ContextConfig(policy="full"), 26_000), (ContextConfig(policy="window", max_tokens=10), 10)):
        options = ContextOptions(memory=memory)
        assert count == await select_context(services.read_models, services.policies, stream, options, make)
    assert [False, True] == [thread == threading.get_ident() for thread in threads]
    assert 26_000 == len((await api.context("?policy=full"))["messages"])
