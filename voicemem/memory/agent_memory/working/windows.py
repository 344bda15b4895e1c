"""How much of a model's window the messages of a working memory take."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from voicemem.llm.tokens import (
    UNKNOWN_WINDOW,
    TokenCounter,
    context_window_of,
    counter,
    encoding_of,
    estimate_tokens,
)
from voicemem.memory.agent_memory.models import MessageView

SUMMARY_SHARE = 0.7
"""The share of a window at which agent-memory-server makes a summary; its clients are told the distance to it."""
EXACT_CHARACTERS = 200_000
"""Tokens of longer lists are estimated."""


class Window(NamedTuple):
    """How many tokens a client's model takes, and how they are counted."""

    tokens: int
    counter: TokenCounter


def window_of(model: str | None, tokens: int | None) -> Window | None:
    """How much a client's model takes; None if it says nothing of it."""
    if model is None and tokens is None:
        return None
    most = tokens or context_window_of(model, {}) or UNKNOWN_WINDOW
    return Window(most, counter(encoding_of(model)))


def count_tokens(messages: Sequence[MessageView], counter: TokenCounter) -> list[int]:
    """The tokens of each message, with its role."""
    length = sum(len(one.content) for one in messages)
    count = counter.count if length <= EXACT_CHARACTERS else estimate_tokens
    return [count(f"{one.role}: {one.content}") for one in messages]


def first_fitting(costs: Sequence[int], most: int) -> int:
    """The first of the newest messages that fit together; the last one is always among them."""
    total = 0
    for index in range(len(costs) - 1, -1, -1):
        total += costs[index]
        if total > most:
            return min(index + 1, len(costs) - 1)
    return 0


def percent(part: float, whole: float) -> float:
    return min(100.0, 100.0 * part / whole) if whole > 0 else 100.0
