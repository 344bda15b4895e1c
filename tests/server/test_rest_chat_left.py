"""The gateway where calls cross: replies that a killed process left open, and requests at one time."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from pathlib import Path

import pytest
from callers import Caller, until
from gateways import client_at, gateway, said, spoken, user
from llm_server import Script, llm_server
from processes import Process, running_process
from services import Serve


async def generated(process: Process) -> list[str]:
    rows = await process.api.journal()
    return [row["event"]["text"] for row in rows if row["event"]["type"] == "llm.delta"]


async def test_a_reply_that_a_killed_process_left_is_closed(tmp_path: Path) -> None:
    """By the next call of the gateway, as it was generated; an open reply of the engine's own stays open."""
    store = tmp_path / "calls.db"
    async with llm_server(Script(["One. ", "Two. ", "Three."], hold_after=3)) as llm:
        async with running_process(store, "--llm-url", llm.url) as process:
            api = process.api
            await api.create()
            begun = {"type": "llm.delta", "turn_id": 0, "item": "own", "text": "Welcome to "}
            await api.post("/v1/sessions/s/events", [begun])
            async with client_at(process.rest) as client:
                stream = await client.chat.completions.create(model="any", messages=user("Hi."), stream=True)
                await anext(stream)
                await until(["Welcome to ", "One. ", "Two. "], lambda: generated(process))
                await process.kill()
                await stream.close()
        llm.then(Script(["Yes?"]))
        async with running_process(store, "--llm-url", llm.url) as process:
            api = process.api
            async with client_at(process.rest) as client:
                assert "Yes?" == await said(client, "Are you there?")
            heard = [("user", "Hi."), ("assistant", "One. Two. "), ("user", "Are you there?")]
            assert heard == spoken(llm.last["messages"])
            contents = await api.contents()
            assert [*heard, ("assistant", "Yes?")] == spoken(contents)
            assert {"source": "llm"} == contents[1]["metadata"]
            rows = [row for row in await api.journal() if row["event"]["type"] in ("llm.delta", "llm.done")]
            assert rows[3]["event"]["ts"] == rows[2]["event"]["ts"]
            assert {"gateway"} == {row["producer"] for row in rows[3:]}
            assert "own" not in [row["event"]["item"] for row in rows[1:]]


async def test_a_reply_under_way_is_not_closed(serve: Serve) -> None:
    """Another call of the same session leaves it as it is."""
    async with gateway(serve, Script(["One. ", "Two."], hold_after=2)) as (api, client, llm):
        stream = await client.chat.completions.create(model="any", messages=user("Hi."), stream=True)
        await anext(stream)
        await until(["message", "llm.delta"], lambda: kinds(api))
        llm.then(Script(["Yes."], id="other"))
        assert "Yes." == await said(client, "And now?")
        rows = [row["event"] for row in await api.journal() if row["event"]["type"] == "llm.done"]
        assert ["other"] == [row["item"] for row in rows]
        llm.go_on.set()
        assert "One. Two." == "".join([chunk.choices[0].delta.content or "" async for chunk in stream])


async def kinds(api: Caller) -> list[str]:
    return [row["event"]["type"] for row in await api.journal()]


@pytest.mark.parametrize("stream", [True, False])
async def test_equal_words_at_one_time_are_taken_once(serve: Serve, stream: bool) -> None:
    """Four callers who say the same before there is a reply: one message, one turn, four replies."""
    async with gateway(serve, Script(["Yes."], pause_s=0.2)) as (api, client, llm):
        calls = [
            client.chat.completions.with_raw_response.create(model="m", messages=user("Hi."), stream=stream)
            for _ in range(4)
        ]
        answers = await asyncio.gather(*calls)
        assert ["1"] * 4 == [answer.headers["Voicemem-Turn-Id"] for answer in answers]
        assert ["message"] == [kind for kind in await kinds(api) if kind == "message"]
        assert [[("user", "Hi.")]] * 4 == [spoken(request.body["messages"]) for request in llm.requests]
        await until(0, lambda: asyncio.sleep(0, len(api.app.services.gateway.locks)))
