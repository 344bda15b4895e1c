"""Messages of a memory as LangChain's, and what is asked of LangChain's messages."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from voicemem.integrations.conversation import parsed
from voicemem.integrations.runs import is_answer, run_start
from voicemem.protocol.types import JsonObject


def chat_messages(messages: Iterable[JsonObject]) -> list[Any]:
    """LangChain's messages of messages in OpenAI's form, as `session.context()` has them in `messages`."""
    return [made for message in messages for made in messages_of(message)]


def messages_of(message: JsonObject) -> Iterator[Any]:
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    role, content = message["role"], message.get("content") or ""
    if role == "tool":
        yield ToolMessage(content=content, tool_call_id=message["tool_call_id"])
    elif role == "assistant":
        calls = [call["function"] | {"id": call["id"]} for call in message.get("tool_calls") or ()]
        yield AIMessage(
            content=content,
            tool_calls=[
                {"name": one["name"], "args": arguments_of(one["arguments"]), "id": one["id"]} for one in calls
            ],
        )
    else:
        yield (HumanMessage if role == "user" else SystemMessage)(content=content)


def arguments_of(text: str) -> dict[str, Any]:
    """The arguments of a call; LangChain takes an object only."""
    arguments = parsed(text)
    return arguments if isinstance(arguments, dict) else {"arguments": arguments}


def unrecorded(messages: Sequence[Any]) -> Sequence[Any]:
    """What this run may have added: its user messages, its answers and tools."""
    ended = bool(messages) and is_answer(messages[-1])
    start = run_start(messages[:-1] if ended else messages)
    while start and messages[start - 1].type == "human":
        start -= 1
    return messages[start:]
