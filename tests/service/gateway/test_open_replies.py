"""The gateway where calls cross: replies that a killed process left open, and requests at one time."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.callers.gateway import ask, role_and_text, service_with_llm, user_message
from tests.support.callers.rest import RestClient
from tests.support.servers.llm_server import Script
from tests.support.services import Serve
from tests.support.waiting import eventually


async def test_a_reply_under_way_is_not_closed(serve: Serve) -> None:
    """Another call of the same session leaves it as it is."""
    async with service_with_llm(serve, Script(["One. ", "Two."], hold_after=2)) as (api, client, llm):
        stream = await client.chat.completions.create(model="any", messages=user_message("Hi."), stream=True)
        await anext(stream)
        await eventually(["message", "llm.delta"], lambda: kinds(api))
        llm.then(Script(["Yes."], id="other"))
        assert "Yes." == await ask(client, "And now?")
        rows = [row["event"] for row in await api.journal() if row["event"]["type"] == "llm.done"]
        assert ["other"] == [row["item"] for row in rows]
        llm.go_on.set()
        assert "One. Two." == "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def kinds(api: RestClient) -> list[str]:
    return [row["event"]["type"] for row in await api.journal()]


@pytest.mark.parametrize("stream", [True, False])
async def test_equal_words_at_one_time_are_taken_once(serve: Serve, stream: bool) -> None:
    """Four callers who say the same before there is a reply: one message, one turn, four replies."""
    async with service_with_llm(serve, Script(["Yes."], pause_s=0.2)) as (api, client, llm):
        calls = [
            client.chat.completions.with_raw_response.create(model="m", messages=user_message("Hi."), stream=stream)
            for _ in range(4)
        ]
        answers = await asyncio.gather(*calls)
        assert ["1"] * 4 == [answer.headers["Voicemem-Turn-Id"] for answer in answers]
        assert ["message"] == [kind for kind in await kinds(api) if kind == "message"]
        assert [[("user", "Hi.")]] * 4 == [role_and_text(request.body["messages"]) for request in llm.requests]
        await eventually(0, lambda: asyncio.sleep(0, len(api.app.services.gateway.locks)))


async def test_a_reply_is_written_in_few_commits(serve: Serve) -> None:
    """Its words gather between two commits; all of them are on disk, each with its own time, when the answer ends."""
    words = [f"word{number} " for number in range(40)]
    async with service_with_llm(serve, Script(words, pause_s=0.004)) as (api, client, _):
        registry, committed = api.app.services.telemetry.metrics.registry, {"result": "committed"}
        before = registry.get_sample_value("voicemem_commits_total", committed) or 0
        assert "".join(words) == await ask(client, "Hi.")
        commits = (registry.get_sample_value("voicemem_commits_total", committed) or 0) - before
        assert 2 <= commits < len(words) / 2
        deltas = [row["event"] for row in await api.journal() if row["event"]["type"] == "llm.delta"]
        assert words == [delta["text"] for delta in deltas]
        assert deltas[0]["ts"] < deltas[-1]["ts"]
