"""Whose turn it is in a conversation of ElevenLabs Agents, and which of its items came when."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Known, KnownReply

MAX_SAID = 500
"""Items whose order is remembered, for the webhook after the call."""
MAX_CONVERSATIONS = 8
"""Conversations of one session whose ids are remembered."""
RECENT = 16
"""How many of the newest items are looked through for a reply."""
ELLIPSES = ("...", "…")


def begin_conversation(id: str, known: Known) -> None:
    """Note a conversation of the session; a later one counts its events anew."""
    numbers: dict[str, int] = known.notes.get("conversations") or {}
    if id in numbers:
        return
    number = max(numbers.values(), default=0) + 1
    newest = list(numbers.items())[-MAX_CONVERSATIONS + 1 :]
    known.note("conversations", dict(newest) | {id: number})
    for note in ("tentative", "parts", "whole", "waiting", "interrupted"):
        known.note(note, None)


def item_of(letter: str, event: int, known: Known, conversation: str | None = None) -> str:
    """The item of an event: of the newest conversation, or of the one of this id."""
    numbers: dict[str, int] = known.notes.get("conversations") or {}
    number = max(numbers.values(), default=1) if conversation is None else numbers.get(conversation, 1)
    return f"{letter}{event}" if number == 1 else f"{letter}{number}.{event}"


def utterance_turn(item: str | None, known: Known) -> int | None:
    """The turn of a new utterance, the same while nobody has answered; None where the item has its turn already."""
    if item is not None and known.turn_of(item) is not None:
        return None
    return known.here if known.here and not known.is_answered(known.here) else known.next_turn


def answer_turn(item: str, known: Known) -> int | None:
    """The turn for the first event of a reply; None once it has begun."""
    return known.here if known.turn_of(item) is None else None


def add_said(item: str, known: Known) -> None:
    """Remember an item of the conversation."""
    said = known.notes.get("said") or []
    if item not in said[-RECENT:]:
        known.note("said", [*said, item][-MAX_SAID:])


def replies(known: Known) -> Iterator[str]:
    """The items of the newest replies, the newest first."""
    said = known.notes.get("said") or []
    return (item for item in reversed(said[-RECENT:]) if not item.startswith("u"))


def newest_reply(known: Known) -> KnownReply | None:
    return next((reply for item in replies(known) if (reply := known.reply(item)) is not None), None)


def stated_ts(ts: int, known: Known) -> int | None:
    """The time of a frame, where it is the time at which it was sent."""
    return ts if known.has_clock else None


def without_ellipsis(heard: str, original: str) -> str:
    """The text of a correction as far as it was spoken: "..." behind it stands for what was not, unless it is there."""
    if original.startswith(heard):
        return heard
    for ellipsis in ELLIPSES:
        if heard.endswith(ellipsis):
            return heard.removesuffix(ellipsis).rstrip()
    return heard
