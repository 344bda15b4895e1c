"""Memories for the policies: messages whose length is their number of tokens, in turns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
from hypothesis import strategies as st

from voicemem.context.policies import Remembered
from voicemem.transcript.messages import Message, Role, Summary, ToolUse


def message_of_tokens(role: Role, turn: int, tokens: int, **metadata: Any) -> Message:
    """A message of so many tokens."""
    return Message(role, "x" * tokens, turn, 1000 * turn, metadata)


def turn_of_tokens(number: int, question: int, answer: int) -> list[Message]:
    """A question and its answer, of so many tokens each."""
    return [message_of_tokens("user", number, question), message_of_tokens("assistant", number, answer)]


def tool_use_of_tokens(turn: int, tokens: int) -> ToolUse:
    """A tool call and its result, together of so many tokens."""
    result, ms = "x" * (tokens - 1), 1000 * turn
    return ToolUse(turn, ms, f"call-{turn}", "t", b"null", msgspec.json.encode(result), answered=True, answered_ms=ms)


def remembered(
    messages: Sequence[Message],
    tools: Sequence[ToolUse] = (),
    summary: Summary | None = None,
    window: int | None = None,
) -> Remembered:
    """As a policy sees it, with a token for each character."""
    return Remembered(
        messages=messages,
        tools=tools,
        tokens=lambda index: len(messages[index].content),
        tool_tokens=lambda use: len(use.name) + len(use.result or ""),
        text_tokens=len,
        summary=summary,
        window=window,
    )


@st.composite
def memories(draw: st.DrawFn) -> Remembered:
    """Any memory: turns with gaps between them, any number of messages in each, tool calls also where no one spoke."""
    numbers = sorted(draw(st.sets(st.integers(0, 30), max_size=8)))
    roles: list[Role] = ["user", "assistant"]
    messages = [
        message_of_tokens(role, number, draw(st.integers(0, 12)), priority=draw(st.integers(-2, 2)))
        for number in numbers
        for role in sorted(draw(st.lists(st.sampled_from(roles), min_size=1, max_size=4)), reverse=True)
    ]
    used_in = sorted(draw(st.lists(st.integers(0, 30), max_size=4)))
    tools = [tool_use_of_tokens(number, draw(st.integers(1, 12))) for number in used_in]
    return remembered(messages, tools)
