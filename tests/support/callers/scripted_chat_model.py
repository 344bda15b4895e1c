"""A chat model for LangChain that says what a script says, as a stream where one is asked for."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from typing import Any, TypeAlias

from langchain_core.callbacks import CallbackManagerForLLMRun
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage
from langchain_core.messages.tool import tool_call_chunk
from langchain_core.outputs import ChatGeneration, ChatGenerationChunk, ChatResult

Step: TypeAlias = AIMessage | Exception | str


class ScriptedChatModel(BaseChatModel):
    """Answers with one step after the other, raises those that are errors, and keeps what it was given."""

    steps: list[Any]
    given: list[list[BaseMessage]]
    on_word: Callable[[str], object] = lambda word: None
    """Called before each word of a stream."""

    @property
    def _llm_type(self) -> str:
        return "scripted"

    def bind_tools(self, tools: Any, **more: Any) -> Any:
        return self

    def next_step(self, messages: list[BaseMessage]) -> AIMessage:
        self.given.append(list(messages))
        step = self.steps.pop(0)
        if isinstance(step, Exception):
            raise step
        assert isinstance(step, AIMessage)
        return step

    def _generate(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **more: Any,
    ) -> ChatResult:
        return ChatResult(generations=[ChatGeneration(message=self.next_step(messages))])

    def _stream(
        self,
        messages: list[BaseMessage],
        stop: list[str] | None = None,
        run_manager: CallbackManagerForLLMRun | None = None,
        **more: Any,
    ) -> Iterator[ChatGenerationChunk]:
        step = self.next_step(messages)
        for word in str(step.content).split(" ") if step.content else ():
            self.on_word(word)
            yield ChatGenerationChunk(message=AIMessageChunk(content=f"{word} "))
        chunks = [
            tool_call_chunk(name=call["name"], args=json.dumps(call["args"]), id=call["id"], index=index)
            for index, call in enumerate(step.tool_calls)
        ]
        yield ChatGenerationChunk(message=AIMessageChunk(content="", tool_call_chunks=chunks))


def scripted(*steps: Step) -> ScriptedChatModel:
    """A model of these answers."""
    return ScriptedChatModel(steps=[AIMessage(one) if isinstance(one, str) else one for one in steps], given=[])


def tool_call(name: str, arguments: dict[str, Any], call_id: str, said: str = "") -> AIMessage:
    return AIMessage(said, tool_calls=[{"name": name, "args": arguments, "id": call_id}])
