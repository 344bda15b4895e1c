"""Context policies: which part of the memory the next LLM request shows. Policies are pure.

A policy chooses messages, but never changes, splits or reorders them; the history itself is never shortened. First
comes the interface that custom policies implement, then the simple policies that come with voicemem.
"""

from bisect import bisect_left
from collections.abc import Callable, Iterator, Sequence
from math import inf
from operator import attrgetter
from typing import NamedTuple, Protocol

import msgspec
from msgspec import Struct

from voicemem.context.formats import json_text
from voicemem.transcript.messages import Message, Summary, ToolUse


class Remembered(Struct, frozen=True):
    """The memory of a session, as a policy sees it."""

    messages: Sequence[Message]
    """All messages, in order."""
    tools: Sequence[ToolUse]
    """The tool calls to show, in the order of turns; none unless the client requests them."""
    tokens: Callable[[int], int]
    """Returns the number of tokens of the message at an index; each message is counted once."""
    tool_tokens: Callable[[ToolUse], int]
    """Returns the number of tokens of a tool call and its result."""
    text_tokens: Callable[[str], int]
    summary: Summary | None = None
    """The summary of the first turns, if there is one."""
    window: int | None = None
    """The size of the context of the session's model in tokens, if known."""


class Choice(NamedTuple):
    """The part of a memory that the LLM sees. Messages are always shown in their order."""

    kept: Sequence[int]
    """Indexes of messages, in rising order."""
    reason: str = ""
    """Why the others are left out, as a short word such as `max_tokens`."""
    over_budget: bool = False
    """True if a single message, or the results of the turn in progress, exceed the whole budget."""
    summary: Summary | None = None
    """The summary shown before the messages; the turns that it covers are left out as `summarized`."""
    tools: bool = True
    """True if the tool calls of the kept turns are shown. Those of the turn in progress always are."""
    budget: int | None = None
    """The tokens to which the results of the turn in progress are limited, by cutting the longest in the middle."""


class Policy(Protocol):
    """Chooses what the next LLM request shows. It is pure: the same memory gives the same choice."""

    def choose(self, remembered: Remembered, /) -> Choice: ...


class RecentPolicy(Struct, frozen=True):
    """Shows the newest `max_messages`."""

    max_messages: int = 32

    def choose(self, remembered: Remembered) -> Choice:
        count = len(remembered.messages)
        return Choice(range(max(0, count - self.max_messages), count), "max_messages")


class FullPolicy(Struct, frozen=True):
    """Shows the whole memory, however large."""

    def choose(self, remembered: Remembered) -> Choice:
        return Choice(range(len(remembered.messages)))


MAX_TOKENS = 4_000


class WindowPolicy(Struct, frozen=True):
    """Shows the newest turns that fit, with their tool calls; if not even the newest turn fits, its newest messages.

    So no message is split, and calls stay with their results and questions with their answers, if both fit.
    """

    max_tokens: int = MAX_TOKENS

    def choose(self, remembered: Remembered) -> Choice:
        return newest_fitting(remembered, self.max_tokens)


def newest_fitting(remembered: Remembered, budget: int, since: int = 0) -> Choice:
    """Choose the newest messages from index `since` on that fit; at least the newest one, even if it does not fit."""
    end = len(remembered.messages)
    current = first_current(remembered)
    reserved = current_tokens(remembered, current, budget)
    first, left = end, budget - reserved
    if not remembered.tools:
        first, left = newest_turns_fitting(remembered, left, since)
    else:
        for begin, cost in turns_backwards(remembered, since, current):
            left -= cost
            if left < 0:
                break
            first = begin
    if first < end or end <= since:
        return Choice(range(first, end), "max_tokens", first == end and left < 0, budget=budget)
    return newest_messages_fitting(remembered, budget, since, reserved)


def newest_turns_fitting(remembered: Remembered, left: int, since: int) -> tuple[int, int]:
    """Return the first index of the newest turns that fit, and the tokens left; for memories without tool calls."""
    messages, tokens = remembered.messages, remembered.tokens
    first = begin = len(messages)
    turn = None
    while begin > since:
        number = messages[begin - 1].turn_id
        if number != turn:
            first, turn = begin, number
        begin -= 1
        left -= tokens(begin)
        if left < 0:
            return first, left
    return begin, left


def first_current(remembered: Remembered) -> int:
    """Return the index of the first tool use of the turn in progress.

    That is the newest turn, and those before it whose results came after the LLM's last reply: the LLM would call
    these tools again if it did not see the results.
    """
    messages, tools = remembered.messages, remembered.tools
    if not messages or not tools:
        return 0
    replies = (message.timestamp for message in reversed(messages) if is_answer(message))
    replied_ms = next(replies, -inf)
    waiting = (use.turn_id for use in tools if use.answered_ms > replied_ms)
    return bisect_left(tools, min(messages[-1].turn_id, next(waiting, inf)), key=attrgetter("turn_id"))


def is_answer(message: Message) -> bool:
    """Return whether a message is an answer of the LLM, not a filler of the app."""
    return message.role == "assistant" and message.metadata.get("source") != "command"


