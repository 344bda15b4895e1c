"""Texts that say the same, where one stack tells a reply twice: as it was generated, and as it was spoken."""

from __future__ import annotations

from typing import Any

import msgspec

MAX_NOTED = 11_000
"""Bytes of texts that a dialect keeps in its notes, which are small: the older ones go."""


def plain(text: str) -> str:
    return " ".join(text.split())


def begins(text: str, beginning: str) -> bool:
    """Whether a text begins so; white space counts as runs."""
    return plain(text).startswith(plain(beginning))


def completed(heard: str, full: str) -> str:
    """A text as it was heard, and what of the full text comes after it; only the first, where the full one is other."""
    return heard + plain(full)[len(plain(heard)) :] if begins(full, heard) else heard


def newest_noted(noted: list[Any], count: int) -> list[Any]:
    """The newest few of what is noted, as far as they fit; always the newest."""
    kept, size = noted[-count:], 0
    for place in range(len(kept) - 1, -1, -1):
        size += len(msgspec.json.encode(kept[place]))
        if size > MAX_NOTED:
            return kept[min(place + 1, len(kept) - 1) :]
    return kept
