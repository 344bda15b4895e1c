"""Calls as rows of a journal, and what the plain fold makes of them."""

from __future__ import annotations

from typing import Any

from tests.support.plain_fold.messages import plain_messages
from tests.support.plain_fold.rows import Json, PlainRow

SERVER_EVENTS = ("session.closed", "session.reopened")


def plain_rows(*events: Json) -> list[PlainRow]:
    """A journal of these events: the n-th is received at n seconds, from the producer that it names, else `main`."""
    rows = []
    for position, event in enumerate(events, 1):
        producer = None if event["type"] in SERVER_EVENTS else event.get("producer", "main")
        fields = {name: value for name, value in event.items() if name != "producer"}
        rows.append(PlainRow(position, position * 1000, producer, fields))
    return rows


def plain(*events: Json, unfinished: bool = False) -> list[Json]:
    """The messages of a call."""
    return plain_messages(plain_rows(*events), unfinished)


def plain_texts(*events: Json, unfinished: bool = False) -> list[str]:
    """What the messages of a call say."""
    return [one["content"] for one in plain(*events, unfinished=unfinished)]


def plain_heard(*events: Json) -> tuple[str, str | None]:
    """What was heard of the last message, an interrupted reply, and how that was found."""
    last = plain(*events)[-1]
    assert last["metadata"]["interrupted"] is True
    return last["content"], last["metadata"].get("heard")


def said(text: str, turn: int | None = 1, ts: int = 1000, **more: Any) -> list[Json]:
    """A reply generated in one piece, and its done 10 ms later."""
    named: Json = {"turn_id": turn, **more}
    delta = {"type": "llm.delta", "ts": ts, "text": text, **named}
    return [delta, {"type": "llm.done", "ts": ts + 10, **named}]


def call_closed(ts: int) -> Json:
    """The server's close."""
    return {"type": "session.closed", "ts": ts, "reason": "test"}


def call_reopened() -> Json:
    """The server's reopening."""
    return {"type": "session.reopened"}
