"""Types and limits that the whole protocol shares, and plain sentences for texts that do not match a pattern."""

import base64
import binascii
import re
from typing import Annotated, Any, TypeVar

import msgspec
from msgspec import UNSET, Meta, Struct, structs

from voicemem.errors import CODES, Refused

PATTERN_SENTENCES: dict[str, str] = {}
"""Our sentence for each of msgspec's, which show the pattern."""


def matching(pattern: str, sentence: str, **more: Any) -> Meta:
    """Return a constraint that a text matches `pattern`; `sentence` says so in plain words, without a full stop."""
    PATTERN_SENTENCES[f"Expected `str` matching regex {pattern!r}"] = sentence
    return Meta(pattern=pattern, **more)


MAX_INTEGER = 2**53
"""JSON readers of other languages are exact only for integers up to this one."""
MAX_TEXT_BYTES = 256 * 1024
MAX_FRAME_BYTES = 1024 * 1024
MAX_VALUES = 131_072
"""The most values in one frame or body, including nested ones: one per 8 bytes at the largest size."""
MAX_DEPTH = 32
SESSION_ID_PATTERN = r"^(?!\.\.?$)[A-Za-z0-9._:-]{1,128}\Z"
"""A session id is part of paths, from which clients remove the segments . and .. ."""
SESSION_ID_RULE = "1 to 128 characters of A-Za-z0-9._:-, but not . or .."
Integer = Annotated[int, Meta(ge=-MAX_INTEGER, le=MAX_INTEGER)]
Natural = Annotated[int, Meta(ge=0, le=MAX_INTEGER)]
SequenceNumber = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
TurnNumber = Annotated[int, Meta(ge=0)]
"""The number of an existing turn. It has no upper bound: calls continue after the highest number of a producer."""
SessionId = Annotated[str, matching(SESSION_ID_PATTERN, f"A session id is {SESSION_ID_RULE}")]
Name = Annotated[str, Meta(min_length=1, max_length=128)]
JsonObject = dict[str, Any]
Reason = Annotated[str, Meta(extra_json_schema={"enum": list(CODES)})]
"""The code of an error."""


SPACELESS = re.compile("[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff\u2e80-\u2fdf\u3000-\u312f\u3190-\u31bf\u31f0-\u9fff\uf900-\ufaff\uff00-\uff9f\uffe0-\uffef\U00020000-\U0003ffff]")  # fmt: skip  # noqa: E501
"""A character of a script without spaces: Thai, Lao, Burmese, Khmer, Chinese, Japanese."""


Place = TypeVar("Place")


def join_cursor(proof: bytes, place: bytes) -> str:
    """Return the cursor with this proof and this place, which hides neither."""
    return base64.urlsafe_b64encode(proof + place).decode().rstrip("=")


def split_cursor(cursor: str, proof_bytes: int) -> tuple[bytes, bytes]:
    """Return the proof and the place of a cursor, both unchecked. Raises `Refused` (`invalid_cursor`)."""
    try:
        raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
    except (binascii.Error, ValueError):
        raise Refused("invalid_cursor") from None
    return raw[:proof_bytes], raw[proof_bytes:]


def format_place(digest: bytes, place: Any) -> str:
    """Return the cursor of a place in the list with this digest."""
    return join_cursor(digest, msgspec.json.encode(place))


def parse_place(cursor: str, digest: bytes, kind: type[Place], detail: str | None = None) -> Place:
    """Return the place of a cursor. Raises `Refused` (`invalid_cursor`) unless it is from the list with this digest."""
    try:
        proof, place = split_cursor(cursor, len(digest))
        parsed = msgspec.json.decode(place, type=kind)
    except (Refused, ValueError):
        raise Refused("invalid_cursor", detail) from None
    if proof != digest:
        raise Refused("invalid_cursor", detail)
    return parsed


def fields_given(values: Struct) -> JsonObject:
    return {name: value for name, value in structs.asdict(values).items() if value is not UNSET}


def fields_of(kind: type[Struct], values: Struct) -> JsonObject:
    """Return the fields of a struct that `kind` has too."""
    return {name: getattr(values, name) for name in kind.__struct_fields__ if name in values.__struct_fields__}
