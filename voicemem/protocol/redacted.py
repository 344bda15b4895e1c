"""Stand-ins for redacted text, and events that are equal but for what was redacted in them (docs/redaction.md)."""

from typing import Any

HIDDEN = "█"
"""Stands for one digit."""
HIDDEN_WORD = HIDDEN * 4
"""Stands for a word, whatever its length, which would say something about it."""
HIDDEN_BYTES = HIDDEN.encode()


def is_redacted(payload: bytes) -> bool:
    return HIDDEN_BYTES in payload


def is_same_redacted(one: Any, other: Any) -> bool:
    """Return whether two values may come from one original: what is redacted in either of them stands for anything.

    How much of a text was redacted depends on what came before it, which a resend does not repeat.
    """
    if isinstance(one, str) and isinstance(other, str):
        words, others = one.split(), other.split()
        pairs = zip(words, others, strict=False)
        return one == other or (len(words) == len(others) and all(a == b or HIDDEN in a + b for a, b in pairs))
    if isinstance(one, dict) and isinstance(other, dict):
        if one.keys() == other.keys():
            return all(is_same_redacted(value, other[key]) for key, value in one.items())
        # Keys may be redacted too; then their order counts.
        return len(one) == len(other) and all(map(is_same_redacted, [*one.items()], [*other.items()]))
    if isinstance(one, list | tuple) and isinstance(other, list | tuple):
        return len(one) == len(other) and all(map(is_same_redacted, one, other))
    if isinstance(one, str) or isinstance(other, str):  # a number that was redacted is a text
        return HIDDEN in (one if isinstance(one, str) else other)
    return isinstance(one, bool) is isinstance(other, bool) and bool(one == other)
