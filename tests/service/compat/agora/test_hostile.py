"""Agora's paths when the store fails, or a body makes no sense."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import random
from typing import Any

import pytest

from tests.support.callers.agora_rest import AGENTS, BASE, JOIN, agora_problem, joined
from tests.support.callers.rest import RestClient
from tests.support.services import Serve
from tests.support.stores.failing import store_that_cannot_commit
from voicemem.app import App
from voicemem.protocol.types import JsonObject


async def test_a_store_that_cannot_be_written(serve: Serve, tmp_path: Any) -> None:
    """While nothing can be committed, nothing is acknowledged: 503, with Agora's reason."""
    app: App = await serve(store=f"sqlite:{tmp_path / 'calls.db'}")
    api = RestClient(app)
    agent = await joined(api)
    async with store_that_cannot_commit(app):
        assert (503, "ServiceUnavailable") == agora_problem(await api.post(f"{AGENTS}/{agent}/speak", {"text": "t"}))
    assert [] == await api.journal(agent)


JUNK: list[Any] = [None, True, -1, 1.5, 2**53 + 1, 2**70, "", "\ud800", "\x00", "x" * 300_000, [], {}, [{}], {"": None}]
CALLS: dict[str, JsonObject] = {
    "join": JOIN,
    "update": {"properties": {"llm": {"system_messages": [{"role": "system", "content": "x"}], "params": {"a": {}}}}},
    "speak": {"text": "t", "priority": "APPEND", "interruptable": True},
    "think": {"text": "t", "on_listening_action": "inject", "metadata": {"source": "b"}, "interruptable": False},
}


def spoiled(value: Any, chance: random.Random) -> Any:
    """A value in which something may be missing, too much, or of another kind."""
    if chance.random() < 0.15:
        return chance.choice(JUNK)
    if isinstance(value, dict):
        kept = {key: spoiled(item, chance) for key, item in value.items() if chance.random() > 0.1}
        return kept | ({chance.choice(["original", "user", ""]): chance.choice(JUNK)} if chance.random() < 0.2 else {})
    return [spoiled(item, chance) for item in value] if isinstance(value, list) else value


@pytest.mark.parametrize("call", CALLS)
async def test_no_body_is_a_fault_of_the_server(serve: Serve, call: str) -> None:
    """Whatever is missing or wrong in a body is told as such, and the agent can be read afterwards."""
    api = RestClient(await serve())
    chance = random.Random(call)
    agent = await joined(api, {"name": "another", "properties": {"channel": "c"}})
    path = f"{BASE}/join" if call == "join" else f"{AGENTS}/{agent}/{call}"
    statuses = set()
    for _ in range(120):
        answered = await api.post(path, json.dumps(spoiled(CALLS[call], chance)).encode())
        statuses.add(answered.status if answered.status == 200 else agora_problem(answered)[0])
    assert {200, 400} <= statuses <= {200, 400, 409}
    for read in ("", "/history", "/turns"):
        assert 200 == (await api.get(f"{AGENTS}/{agent}{read}")).status
