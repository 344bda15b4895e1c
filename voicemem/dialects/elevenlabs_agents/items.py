"""The items of a conversation: what was said, by the numbers of events, and in which order."""

from collections.abc import Iterator

from voicemem.dialects.known import Known, KnownReply

MAX_SAID = 500
"""Items whose order is remembered, for the webhook after the call."""
RECENT = 16
"""How many of the newest items are looked through for a reply."""
ELLIPSES = ("...", "…")


def said_text(item: str, known: Known) -> str | None:
    said = known.segment(item) if item.startswith("u") else known.reply(item)
    return None if said is None else said.text.strip()


def item_of(letter: str, event: int, known: Known, conversation: str | None = None) -> str:
    """The item of an event: of the newest conversation, or of the one of this id."""
    numbers: dict[str, int] = known.notes.get("conversations") or {}
    number = max(numbers.values(), default=1) if conversation is None else numbers.get(conversation, 1)
    return f"{letter}{event}" if number == 1 else f"{letter}{number}.{event}"


def add_said(item: str, known: Known, answer: str | None = None) -> None:
    """Note that something was said; a transcript that comes late is before its answer."""
    said = known.notes.get("said") or []
    if item not in said[-RECENT:]:
        place = said.index(answer) if answer in said[-RECENT:] else len(said)
        known.note("said", [*said[:place], item, *said[place:]][-MAX_SAID:])


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
