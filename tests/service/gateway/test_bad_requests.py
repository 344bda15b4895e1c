"""Requests that no agent should send, and LLMs that name things badly: each has a clear answer and a bounded cost."""

from __future__ import annotations

import asyncio
import random
import time
from typing import Any

import pytest
from openai import APIStatusError

from tests.support.callers.gateway import ask, ask_and_collect, openai_client, role_and_text, service_with_llm
from tests.support.random_calls.gateway import ASSISTANT, USER, calls, result, says
from tests.support.rows import every_row
from tests.support.servers.llm_server import Script
from tests.support.services import Serve

LONG = "x" * 10_000
BOOK = {"type": "function", "function": {"name": "book", "parameters": {}}}


@pytest.mark.long
async def test_requests_of_ten_thousand_messages(serve: Serve) -> None:
    """A past, the same again, and one that contradicts it: the last words are taken, in time that its size explains."""
    past: Any = [says(USER if place % 2 else ASSISTANT, f"Words {place // 3}.") for place in range(10_000)]
    other = random.Random(1).sample(past, len(past))
    async with service_with_llm(serve, Script(["Good."])) as (api, client, _):
        for number, messages in enumerate([past, past, other]):
            began = time.thread_time()
            await ask_and_collect(client, [*messages, says(USER, f"The last ones, {number}.")], True)
            assert time.thread_time() - began < 15
        said = role_and_text(await api.contents())
        assert said[-6:] == [
            one for number in range(3) for one in ((USER, f"The last ones, {number}."), (ASSISTANT, "Good."))
        ]
        assert len(said) == 10_006


async def test_a_result_for_a_call_of_another_session_is_refused(serve: Serve) -> None:
    """It names the message, and nothing of the request is kept."""
    tool: Any = {"id": "call-1", "name": "book", "arguments": "{}"}
    async with service_with_llm(serve, Script(tools=[tool])) as (api, client, _):
        await ask(client, "Book a table.", tools=[BOOK])
        await api.create("other")
        async with openai_client(api.app, session_id="other") as another:
            with pytest.raises(APIStatusError, match=r"messages\[1\]\.tool_call_id") as refused:
                await ask_and_collect(another, [says(USER, "So?"), result("call-1")], True)
        assert refused.value.status_code == 400
        assert await api.contents("other") == []


@every_row("stream", [True, False])
async def test_ids_of_ten_thousand_characters(serve: Serve, stream: bool) -> None:
    """An LLM's are replaced by short ones, by which the results are known."""
    tool: Any = {"id": LONG, "name": "book", "arguments": "{}"}
    async with service_with_llm(serve, Script(["Let me see."], tools=[tool], id=LONG)) as (api, client, llm):
        message = await ask_and_collect(client, [says(USER, "Book a table.")], stream, tools=[BOOK])
        assert message.text == "Let me see."
        ((identity, name, _),) = message.calls
        assert name == "book"
        llm.then(Script(["Done."]))
        asked = [says(USER, "Book a table."), calls(identity, "Let me see."), result(identity, "number 77")]
        assert (await ask_and_collect(client, asked, stream, tools=[BOOK])).text == "Done."
        assert "number 77" in str(llm.last["messages"])
        said = [(USER, "Book a table."), (ASSISTANT, "Let me see."), (ASSISTANT, "Done.")]
        assert said == role_and_text(await api.contents())


async def test_two_requests_of_a_session_at_once(serve: Serve) -> None:
    """Each is answered, and the memory has the words of both once."""
    async with service_with_llm(serve, Script(["Good."], pause_s=0.02)) as (api, client, _):
        await asyncio.gather(ask(client, "One."), ask(client, "Two."), ask(client, "Three."))
        said = role_and_text(await api.contents())
        assert [one for one in said if one[0] == ASSISTANT] == [(ASSISTANT, "Good.")] * 3
        assert sorted([(USER, "One."), (USER, "Two."), (USER, "Three.")]) == sorted(
            one for one in said if one[0] == USER
        )
