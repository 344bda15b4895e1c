"""The newest turns that fit into a budget of tokens."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator
from operator import attrgetter

from msgspec import Struct

from voicemem.context.policies.policy import Choice, Remembered

MAX_TOKENS = 4_000


class WindowPolicy(Struct, frozen=True):
    """The newest turns that fit, each with its tool calls; of a newest turn that does not, its newest messages.

    So no message is split, no result parted from its call, and no answer from its question, where both fit.
    """

    max_tokens: int = MAX_TOKENS

    def choose(self, remembered: Remembered) -> Choice:
        return newest_fitting(remembered, self.max_tokens)


def newest_fitting(remembered: Remembered, budget: int, since: int = 0) -> Choice:
    """What fits of the messages from an index on; at least the newest one, which may be larger than the budget."""
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
    """The turns, the newest first: where each begins among the messages, and its tokens with those of its tools."""
    messages, tools = remembered.messages, remembered.tools
    begin, tool = len(messages), len(tools)
    while begin > since:
        turn, cost = messages[begin - 1].turn_id, 0
        while begin > since and messages[begin - 1].turn_id == turn:
            begin -= 1
            cost += remembered.tokens(begin)
        while tool and (begin == 0 or tools[tool - 1].turn_id >= turn):
            tool -= 1
            cost += remembered.tool_tokens(tools[tool])
        yield begin, cost


def newest_messages_fitting(remembered: Remembered, budget: int, since: int) -> Choice:
    """For a newest turn that is larger than the budget: its newest messages that fit, without its tool calls."""
    messages = remembered.messages
    end = len(messages)
    since = max(since, bisect_left(messages, messages[-1].turn_id, key=attrgetter("turn_id")))
    first, left = end - 1, budget - remembered.tokens(end - 1)
    over_budget = left < 0
    while not over_budget and first > since and (left := left - remembered.tokens(first - 1)) >= 0:
        first -= 1
    return Choice(range(first, end), "max_tokens", over_budget, tools=False)
