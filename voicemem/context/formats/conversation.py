"""The conversation before it takes an API's shape: messages and tool calls in order, then runs of one role."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct

from voicemem.transcript.messages import Message, Role, ToolUse

Part = Message | ToolUse

CALL_STARTED = "(call started)"
SILENCE = "(silence)"


class RoleRun(Struct, frozen=True, gc=False):
    """What one role did in a row: took a tool's result, then spoke, then called a tool; each at most once.

    A result directly follows its call, and the two have different roles. So a run never has more than one of either,
    and never in another order.
    """

    role: Role
    text: str | None = None
    """None if nothing was said."""
    fields: dict[str, Any] = {}
    """The vendor's fields besides role and text; empty if the run has no message of the memory."""
    result: ToolUse | None = None
    call: ToolUse | None = None


def interleave(memory: Sequence[Message], tools: Sequence[ToolUse], *, cut: bool) -> Sequence[Part]:
    """The messages, with each answered tool use in its turn, before the turn's first reply that began later.

    `cut` says that older messages were left out; tool uses before the first message are then left out too.
    """
    if not tools:
        return memory
    waiting = deque(sorted((use for use in tools if use.answered), key=lambda use: (use.turn_id, use.timestamp)))
    parts: list[Part] = []
    for index, message in enumerate(memory):
        while waiting and _stands_before(waiting[0], message):
            use = waiting.popleft()
            if index or not cut:
                parts.append(use)
        parts.append(message)
    return [*parts, *waiting]


def runs(
    parts: Sequence[Part], message_fields: Callable[[Message], dict[str, Any]] | None, *, keeps_blank: bool
) -> list[RoleRun]:
    """One run for each message, two for each tool use; no `message_fields` are none. Blank messages may be left out."""
    single: list[RoleRun] = []
    append = single.append
    for part in parts:
        if isinstance(part, Message):
            text = part.content
            if keeps_blank or (text and not text.isspace()):
                append(RoleRun(part.role, text, message_fields(part)) if message_fields else RoleRun(part.role, text))
        else:
            single += RoleRun("assistant", call=part), RoleRun("user", result=part)
    return single


def alternate_roles(runs: Sequence[RoleRun]) -> list[RoleRun]:
    """The runs with neighbours of one role joined, beginning and ending with the user.

    No runs stay no runs: an empty conversation gets no filler.
    """
    joined = [_joined(role, list(group)) for role, group in groupby(runs, key=attrgetter("role"))]
    if joined and joined[0].role == "assistant":
        joined.insert(0, RoleRun("user", CALL_STARTED))
    if joined and joined[-1].role == "assistant":
        joined.append(RoleRun("user", SILENCE))
    return joined


def _stands_before(use: ToolUse, message: Message) -> bool:
    if use.turn_id != message.turn_id:
        return use.turn_id < message.turn_id
    return message.role == "assistant" and message.timestamp > use.timestamp


def _joined(role: Role, group: list[RoleRun]) -> RoleRun:
    """One run from several neighbours, with the fields of the newest message among them."""
    if len(group) == 1:
        return group[0]
    texts = [run.text for run in group if run.text is not None]
    fields = next((run.fields for run in reversed(group) if run.fields), {})
    return RoleRun(role, "\n".join(texts), fields, group[0].result, group[-1].call)
