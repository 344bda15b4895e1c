"""What people say is not to break, hide or reorder what stands around it."""

from __future__ import annotations

import re

REORDERING = "\u202a-\u202e\u2066-\u2069"
"""Embeddings, overrides and isolates of bidirectional text: an open one reorders what follows. Marks are kept."""
HIDDEN = re.compile(f"[\x00-\x08\x0e-\x1f\x7f-\x84\x86-\x9f{REORDERING}\ufeff]")
"""These, and control characters that are no white space."""


def one_line(text: str) -> str:
    """The text on one line, without control characters, and without those that reorder text."""
    return " ".join(without_hidden(text).split())


def without_hidden(text: str) -> str:
    """The text without these characters; its lines stay."""
    return HIDDEN.sub("", text)
