"""Texts of a certain form: the pattern that they match, and the sentence for one that does not."""

from __future__ import annotations

from typing import Annotated, Any

from msgspec import Meta

from voicemem.errors import CODES

PATTERN_SENTENCES: dict[str, str] = {}
"""Our sentences by msgspec's, which show the pattern."""


def matching(pattern: str, sentence: str, **more: Any) -> Meta:
    """What a text must match; `sentence` says so in plain words, without a full stop."""
    PATTERN_SENTENCES[f"Expected `str` matching regex {pattern!r}"] = sentence
    return Meta(pattern=pattern, **more)


MAX_INTEGER = 2**53
"""JSON readers in other languages hold integers exactly only up to here."""
MAX_TEXT_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024
MAX_DEPTH = 32
SESSION_ID_PATTERN = r"^[A-Za-z0-9._:-]{1,128}\Z"
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
SequenceNumber = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
TurnNumber = Annotated[int, Meta(ge=0)]
"""Of a turn that there is: after the highest number that a producer can give, the call still goes on."""
SessionId = Annotated[str, matching(SESSION_ID_PATTERN, "A session id is 1 to 128 characters of A-Za-z0-9._:-")]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
JsonObject = dict[str, Any]
Reason = Annotated[str, Meta(extra_json_schema={"enum": list(CODES)})]
"""The code of an error."""
