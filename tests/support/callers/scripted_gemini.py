"""A model for Google's ADK that says what a script says, also in live runs."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

from google.adk.models.base_llm import BaseLlm
from google.adk.models.base_llm_connection import BaseLlmConnection
from google.adk.models.llm_response import LlmResponse
from google.genai import types


class ScriptedConnection(BaseLlmConnection):
    """A live connection; it tells what is put into `told`, and ends the run with None."""

    def __init__(self) -> None:
        self.told: asyncio.Queue[LlmResponse | None] = asyncio.Queue()
        self.sent: list[Any] = []

    async def send_history(self, history: Any) -> None:
        self.sent += history

    async def send_content(self, content: Any) -> None:
        self.sent.append(content)

    async def send_realtime(self, blob: Any) -> None:
        self.sent.append(blob)

    async def receive(self) -> AsyncGenerator[LlmResponse, None]:
        while (said := await self.told.get()) is not None:
            yield said

    async def close(self) -> None:
        """There is nothing to close."""


class ScriptedGemini(BaseLlm):
    """Answers with one step after the other, as a stream where one is asked for, and keeps what it was given."""

    model: str = "scripted"
    steps: list[Any] = []  # noqa: RUF012 (a field of pydantic)
    given: list[Any] = []  # noqa: RUF012
    instructions: list[str] = []  # noqa: RUF012
    connection: Any = None

    async def generate_content_async(self, llm_request: Any, stream: bool = False) -> AsyncGenerator[LlmResponse, None]:
        self.given.append(list(llm_request.contents))
        self.instructions.append(str(llm_request.config.system_instruction))
        step = self.steps.pop(0)
        if isinstance(step, str) and stream:
            for word in step.split():
                yield LlmResponse(content=model_said(f"{word} "), partial=True)
            step = " ".join(step.split()) + " "
        if isinstance(step, Exception):
            raise step
        yield LlmResponse(content=model_said(step) if isinstance(step, str) else step, partial=False)

    @asynccontextmanager
    async def connect(self, llm_request: Any) -> AsyncIterator[Any]:
        yield self.connection


def scripted(*steps: Any) -> ScriptedGemini:
    """A model of these answers."""
    return ScriptedGemini(steps=list(steps), given=[], instructions=[])


def model_said(text: str) -> Any:
    return types.Content(role="model", parts=[types.Part(text=text)])


def tool_call(name: str, arguments: dict[str, Any], said: str = "") -> Any:
    parts = [types.Part(text=said)] * bool(said)
    return types.Content(
        role="model", parts=[*parts, types.Part(function_call=types.FunctionCall(name=name, args=arguments))]
    )


def user_said(text: str) -> Any:
    return types.Content(role="user", parts=[types.Part(text=text)])


def heard(text: str, finished: bool = False) -> LlmResponse:
    """The caller's words, transcribed."""
    return LlmResponse(input_transcription=types.Transcription(text=text, finished=finished), partial=not finished)


def spoken(text: str, finished: bool = False) -> LlmResponse:
    """The model's words, transcribed."""
    return LlmResponse(output_transcription=types.Transcription(text=text, finished=finished), partial=not finished)


def audio(ms: int) -> LlmResponse:
    """Audio of the model."""
    blob = types.Blob(data=bytes(48 * ms), mime_type="audio/pcm;rate=24000")
    return LlmResponse(content=types.Content(role="model", parts=[types.Part(inline_data=blob)]))
