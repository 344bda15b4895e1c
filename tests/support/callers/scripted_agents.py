"""Models for the OpenAI Agents SDK that say what a script says; older versions bring none of their own."""

from __future__ import annotations

from collections.abc import AsyncIterator
from types import SimpleNamespace
from typing import Any

from agents import ModelResponse, Usage
from agents.models.interface import Model
from agents.realtime import RealtimeModel
from openai.types.responses import ResponseFunctionToolCall, ResponseOutputMessage, ResponseOutputText


class ScriptedModel(Model):
    """Answers with one step after the other, and keeps what it was given."""

    def __init__(self, steps: Any) -> None:
        self.steps = list(steps)
        self.calls: list[SimpleNamespace] = []

    async def get_response(self, system_instructions: Any, input: Any, *given: Any, **named: Any) -> ModelResponse:
        self.calls.append(SimpleNamespace(input=input))
        return ModelResponse(self.steps.pop(0), Usage(), None)

    async def stream_response(self, *given: Any, **named: Any) -> AsyncIterator[Any]:
        raise NotImplementedError
        yield


def assistant_message(text: str) -> Any:
    said = ResponseOutputText(text=text, type="output_text", annotations=[], logprobs=[])
    return ResponseOutputMessage(id="m", type="message", role="assistant", status="completed", content=[said])


def function_call(name: str, arguments: str, call_id: str) -> Any:
    return ResponseFunctionToolCall(type="function_call", name=name, arguments=arguments, call_id=call_id)


class ScriptedRealtimeModel(RealtimeModel):
    """Tells its listeners what it is told to, and keeps what was sent to it."""

    def __init__(self) -> None:
        self.listeners: list[Any] = []
        self.sent: list[Any] = []

    async def connect(self, options: Any) -> None:
        """There is nothing to connect to."""

    def add_listener(self, listener: Any) -> None:
        self.listeners.append(listener)

    def remove_listener(self, listener: Any) -> None:
        self.listeners.remove(listener)

    async def send_event(self, event: Any) -> None:
        self.sent.append(event)

    async def send_event_if(self, event: Any, send_if: Any) -> bool:
        await self.send_event(event)
        return True

    async def close(self) -> None:
        """There is nothing to close."""

    async def emit(self, *events: Any) -> None:
        for event in events:
            for listener in list(self.listeners):
                await listener.on_event(event)
