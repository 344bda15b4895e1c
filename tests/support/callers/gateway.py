"""OpenAI's own client on a session of a running service, and what it hears."""

from __future__ import annotations

from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any, NamedTuple

from openai import AsyncOpenAI

from tests.support.callers.rest import RestClient
from tests.support.servers.llm_server import LlmServer, Script, llm_server
from tests.support.services import Serve
from voicemem.app import App
from voicemem.protocol.types import JsonObject


class AppCaller(RestClient):
    """A caller that knows its service."""

    def __init__(self, app: App) -> None:
        super().__init__(app)
        self.app = app


class Message(NamedTuple):
    """What the LLM said, and the tools that it calls: id, name, arguments."""

    text: str
    calls: list[tuple[str, str, str]]


@asynccontextmanager
async def openai_client(app: App, key: str = "no key is needed", session_id: str = "s") -> AsyncIterator[AsyncOpenAI]:
    """OpenAI's own client, with nothing set but what docs/gateway.md says."""
    async with openai_client_at(f"http://{app.rest_address}", key, session_id) as client:
        yield client


@asynccontextmanager
async def openai_client_at(
    rest: str, key: str = "no key is needed", session_id: str = "s"
) -> AsyncIterator[AsyncOpenAI]:
    """The same for a service that is a process of its own."""
    async with AsyncOpenAI(base_url=f"{rest}/v1/sessions/{session_id}", api_key=key) as client:
        yield client


@asynccontextmanager
async def service_with_llm(
    serve: Serve, *scripts: Script, **config: Any
) -> AsyncIterator[tuple[AppCaller, AsyncOpenAI, LlmServer]]:
    """A service with the session `s`, whose LLM answers so, and OpenAI's client on it."""
    async with llm_server(*scripts) as llm:
        app = await serve(llm_url=llm.url)
        api = AppCaller(app)
        await api.create(**config)
        async with openai_client(app) as client:
            yield api, client, llm


def user_message(text: str) -> Any:
    """A request's messages: the user's words."""
    return [{"role": "user", "content": text}]


async def ask(client: AsyncOpenAI, text: str, **more: Any) -> str:
    """What the LLM answers to the user's words, streamed."""
    return (await ask_and_collect(client, user_message(text), True, **more)).text


async def ask_and_collect(client: AsyncOpenAI, messages: Any, stream: bool, **more: Any) -> Message:
    """What the LLM answers, streamed or whole."""
    if not stream:
        answer = await client.chat.completions.create(model="any", messages=messages, **more)
        message = answer.choices[0].message
        calls = [
            (c.id, c.function.name, c.function.arguments) for c in message.tool_calls or () if c.type == "function"
        ]
        return Message(message.content or "", calls)
    text = ""
    found: dict[int, list[str]] = {}
    async for chunk in await client.chat.completions.create(model="any", messages=messages, stream=True, **more):
        for choice in chunk.choices:
            text += choice.delta.content or ""
            for part in choice.delta.tool_calls or ():
                call = found.setdefault(part.index, ["", "", ""])
                call[0] = part.id or call[0]
                if part.function is not None:
                    call[1] += part.function.name or ""
                    call[2] += part.function.arguments or ""
    return Message(text, [(one, name, arguments) for one, name, arguments in found.values()])


def role_and_text(messages: list[JsonObject]) -> list[tuple[str, str]]:
    """Role and text of messages."""
    return [(message["role"], message["content"]) for message in messages]
