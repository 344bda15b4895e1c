"""Where texts stand in the kept frames of ConversationRelay."""

from __future__ import annotations

from voicemem.dialects.dialect import Text, Texts
from voicemem.protocol.types import JsonObject

REPLY = "reply"
"""Tokens have no names: they are those of the reply under way."""
OVER = Text(None, "", "end", item=REPLY)


def texts(frame: JsonObject) -> Texts:
    """The texts of a frame."""
    match frame["type"]:
        case "prompt":
            final = frame.get("last", True)
            said = Text(frame, "voicePrompt", "whole", "user", final=final)
            return (said, OVER) if final else (said,)
        case "dtmf":
            return (Text(frame, "digit", "whole", "user"), OVER)
        case "text":
            token = Text(frame, "token", "piece", item=REPLY)
            return (token, OVER) if frame.get("last", False) else (token,)
        case "interrupt" if frame.get("utteranceUntilInterrupt"):
            return (Text(frame, "utteranceUntilInterrupt", "whole", final=False),)
    return ()
