"""What the agent generated (rule 2)."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

from .rows import GENERATION, Event, Key

FAILURE = "failure"
ONLY_HEARD = "only heard"


class Piece(NamedTuple):
    """A part of a reply's text; `ts` is that of a plain delta, and None for any other."""

    text: str
    ts: int | None


@dataclass(frozen=True)
class Reply:
    """What the agent says in one go."""

    key: Key
    kind: str
    turn: int
    item: str | None
    source: str
    events: tuple[Event, ...]
    text: str
    pieces: tuple[Piece, ...]
    finished: bool
    begin: int

    @property
    def order(self) -> tuple[int, int, int, bool]:
        """Rule 7: by turn, then begin, then arrival; a failure message comes after the reply that failed."""
        return self.turn, self.begin, self.events[0].position, self.kind == FAILURE

    @property
    def restored_cut(self) -> bool:
        """Messages: a restored message carries what is known of its interruption."""
        return self.events[0].type == "message" and bool(self.events[0].metadata.get("interrupted"))

    def generated_until(self, ts: int | None) -> str:
        """Rule 3: the longest beginning of the text of whose plain deltas none has a later `ts`."""
        length = 0
        for piece in self.pieces:
            if ts is not None and piece.ts is not None and piece.ts > ts:
                return self.text[:length]
            length += len(piece.text)
        return self.text


def replies_of(events: Sequence[Event]) -> list[Reply]:
    """Rule 2: every reply that had text, in the order of rule 7."""
    keys = dict.fromkeys(one.reply for one in events if one.type in GENERATION and one.reply)
    replies = [reply for key in keys if (reply := generated(events, key))]
    replies += [
        whole(one) for one in events if is_assistant_message(one) and (one.text or one.metadata.get("interrupted"))
    ]
    replies += [failure(one) for one in events if one.type == "llm.error" and one.text]
    return sorted(replies, key=lambda one: one.order)


def is_assistant_message(event: Event) -> bool:
    """Rule 2: an assistant `message` is a reply generated whole."""
    return event.type == "message" and event.fields["role"] == "assistant"


def generated(events: Sequence[Event], key: Key) -> Reply | None:
    """Rule 2: the reply that these `llm.*` events make; what never had text is none."""
    mine = [one for one in events if one.type in GENERATION and one.reply == key]
    if not any(one.text for one in mine if one.type != "llm.error"):
        return None
    pieces = pieces_of(mine)
    dones = sorted((one for one in mine if one.type == "llm.done" and "text" in one.fields), key=lambda one: one.order)
    text = dones[-1].text if dones else "".join(piece.text for piece in pieces)
    item = key[1] if key[0] == "item" else None
    return Reply(
        key,
        "llm",
        turn_of_key(mine),
        item if isinstance(item, str) else None,
        "llm",
        tuple(mine),
        text,
        tuple(pieces),
        any(one.type in ("llm.done", "llm.error") for one in mine),
        min(one.ts for one in mine),
    )


def turn_of_key(mine: Sequence[Event]) -> int:
    """Events: a reply stays in the turn where it began."""
    turn = mine[0].turn
    assert turn is not None
    return turn


def pieces_of(mine: Sequence[Event]) -> list[Piece]:
    """Rule 3: the newest `whole`, and behind it the plain deltas that are later by (`ts`, arrival), as they arrived."""
    deltas = [one for one in mine if one.type == "llm.delta" and one.text]
    wholes = [one for one in mine if one.type == "llm.delta" and one.fields.get("whole")]
    plain = [one for one in deltas if not one.fields.get("whole")]
    if not wholes:
        return [Piece(one.text, one.ts) for one in plain]
    newest = max(wholes, key=lambda one: one.order)
    return [Piece(newest.text, None), *(Piece(one.text, one.ts) for one in plain if one.order > newest.order)]


def whole(event: Event) -> Reply:
    """Rule 2: an assistant `message` is a reply generated whole."""
    return at_once(event, ("message", event.position), "message", event.fields["source"])


def failure(event: Event) -> Reply:
    """Rule 9: the text of an `llm.error` is a message of source `llm_failure`."""
    return at_once(event, ("failure", event.position), FAILURE, "llm_failure")


def at_once(event: Event, key: Key, kind: str, source: str) -> Reply:
    """A reply whose text came in one event."""
    assert event.turn is not None
    pieces = (Piece(event.text, None),)
    return Reply(key, kind, event.turn, event.item, source, (event,), event.text, pieces, True, event.ts)


def only_heard(interrupts: Sequence[Event], key: Key, turn: int, item: str | None) -> Reply:
    """Events: what an interrupt with `more` makes where no `llm.*` came: all that is known of it was heard."""
    best = max(interrupts, key=lambda one: (not one.estimated, *one.order))
    text: str = best.fields["heard_text"]
    events = (min(interrupts, key=lambda one: one.order),)
    return Reply(key, ONLY_HEARD, turn, item, "llm", events, text, (Piece(text, None),), True, events[0].ts)
