"""The gateway as OpenAI's own client sees it: a real service before a real LLM server."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from callers import Caller
from llm_server import Fields, Script, llm_server
from openai import AsyncOpenAI
from services import Serve

from voicemem.app import App


@asynccontextmanager
async def client_of(app: App, key: str = "no key is needed", session_id: str = "s") -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client, with nothing set but what docs/gateway.md says."""
    base_url = f"http://{app.rest_address}/v1/sessions/{session_id}"
    async with AsyncOpenAI(base_url=base_url, api_key=key) as client:
        yield client


def user(text: str) -> Any:
    return [{"role": "user", "content": text}]


async def said(client: AsyncOpenAI, text: str, **more: Any) -> str:
    """What the LLM answers, streamed."""
    stream = await client.chat.completions.create(model="any", messages=user(text), stream=True, **more)
    texts = [chunk.choices[0].delta.content or "" async for chunk in stream if chunk.choices]
    return "".join(texts)


def spoken(contents: list[Fields]) -> list[tuple[str, str]]:
    return [(message["role"], message["content"]) for message in contents]


async def test_a_streamed_answer_is_heard_and_remembered(serve: Serve) -> None:
    """The client gets the LLM's chunks, and the memory has what the user and the LLM said when the stream is over."""
    async with llm_server(Script(["Hello ", "there."])) as llm:
        app = await serve(llm_url=llm.url)
        api = Caller(app)
        await api.create()
        async with client_of(app) as client:
            assert "Hello there." == await said(client, "Hi.")
            assert [("user", "Hi."), ("assistant", "Hello there.")] == spoken(await api.contents())
            assert "Hello there." == await said(client, "And now?")
    assert [
        {"role": "user", "content": "Hi."},
        {"role": "assistant", "content": "Hello there."},
        {"role": "user", "content": "And now?"},
    ] == llm.last["messages"]


async def test_a_whole_answer_is_remembered(serve: Serve) -> None:
    """Without `stream` the answer comes in one piece, and is in the memory then."""
    async with llm_server(Script(["Hello ", "there."])) as llm:
        app = await serve(llm_url=llm.url)
        api = Caller(app)
        await api.create()
        async with client_of(app) as client:
            answer = await client.chat.completions.create(model="any", messages=user("Hi."))
        assert "Hello there." == answer.choices[0].message.content
        assert [("user", "Hi."), ("assistant", "Hello there.")] == spoken(await api.contents())
        assert llm.last["stream"] is False
