"""Where texts stand in the kept data messages of Ultravox."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Literal

from voicemem.dialects.dialect import Text
from voicemem.protocol.types import JsonObject


def texts(frame: JsonObject) -> Iterator[Text]:
    """The texts of a message."""
    if "ordinal" in frame:
        side: Literal["user", "agent"] = "user" if frame["role"] == "user" else "agent"
        item = str(frame["ordinal"])
        if frame.get("text"):
            yield Text(frame, "text", "whole", side, item, frame.get("final", False))
        elif frame.get("delta"):
            yield Text(frame, "delta", "piece", side, item)
    elif frame.get("text"):
        yield Text(frame, "text", "whole", "user")
    for key in ("parameters", "result", "errorMessage"):
        if frame.get(key) is not None:
            yield Text(frame, key, "value")
