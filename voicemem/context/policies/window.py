"""The newest turns that fit into a budget of tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from msgspec import Struct

from voicemem.context.policies.policy import Choice, Remembered

MAX_TOKENS = 4_000
"""Of the context, by default."""


class WindowPolicy(Struct, frozen=True):
    """The newest turns that fit, each with its tool calls; if not even the newest turn fits, its newest messages.

    So no message is split, and calls stay with their results, and questions with their answers, if both fit.
    """

    max_tokens: int = MAX_TOKENS

    def choose(self, remembered: Remembered) -> Choice:
        return newest_fitting(remembered, self.max_tokens)


def newest_fitting(remembered: Remembered, budget: int, since: int = 0) -> Choice:
    """The newest messages from index `since` on that fit; at least the newest one, even if it exceeds the budget."""
    end = len(remembered.messages)
    first, left = end, budget
    for begin, cost in turns_backwards(remembered, since):
        left -= cost
        if left < 0:
            break
        first = begin
    if first < end or end <= since:
        return Choice(range(first, end), "max_tokens")
    return newest_messages_fitting(remembered, budget, since)


def turns_backwards(remembered: Remembered, since: int = 0) -> Iterator[tuple[int, int]]:
    """The turns, newest first: the index of each one's first message, and its tokens with those of its tool calls."""
    messages, tools = remembered.messages, remembered.tools
    begin, tool = len(messages), len(tools)
    while begin > since:
        turn, cost = messages[begin - 1].turn_id, 0
        while begin > since and messages[begin - 1].turn_id == turn:
            begin -= 1
            cost += remembered.tokens(begin)
        # Tool calls of a turn without messages are paid for by the next older turn; those before all messages by the
        # first one.
        while tool and (begin == 0 or tools[tool - 1].turn_id >= turn):
            tool -= 1
            cost += remembered.tool_tokens(tools[tool])
        yield begin, cost


def newest_messages_fitting(remembered: Remembered, budget: int, since: int) -> Choice:
    """The newest messages of a newest turn that exceeds the budget, as far as they fit, without its tool calls."""
    messages = remembered.messages
    end = len(messages)
    since = max(since, bisect_left(messages, messages[-1].turn_id, key=attrgetter("turn_id")))
    first, left = end - 1, budget - remembered.tokens(end - 1)
    over_budget = left < 0
    while not over_budget and first > since and (left := left - remembered.tokens(first - 1)) >= 0:
        first -= 1
    return Choice(range(first, end), "max_tokens", over_budget, tools=False)
