"""How far memories were made of a session, as its statistics show it."""

from __future__ import annotations

from typing import Literal

from msgspec import Struct

StateName = Literal["current", "waiting", "running", "failing", "out_of_budget", "finished"]


class ExtractionState(Struct, frozen=True):
    """How far memories were made of a session. `finished`: it has had all the LLM requests that it may have.

    `through` is the position of the journal up to which its messages were sent, in `calls` requests.
    """

    state: StateName
    through: int
    calls: int
    failures: int = 0
    """Failed attempts since the last success."""
    error: str | None = None
