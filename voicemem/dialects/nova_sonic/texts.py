"""Where texts stand in the kept events of Nova Sonic's stream."""

from __future__ import annotations

from collections.abc import Iterator

from voicemem.dialects.dialect import Text
from voicemem.dialects.nova_sonic.frames import EVENT
from voicemem.protocol.types import JsonObject

REPLY, SPOKEN = "reply", "spoken"
"""The blocks that come are those of the utterance under way, or sentences of the reply."""


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of an event."""
    ((name, body),) = frame[EVENT].items()
    if name == "textOutput" and "content" in body:
        if body.get("role") == "USER":
            yield Text(body, "content", "piece", "user", SPOKEN)
        else:
            yield Text(body, "content", "sentence", item=body["contentId"])
    elif name == "textInput":
        yield Text(body, "content", "piece", "user", body["contentName"])
    elif name in ("toolUse", "toolResult") and body.get("content") is not None:
        yield Text(body, "content", "value")
    elif name == "contentStart" and body.get("generationStage") == "SPECULATIVE":
        yield Text(None, "", "end", "user", SPOKEN)
    elif name == "contentStart" and body.get("role") == "USER":
        yield Text(None, "", "end", item=REPLY)
