"""Contexts of an earlier moment: what the LLM was given then."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.callers.rest import RestClient, context_texts
from tests.support.events import delta, dialogue, done, event, final, message
from voicemem.app import App
from voicemem.protocol.types import JsonObject


@pytest.fixture
async def api(app: App) -> RestClient:
    caller = RestClient(app)
    await caller.create()
    return caller


async def texts(api: RestClient, query: str) -> list[str]:
    answered = await api.get(f"/v1/sessions/s/context?{query}")
    assert 200 == answered.status, answered.body
    return context_texts(answered.json)


async def test_each_position_has_the_context_of_then(api: RestClient) -> None:
    """What was asked for after each event is found again, to the last byte; at the end it is the one of now."""
    asked: dict[int, JsonObject] = {}
    for one in [message(0, "Hello."), *dialogue(4)]:
        await api.send(one)
        asked[(await api.session())["position"]] = await api.context()
    for position, body in asked.items():
        assert body == (await api.get(f"/v1/sessions/s/context?at={position}")).json
    assert [] == await texts(api, "at=0")


async def test_a_turn_means_its_first_request(api: RestClient) -> None:
    """It has what was said up to there, and nothing of the reply; a tool call is made by the first request."""
    await api.send(message(0, "Hello."), final(1, "Weather?"))
    await api.send(event("tool.call", 1, 1, call_id="a", name="weather", arguments={}))
    await api.send(event("tool.result", 1, 2, call_id="a", result="sunny"), delta(1, "Sunny."), done(1))
    await api.send(final(2, "And tomorrow?"), delta(2, "Rain."), done(2), final(3, "Oh."))
    assert [] == await texts(api, "at_turn=0")
    assert ["Hello.", "Weather?"] == await texts(api, "at_turn=1&tools=true")
    assert ["Hello.", "Weather?", "Sunny.", "And tomorrow?"] == await texts(api, "at_turn=2")
    assert ["And tomorrow?", "Rain.", "Oh."] == (await texts(api, "at_turn=3"))[-3:]


async def test_a_turn_without_a_reply_ends_where_the_next_begins(api: RestClient) -> None:
    """Nothing was made in it, so all of it counts."""
    await api.send(final(1, "One."), final(2, "Two."), delta(2, "Yes."), done(2))
    assert ["One."] == await texts(api, "at_turn=1")


async def test_it_writes_nothing(api: RestClient) -> None:
    """It peeks, also where that was not asked for, and does not show what was put together later."""
    await api.create("one", user_id="ann")
    await api.post("/v1/sessions/one/messages", [{"role": "user", "content": "I like tea."}])
    await api.end("one")
    await api.create("now", user_id="ann", memory_from={"sessions": 5})
    await api.send(*dialogue(1), session_id="now")
    before = (await api.session("now"))["position"]
    body = (await api.get(f"/v1/sessions/now/context?at={before}&usage=true")).json
    assert None is body["carried"]
    assert before == (await api.session("now"))["position"]


async def test_the_usage_is_that_of_then(api: RestClient) -> None:
    """It counts what there was, under any policy."""
    await api.send(*dialogue(3))
    body = (await api.get("/v1/sessions/s/context?at_turn=2&usage=true&policy=recent&max_messages=2")).json
    assert ["A1", "Q2"] == context_texts(body)
    assert [{"turn_id": 1, "role": "user"}] == [
        {name: one[name] for name in ("turn_id", "role")} for one in body["left_out"]
    ]


async def test_what_was_forgotten_later_was_there(api: RestClient) -> None:
    """A later change of the memory does not change what the LLM was given."""
    await api.send(*dialogue(2))
    position = (await api.session())["position"]
    await api.post("/v1/sessions/s/forget", {"everything": True})
    assert [[], ["Q1", "A1", "Q2", "A2"]] == [await texts(api, "peek=true"), await texts(api, f"at={position}")]


@pytest.mark.parametrize(
    ("query", "problem"),
    [
        ("at=99", (400, "invalid_query")), ("at=1&at_turn=1", (400, "invalid_query")),
        ("at=-1", (400, "invalid_query")),
        ("at_turn=9", (404, "unknown_turn")),
    ],
)  # fmt: skip
async def test_a_moment_that_has_not_been(api: RestClient, query: str, problem: tuple[int, str]) -> None:
    """It is refused."""
    await api.send(*dialogue(1))
    assert problem == (await api.get(f"/v1/sessions/s/context?{query}")).problem


async def test_a_long_call_is_folded_off_the_loop(app: App, api: RestClient) -> None:
    """A large journal gives the same, from a memory that is not kept."""
    for first in range(1, 400, 100):
        await api.send(*(final(turn, "word " * 60, turn) for turn in range(first, first + 100)))
    assert 400 == len(await api.contents())
    key = (await app.services.store.journal.get_session("default", "s")).key
    kept = app.services.read_models.cached[key]
    assert 32 == len(await texts(api, "at=200"))
    assert app.services.read_models.cached[key] is kept
