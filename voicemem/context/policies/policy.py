"""What a policy sees, and what it says: the small port that own policies are written against."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple, Protocol

from msgspec import Struct

from voicemem.transcript.messages import Message, Summary, ToolUse


class Remembered(Struct, frozen=True):
    """The memory of a session, as a policy sees it."""

    messages: Sequence[Message]
    """All of them, in the order of the call."""
    tools: Sequence[ToolUse]
    """The tool calls that are to be shown, in the order of turns; none unless the caller wants them."""
    tokens: Callable[[int], int]
    """How many tokens the content of the message at an index has; counted once for each message."""
    tool_tokens: Callable[[ToolUse], int]
    """Those of a tool call and its result together."""
    text_tokens: Callable[[str], int]
    summary: Summary | None = None
    """What stands for the first turns, where there is one."""
    window: int | None = None
    """How many tokens the context of the session's model holds, where that is known."""


class Choice(NamedTuple):
    """What the LLM gets to see of a memory. The messages stay in their order, whatever a policy says."""

    kept: Sequence[int]
    """Indexes of messages, in rising order."""
    reason: str = ""
    """Why the others are left out: a short word, as `max_tokens`."""
    over_budget: bool = False
    """Whether a single message is larger than the whole budget, and was kept alone."""
    summary: Summary | None = None
    """Shown before the messages; the turns that it stands for are left out because they are `summarized`."""
    tools: bool = True
    """Whether tool calls of the turns that are kept are shown."""


class Policy(Protocol):
    """Chooses what the next LLM call gets to see. It is pure: the same memory gives the same choice."""

    def choose(self, remembered: Remembered, /) -> Choice: ...
