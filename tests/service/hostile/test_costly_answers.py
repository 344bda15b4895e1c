"""Bad input 141 to 145: answers of an LLM that would keep the service busy or fill its memory."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
import tracemalloc
from typing import NamedTuple

import pytest
from openai import APIError

from tests.support.callers.bad_input import MIB
from tests.support.callers.gateway import ask_and_collect, role_and_text, service_with_llm, user_message
from tests.support.servers.llm_server import Script
from tests.support.services import Serve
from voicemem.protocol.types import JsonObject


def chunk(delta: JsonObject) -> bytes:
    return b"data: " + json.dumps({"id": "c", "choices": [{"index": 0, "delta": delta}]}).encode() + b"\n\n"


class Costly(NamedTuple):
    """An answer, the code of its failure, and what of it was said before."""

    number: str
    raw: bytes
    code: str
    said: str | None = None


ANSWERS = [
    Costly("141 lines of data that never end an event", b"data:\n" * 40_000, "too_long"),
    Costly("141 the same in the middle", chunk({"content": "Yes."}) + b"data:\n" * 40_000, "too_long", "Yes."),
    Costly("142 calls in one chunk", chunk({"tool_calls": [{"index": n} for n in range(16_000)]}), "too_long"),
    Costly("142 calls in many chunks", b"".join(chunk({"tool_calls": [{"index": n}]}) for n in range(500)), "too_long"),
    Costly("143 values", b'data: {"choices":[' + b"{}," * 300_000 + b"{}]}\n\n", "too_long"),
    Costly(
        "144 a name without end", chunk({"tool_calls": [{"index": 0, "function": {"name": "a" * 500_000}}]}), "too_long"
    ),
]


@pytest.mark.parametrize("costly", ANSWERS, ids=[costly.number for costly in ANSWERS])
async def test_costly_answers(serve: Serve, costly: Costly) -> None:
    """The call fails with a word, little is allocated for it, and the journal has what was said and how it ended."""
    async with service_with_llm(serve, Script(raw=costly.raw)) as (api, client, _):
        tracemalloc.start()
        try:
            with pytest.raises(APIError):
                await ask_and_collect(client, user_message("Hi."), True)
            peak = tracemalloc.get_traced_memory()[1]
        finally:
            tracemalloc.stop()
        assert peak < 32 * MIB
        events = [row["event"] for row in await api.journal()]
        assert [costly.code] == [event["code"] for event in events if event["type"] == "llm.error"]
        assert not [event for event in events if event["type"] == "tool.call"]
        replies = [] if costly.said is None else [("assistant", costly.said)]
        assert [("user", "Hi."), *replies] == role_and_text(await api.contents())
        assert 200 == (await api.get("/livez")).status


async def test_145_a_whole_answer_of_many_values(serve: Serve) -> None:
    """The same holds without a stream."""
    raw = b'{"choices":[' + b"{}," * 300_000 + b"{}]}"
    async with service_with_llm(serve, Script(raw=raw)) as (api, client, _):
        with pytest.raises(APIError):
            await ask_and_collect(client, user_message("Hi."), False)
        events = [row["event"] for row in await api.journal()]
        assert ["too_long"] == [event["code"] for event in events if event["type"] == "llm.error"]
