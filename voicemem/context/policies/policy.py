"""What a policy gets and what it returns: the interface that custom policies implement."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from voicemem.transcript.messages import Message, Summary, ToolUse


class Remembered(Struct, frozen=True):
    """The memory of a session, as a policy sees it."""

    messages: Sequence[Message]
    """All of them, in order."""
    tools: Sequence[ToolUse]
    """The tool calls to show, in the order of turns; none unless the caller asks for them."""
    tokens: Callable[[int], int]
    """The number of tokens of the message at an index; each message is counted only once."""
    tool_tokens: Callable[[ToolUse], int]
    """The number of tokens of a tool call and its result."""
    text_tokens: Callable[[str], int]
    """The number of tokens of a text."""
    summary: Summary | None = None
    """The summary of the first turns, if there is one."""
    window: int | None = None
    """How many tokens the context of the session's model holds, if known."""


class Choice(NamedTuple):
    """What the LLM gets to see of a memory. Messages are always shown in their order."""

    kept: Sequence[int]
    """Indexes of messages, in rising order."""
    reason: str = ""
    """Why the others are left out: a short word such as `max_tokens`."""
    over_budget: bool = False
    """Whether a single message exceeds the whole budget, and was kept alone."""
    summary: Summary | None = None
    """Shown before the messages; the turns that it covers are left out as `summarized`."""
    tools: bool = True
    """Whether the tool calls of the kept turns are shown."""


class Policy(Protocol):
    """Chooses what the next LLM request shows. It is pure: the same memory gives the same choice."""

    def choose(self, remembered: Remembered, /) -> Choice: ...
