"""Texts that say the same, where one stack tells a reply twice: as it was generated, and as it was spoken."""

from __future__ import annotations


def plain(text: str) -> str:
    return " ".join(text.split())


def begins(text: str, beginning: str) -> bool:
    """Whether a text begins so; white space counts as runs."""
    return plain(text).startswith(plain(beginning))


def completed(heard: str, full: str) -> str:
    """A text as it was heard, and what of the full text comes after it; only the first, where the full one is other."""
    return heard + plain(full)[len(plain(heard)) :] if begins(full, heard) else heard
