"""Types and limits that all parts of the protocol share, and plain sentences for texts that break a pattern."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from voicemem.errors import CODES

PATTERN_SENTENCES: dict[str, str] = {}
"""Our sentence for each of msgspec's, which would show the pattern."""


def matching(pattern: str, sentence: str, **more: Any) -> Meta:
    """A constraint that a text matches `pattern`; `sentence` says so in plain words, without a full stop."""
    PATTERN_SENTENCES[f"Expected `str` matching regex {pattern!r}"] = sentence
    return Meta(pattern=pattern, **more)


MAX_INTEGER = 2**53
"""Other languages' JSON readers hold integers exactly only up to here."""
MAX_TEXT_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024
MAX_VALUES = 131_072
"""Of one frame or body, the values inside arrays and objects included. At the largest size each may have 8 bytes."""
MAX_DEPTH = 32
SESSION_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}\Z"
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
SequenceNumber = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
TurnNumber = Annotated[int, Meta(ge=0)]
"""The number of an existing turn. Without an upper bound: after the highest that a producer may give, calls go on."""
SessionId = Annotated[str, matching(SESSION_ID_PATTERN, "A session id is 1 to 128 characters of A-Za-z0-9._:-")]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
JsonObject = dict[str, Any]
Reason = Annotated[str, Meta(extra_json_schema={"enum": list(CODES)})]
"""The code of an error."""
