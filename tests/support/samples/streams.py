"""Streams as a store keeps them."""

from __future__ import annotations

from typing import Any

from voicemem.store.streams import Stream

START = 1_000_000


def stream(**changes: Any) -> Stream:
    """A running session that began at START and has a connection."""
    fields: dict[str, Any] = {
        "key": 1,
        "project": "p",
        "kind": "session",
        "id": "s",
        "state": "running",
        "position": 0,
        "started_ms": START,
        "ended_ms": None,
        "reason": None,
        "config": {},
        "silent_since_ms": None,
        "ending_ms": None,
        "ending_ts": None,
        "ending_reason": None,
    }
    return Stream(**fields | changes)
