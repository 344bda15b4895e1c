"""What is redacted: the choice of an operator (`--redact`), and what it means for a run of digits."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import NamedTuple

from voicemem.redaction.runs import Limit

Finder = Callable[[str], Iterable[tuple[int, int]]]
"""An operator's own: where, in one text, something stands that must not be kept."""
KEPT_DIGITS = {"cards": 6, "phone": 4, "otp": 2}
"""How many digits at the beginning of a run are kept; of several rules the strictest counts."""


class Rules(NamedTuple):
    """What is redacted."""

    limit: Limit | None = None
    """How much of a run of digits is kept; None: runs are not looked at."""
    email: bool = False
    finders: tuple[Finder, ...] = ()


def rules_of(names: Iterable[str], finders: Iterable[Finder] = ()) -> Rules:
    """The rules of these names, all of which are known, and of the operator's own finders."""
    chosen = frozenset(names)
    kept = [KEPT_DIGITS[name] for name in chosen if name in KEPT_DIGITS]
    limit = Limit(min(kept), "otp" in chosen) if kept else None
    return Rules(limit, "email" in chosen, tuple(finders))
