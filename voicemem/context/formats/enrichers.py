"""What a reader may have written into the memory for its LLM, by name: when, by whom, and what was never heard.

Enrichers write into user messages only, since models imitate marks that they find in their own lines. They give new
messages and leave the memory as it is.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from datetime import UTC, datetime, timedelta

from msgspec.structs import replace

from voicemem.errors import Refused
from voicemem.transcript.messages import Message

Enricher = Callable[[Sequence[Message]], Sequence[Message]]

EPOCH = datetime(1970, 1, 1, tzinfo=UTC)


def timestamps(messages: Sequence[Message]) -> list[Message]:
    """`[2026-05-10T05:20:00.000Z] ` before what the user said."""
    return [_prefixed(message, f"[{_time(message.timestamp)}] ") for message in messages]


def users(messages: Sequence[Message]) -> list[Message]:
    """`NAME: ` before what the user said, where it is known who spoke."""
    return [_prefixed(message, _speaker(message)) for message in messages]


def originals(messages: Sequence[Message]) -> list[Message]:
    """What interrupted replies would have said, each on a line of its own before what the user said next."""
    enriched: list[Message] = []
    notes = ""
    for message in messages:
        if message.role == "assistant":
            notes += _unheard(message)
            enriched.append(message)
        else:
            enriched.append(_prefixed(message, notes))
            notes = ""
    return enriched


ENRICHERS: dict[str, Enricher] = {"timestamps": timestamps, "users": users, "originals": originals}


def enriched(messages: Sequence[Message], names: Sequence[str]) -> Sequence[Message]:
    """The messages after the named enrichers, in the given order; a name that is not known is refused."""
    if not ENRICHERS.keys() >= set(names):
        raise Refused("invalid_query", f"enrich takes the names {', '.join(ENRICHERS)}.")
    for name in names:
        messages = ENRICHERS[name](messages)
    return messages


def _prefixed(message: Message, prefix: str) -> Message:
    if message.role != "user" or not prefix:
        return message
    return replace(message, content=prefix + message.content)


def _time(timestamp: int) -> str:
    """A time in Unix ms as ISO 8601, or its number where no date can say it: producers' numbers are not checked."""
    try:
        moment = EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _speaker(message: Message) -> str:
    user = message.metadata.get("user")
    return f"{user}: " if isinstance(user, str) and user.strip() else ""


def _unheard(message: Message) -> str:
    """The line about what of a reply was cut away; empty when nothing was."""
    original = message.metadata.get("original")
    if not message.metadata.get("interrupted") or not isinstance(original, str):
        return ""
    # Heard text comes from the engine as it is and need not be a prefix; then nobody knows where the hearing stopped.
    begun = original.startswith(message.content)
    unheard = original[len(message.content) :] if begun else original
    if not unheard.strip():
        return ""
    return f'(The assistant was cut off. The user did not hear{"" if begun else " all of"}: "{unheard}")\n'
