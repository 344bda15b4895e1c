"""Comparison of an event with a stored one: equal as JSON, or except for redacted text (docs/redaction.md)."""

from typing import Any

import msgspec

from voicemem.protocol.codec import JSON_DECODER

HIDDEN = "█"
"""Replaces one digit."""
HIDDEN_WORD = HIDDEN * 4
"""Replaces a word of any length, because the length would reveal something."""
HIDDEN_BYTES = HIDDEN.encode()


def is_redacted(payload: bytes) -> bool:
    return HIDDEN_BYTES in payload


def is_same_text(one: Any, other: Any) -> bool:
    """Return whether two values, one of them a text, may be the same text; a redacted number is a text."""
    if not (isinstance(one, str) and isinstance(other, str)):
        return HIDDEN in (one if isinstance(one, str) else other)
    words, others = one.split(), other.split()
    pairs = zip(words, others, strict=False)
    return one == other or (len(words) == len(others) and all(a == b or HIDDEN in a + b for a, b in pairs))


def is_same_value(one: Any, other: Any, redacted: bool = False) -> bool:
    """Return whether two values are equal as JSON, where 1.0 equals 1 but not true. Stops at the first difference.

    If one is `redacted`, return whether they may have the same original: redacted parts match anything. How much of a
    text was redacted depends on the text before it, which a resend does not repeat.
    """
    if redacted and (isinstance(one, str) or isinstance(other, str)):
        return is_same_text(one, other)
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() == other.keys():
            return all(is_same_value(value, other[key], redacted) for key, value in one.items())
        # Keys may be redacted too, so they are compared in order.
        return redacted and is_same_value([*one.items()], [*other.items()], redacted)
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        pairs = zip(one, other, strict=False)
        return len(one) == len(other) and all(is_same_value(a, b, redacted) for a, b in pairs)
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)


SORTED = msgspec.json.Encoder(order="sorted")
ROUTING_FIELDS = frozenset({"session_id", "producer"})


def is_same_event(one: bytes, other: bytes) -> bool:
    """Return whether two payloads are equal as JSON, except for `session_id` and `producer`, which only address them.

    A field that is null equals a missing one, as for the event; inside a field the two differ.
    """
    if one == other:
        return True
    first, second = event_values(one), event_values(other)
    # Equal events mostly have equal encodings, which are compared in C. The others differ soon, or in their numbers.
    if SORTED.encode(first) == SORTED.encode(second) or is_same_value(first, second):
        return True
    if (is_redacted(one) or is_redacted(other)) and is_same_value(first, second, redacted=True):
        return True
    return is_same_frame(first, second)


def is_same_frame(one: dict[str, Any], other: dict[str, Any]) -> bool:
    """Return whether two events are the same frame of another stack, reduced differently.

    Either it has an id, and a later version keeps more of it; or nothing was kept, because its whole was missing then.
    """
    if one.get("type") != "frame" or any(one.get(name) != other.get(name) for name in ("type", "dialect")):
        return False
    has_same_id = one.get("id") is not None and one.get("id") == other.get("id")
    return has_same_id or "frame" not in one or "frame" not in other


def event_values(payload: bytes) -> dict[str, Any]:
    values = JSON_DECODER.decode(payload)
    return {key: value for key, value in values.items() if value is not None and key not in ROUTING_FIELDS}
