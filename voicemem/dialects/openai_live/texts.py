"""Where texts stand in the kept events of OpenAI's Live API."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Text
from voicemem.protocol.types import JsonObject

REPLY, SPOKEN, KEYS = "reply", "spoken", "keys"
"""Fragments have no names. Both speak at once, so what one says goes on in spite of the other."""


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of an event."""
    match frame["type"]:
        case "session.input_transcript.delta":
            yield Text(frame, "delta", "piece", "user", SPOKEN)
        case "session.output_transcript.delta":
            yield Text(frame, "delta", "piece", item=REPLY)
        case "transport.dtmf.received":
            yield Text(frame, "event", "piece", "user", KEYS)
        case "session.commentary.append":
            yield Text(frame, "content", "value")
        case "response.event" if frame["event"]["item"].get("arguments") is not None:
            yield Text(frame["event"]["item"], "arguments", "value")
        case "response.item.create":
            yield from item_texts(frame["item"])


def item_texts(item: JsonObject) -> Iterator[Text]:
    if item.get("output") is not None:
        yield Text(item, "output", "value")
    for part in item.get("content") or ():
        if part.get("text"):
            yield Text(part, "text", "whole", "user")
