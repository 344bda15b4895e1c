"""The most important messages."""

from __future__ import annotations

from msgspec import Struct

from voicemem.context.policies.policy import Choice, Remembered
from voicemem.transcript.messages import Message

MAX_MESSAGES = 32


class PriorityPolicy(Struct, frozen=True):
    """The messages with the highest `metadata.priority` (a number, by default 0); among equals, the newest.

    The newest message of all is always kept: it is what the LLM is to answer.

    With `max_tokens`, a message that does not fit is skipped, and smaller ones may still find room.
    """

    max_messages: int | None = None
    max_tokens: int | None = None

    def choose(self, remembered: Remembered) -> Choice:
        messages = remembered.messages
        older = range(len(messages) - 1)
        ranked = sorted(older, key=lambda index: (priority_of(messages[index]), index), reverse=True)
        ranked[:0] = [len(messages) - 1] if messages else []
        limit = self.max_messages
        if limit is None:
            limit = MAX_MESSAGES if self.max_tokens is None else len(messages)
        if self.max_tokens is None:
            return Choice(sorted(ranked[:limit]), "max_messages")
        return self.choose_fitting(remembered, ranked, limit, self.max_tokens)

    def choose_fitting(self, remembered: Remembered, ranked: list[int], limit: int, budget: int) -> Choice:
        """The messages that fit, in this order of rank. The newest is kept even if it does not fit.

        The tool calls of a turn are paid for by the first of its messages that is kept.
        """
        kept: list[int] = []
        turns: set[int] = set()
        left = budget
        tools: dict[int, int] = {}
        for use in remembered.tools:
            tools[use.turn_id] = tools.get(use.turn_id, 0) + remembered.tool_tokens(use)
        for index in ranked:
            if len(kept) >= limit or left <= 0:
                break
            turn = remembered.messages[index].turn_id
            cost = remembered.tokens(index) + (0 if turn in turns else tools.get(turn, 0))
            if cost <= left or not kept:
                kept.append(index)
                turns.add(turn)
                left -= cost
        return Choice(sorted(kept), "max_tokens" if len(kept) < limit else "max_messages", left < 0)


def priority_of(message: Message) -> float:
    """The priority that a producer gave a message; anything but a number counts as 0."""
    value = message.metadata.get("priority")
    return value if isinstance(value, int | float) and not isinstance(value, bool) else 0