def current_tokens(remembered: Remembered, first: int, budget: int) -> int:
    """Return the tokens of the tool uses of the turn in progress, as they are shown."""
    return min(sum(map(remembered.tool_tokens, remembered.tools[first:])), max(budget, 0))


LEAST_SHOWN = 16
"""The fewest characters that are shown at each end of a cut result."""


def cut_results(uses: Sequence[ToolUse], budget: int, count: Callable[[str], int]) -> list[ToolUse]:
    """Return the tool uses, with the longest results cut to equal shares so that all fit the budget."""
    left, share = budget, budget
    sizes = sorted(count(json_text(use.result)) for use in uses)
    for place, size in enumerate(sizes):
        share = left // (len(sizes) - place)
        if size > share:
            return [cut_result(use, share, count) for use in uses]
        left -= size
    return list(uses)


def cut_result(use: ToolUse, budget: int, count: Callable[[str], int]) -> ToolUse:
    """Return the tool use, with its result cut in the middle if that exceeds the budget."""
    text = json_text(use.result)
    tokens = count(text)
    half = len(text) * budget // (2 * max(tokens, 1))
    while tokens > budget and (half := max(half, LEAST_SHOWN)) * 2 < len(text):
        shown = f"{text[:half]}\n[… {len(text) - 2 * half} characters left out …]\n{text[-half:]}"
        if half == LEAST_SHOWN or count(shown) <= budget:
            return msgspec.structs.replace(use, result_json=msgspec.json.encode(shown))
        half = half * 4 // 5
    return use


def turns_backwards(remembered: Remembered, since: int = 0, tool_count: int | None = None) -> Iterator[tuple[int, int]]:
    """Yield the turns, newest first: the index of the first message, and the tokens with those of the tool calls.

    With `tool_count`, only so many of the first tool calls count.
    """
    messages, tools, tokens = remembered.messages, remembered.tools, remembered.tokens
    begin, tool = len(messages), len(tools) if tool_count is None else tool_count
    while begin > since:
        begin -= 1
        turn, cost = messages[begin].turn_id, tokens(begin)
        while begin > since and messages[begin - 1].turn_id == turn:
            begin -= 1
            cost += tokens(begin)
        # Tool calls of a turn without messages count for the next older turn; those before all messages for the first.
        while tool and (begin == 0 or tools[tool - 1].turn_id >= turn):
            tool -= 1
            cost += remembered.tool_tokens(tools[tool])
        yield begin, cost


def newest_messages_fitting(remembered: Remembered, budget: int, since: int, reserved: int) -> Choice:
    """Choose the newest messages that fit of a newest turn that exceeds the budget."""
    messages = remembered.messages
    end = len(messages)
    since = max(since, bisect_left(messages, messages[-1].turn_id, key=attrgetter("turn_id")))
    first, left = end - 1, budget - remembered.tokens(end - 1)
    while first > since and (cost := remembered.tokens(first - 1)) <= left:
        first, left = first - 1, left - cost
    return Choice(range(first, end), "max_tokens", left < reserved, tools=False, budget=budget)


MAX_MESSAGES = 32


class PriorityPolicy(Struct, frozen=True):
    """Shows the messages with the highest `metadata.priority` (a number, by default 0); among equals, the newest.

    The newest message is always kept, since the LLM is to answer it.

    With `max_tokens`, a message that does not fit is skipped, and smaller ones may still find room.
    """

    max_messages: int | None = None
    max_tokens: int | None = None

    def choose(self, remembered: Remembered) -> Choice:
        messages = remembered.messages
        priorities = list(map(priority_of, messages))
        ranked = sorted(reversed(range(len(messages) - 1)), key=priorities.__getitem__, reverse=True)
        ranked[:0] = [len(messages) - 1] if messages else []
        limit = self.max_messages
        if limit is None:
            limit = MAX_MESSAGES if self.max_tokens is None else len(messages)
        if self.max_tokens is None:
            return Choice(sorted(ranked[:limit]), "max_messages")
        # The tool calls of a turn count for the first of its messages that is kept.
        kept: list[int] = []
        turns: set[int] = set()
        current = first_current(remembered)
        left = self.max_tokens - current_tokens(remembered, current, self.max_tokens)
        tools: dict[int, int] = {}
        for use in remembered.tools[:current]:
            tools[use.turn_id] = tools.get(use.turn_id, 0) + remembered.tool_tokens(use)
        for index in ranked:
            if len(kept) >= limit or (left <= 0 and kept):
                break
            turn = remembered.messages[index].turn_id
            cost = remembered.tokens(index) + (0 if turn in turns else tools.get(turn, 0))
            if cost <= left or not kept:
                kept.append(index)
                turns.add(turn)
                left -= cost
        reason = "max_tokens" if len(kept) < limit else "max_messages"
        return Choice(sorted(kept), reason, left < 0, budget=self.max_tokens)


def priority_of(message: Message) -> float:
    """Return the priority that a producer gave a message; anything but a number counts as 0."""
    value = message.metadata.get("priority")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
