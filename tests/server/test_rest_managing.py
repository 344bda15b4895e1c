"""Managing a memory over REST: forget, add, count, copy, carry over."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest
from callers import Caller, Fields
from calls import delta, done, final
from services import Serve


@pytest.fixture
async def api(serve: Serve) -> Caller:
    return Caller(await serve())


def dialogue(turns: int, first: int = 1) -> list[Fields]:
    """A user's question and the agent's answer in each turn."""
    return [
        event
        for turn in range(first, first + turns)
        for event in (final(turn, f"Q{turn}", turn), delta(turn, f"A{turn}", turn), done(turn, turn))
    ]


def said(body: Fields) -> list[str]:
    return [message["content"] for message in body["messages"]]


async def test_all_works(api: Caller) -> None:
    """Smoke."""
    await api.create(user_id="ann")
    await api.send(*dialogue(4))
    answered = await api.post("/v1/sessions/s/forget", {"keep_last": 3})
    assert (200, {"position": 13, "forgotten": 5, "remembered": 3}) == (answered.status, answered.json)
    assert ["A3", "Q4", "A4"] == said(await api.context())
    added = await api.post("/v1/sessions/s/messages", {"role": "user", "content": "Typed"})
    assert {"position": 14, "turn_id": 5} == added.json
    checkpoint = await api.get("/v1/sessions/s/checkpoint")
    restored = await api.post("/v1/sessions/restore", {"session_id": "r", "checkpoint": checkpoint.json})
    assert 201 == restored.status, restored.body
    assert await api.contents() == await api.contents("r")
    assert await api.context() == await api.context(session_id="r")
    forked = await api.post("/v1/sessions/s/fork", {"at_turn": 3, "session_id": "f"})
    assert 201 == forked.status, forked.body
    assert (await api.contents())[:6] == await api.contents("f")
    assert ["A3"] == said(await api.context(session_id="f"))
    stats = await api.get("/v1/sessions/s/stats")
    assert 5 == stats.json["messages"]["user"]
    assert 200 == (await api.get("/v1/users/ann/sessions")).status
