"""The conversation before it takes an API's shape: enriched messages, tool calls between them, then runs of one role.

Enrichers add to the messages, if a reader asks for it: when and by whom they were said, and what was never heard. They
write into user messages only, since models imitate marks that they find in their own lines. They return new messages
and leave the memory unchanged.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta
from itertools import groupby
from operator import attrgetter
from typing import Any

from msgspec import Struct
from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.transcript.messages import Message, Role, ToolUse

Enricher = Callable[[Sequence[Message]], Sequence[Message]]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamps(messages: Sequence[Message]) -> list[Message]:
    """Put `[2026-05-10T05:20:00.000Z] ` before what the user said."""
    return [prefixed(message, f"[{iso_time(message.timestamp)}] ") for message in messages]


def users(messages: Sequence[Message]) -> list[Message]:
    """Put `NAME: ` before what the user said, if the speaker is known."""
    return [prefixed(message, speaker_prefix(message)) for message in messages]


def originals(messages: Sequence[Message]) -> list[Message]:
    """Put what interrupted replies would have said before what the user said next, each on its own line."""
    enriched: list[Message] = []
    notes = ""
    for message in messages:
        if message.role == "assistant":
            notes += unheard_note(message)
            enriched.append(message)
        else:
            enriched.append(prefixed(message, notes))
            notes = ""
    return enriched


ENRICHERS: dict[str, Enricher] = {"timestamps": timestamps, "users": users, "originals": originals}


def enriched(messages: Sequence[Message], names: Sequence[str]) -> Sequence[Message]:
    """Apply the named enrichers in this order. Raises `Refused` (`invalid_query`) for an unknown name."""
    if not ENRICHERS.keys() >= set(names):
        raise Refused("invalid_query", f"Each name in enrich must be one of {', '.join(ENRICHERS)}.")
    for name in names:
        messages = ENRICHERS[name](messages)
    return messages


def prefixed(message: Message, prefix: str) -> Message:
    if message.role != "user" or not prefix:
        return message
    return replace(message, content=prefix + message.content)


def iso_time(timestamp: int) -> str:
    """A time in Unix ms as ISO 8601, or the number itself if it is beyond all dates: producers may send any number."""
    try:
        moment = EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def speaker_prefix(message: Message) -> str:
    user = message.metadata.get("user")
    return f"{user}: " if isinstance(user, str) and user.strip() else ""


def unheard_note(message: Message) -> str:
    """A line with the part of a reply that was not heard; empty if all of it was."""
    original = message.metadata.get("original")
    if not message.metadata.get("interrupted") or not isinstance(original, str):
        return ""
    # The engine states the heard text, which need not be a prefix. Then it is unknown where the hearing stopped.
    begun = original.startswith(message.content)
    unheard = original[len(message.content) :] if begun else original
    if not unheard.strip():
        return ""
    return f'(The assistant was cut off. The user did not hear{"" if begun else " all of"}: "{unheard}")\n'


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
        while waiting and comes_before(waiting[0], message):
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
    joined = [joined_run(role, list(group)) for role, group in groupby(runs, key=attrgetter("role"))]
    if joined and joined[0].role == "assistant":
        joined.insert(0, RoleRun("user", CALL_STARTED))
    if joined and joined[-1].role == "assistant":
        joined.append(RoleRun("user", SILENCE))
    return joined


def comes_before(use: ToolUse, message: Message) -> bool:
    if use.turn_id != message.turn_id:
        return use.turn_id < message.turn_id
    return message.role == "assistant" and message.timestamp > use.timestamp


def joined_run(role: Role, group: list[RoleRun]) -> RoleRun:
    """One run from several neighbours, with the fields of the newest message among them."""
    if len(group) == 1:
        return group[0]
    texts = [run.text for run in group if run.text is not None]
    fields = next((run.fields for run in reversed(group) if run.fields), {})
    return RoleRun(role, "\n".join(texts), fields, group[0].result, group[-1].call)


def json_text(value: Any) -> str:
    """A value as text: text unchanged, anything else as JSON.

    Not with orjson, which raises for integers beyond 64 bits: a tool may return them.
    """
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
