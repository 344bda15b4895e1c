"""Enrichers add to the messages, if a reader asks for it: when and by whom they were said, and what was never heard.

They write into user messages only, since models imitate marks that they find in their own lines. They return new
messages and leave the memory unchanged.
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
    """Put `[2026-05-10T05:20:00.000Z] ` before what the user said."""
    return [_prefixed(message, f"[{_time(message.timestamp)}] ") for message in messages]


def users(messages: Sequence[Message]) -> list[Message]:
    """Put `NAME: ` before what the user said, if the speaker is known."""
    return [_prefixed(message, _speaker(message)) for message in messages]


def originals(messages: Sequence[Message]) -> list[Message]:
    """Put what interrupted replies would have said before what the user said next, each on its own line."""
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
    """Apply the named enrichers in this order. Raises `Refused` (`invalid_query`) for an unknown name."""
    if not ENRICHERS.keys() >= set(names):
        raise Refused("invalid_query", f"Each name in enrich must be one of {', '.join(ENRICHERS)}.")
    for name in names:
        messages = ENRICHERS[name](messages)
    return messages


def _prefixed(message: Message, prefix: str) -> Message:
    if message.role != "user" or not prefix:
        return message
    return replace(message, content=prefix + message.content)


def _time(timestamp: int) -> str:
    """A time in Unix ms as ISO 8601, or the number itself if it is beyond all dates: producers may send any number."""
    try:
        moment = EPOCH + timedelta(milliseconds=timestamp)
    except OverflowError:
        return str(timestamp)
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")


def _speaker(message: Message) -> str:
    user = message.metadata.get("user")
    return f"{user}: " if isinstance(user, str) and user.strip() else ""


def _unheard(message: Message) -> str:
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
