"""What must hold for the life of a session on several nodes: who is connected anywhere keeps it open, and no one else.

A connection counts as alive at a moment if it was opened before it and a frame came over it after it.
"""

from __future__ import annotations

import math
import os
from collections.abc import Iterator, Sequence
from typing import Any

from msgspec import Struct

from bench.crash.checker import Call, Final, Line, Stay
from voicemem.store.streams import END_GRACE_MS

JsonObject = dict[str, Any]
MARGIN_MS = 500
"""How far clocks and this process may be behind."""
SLACK_MS = 2_000
"""How late a session may be closed on a machine that has a core for each process that runs."""


class Trouble(Struct):
    """A time (Unix ms) in which a server, or all (""), may rightly count as dead."""

    server: str
    begin_ms: float
    end_ms: float = math.inf


class Life:
    """One session, and what troubled the nodes meanwhile."""

    def __init__(self, call: Call, final: Final, troubles: Sequence[Trouble], lease_ms: int) -> None:
        self.call = call
        self.final = final
        self.troubles = troubles
        self.lease_ms = lease_ms

    def check(self) -> Iterator[str]:
        ended: dict[str, int] = {}
        """By producer: when its `session.end` was stored, since the last reopening."""
        closed = None
        for row in self.final.rows:
            match row["event"]["type"]:
                case "session.end":
                    ended.setdefault(row["producer"], row["received_ms"])
                case "session.reopened":
                    ended.clear()
                case "session.closed":
                    yield from self.check_close(row, ended)
                    closed = row
        if closed is not None and closed["event"]["reason"] == "idle":
            yield from self.check_silence(closed["received_ms"])

    def check_close(self, closed: JsonObject, ended: dict[str, int]) -> Iterator[str]:
        """Check that no one was connected whose events could still come."""
        at, idle = closed["received_ms"], closed["event"]["reason"] == "idle"
        if not idle and (not ended or at > min(ended.values()) + END_GRACE_MS - MARGIN_MS):
            return  # over REST, or after the grace
        for name, line in self.call.lines.items():
            server = self.connected_to(line, at)
            if server is not None and (idle or name not in ended):
                how = "as idle" if idle else "before its last words"
                yield f"position {closed['position']} closes it {how} at {at} while {name} was connected: {server}"

    def check_silence(self, closed_ms: int) -> Iterator[str]:
        """Check that a session does not stay open that its producers have left."""
        left = self.call.contact_ms
        allowed = self.call.config["idle_timeout"] * 1000 + self.lease_ms + slack_ms() + self.troubled_ms(left)
        if left and closed_ms > left + allowed:
            yield f"it was closed {closed_ms - left} ms after its last producer had gone, allowed were {allowed}"

    def connected_to(self, line: Line, at: int) -> str | None:
        """The connection that a producer had at a moment, as far as that is certain."""
        return next((str(stay) for stay in line.stays if self.lasted(stay, at)), None)

    def lasted(self, stay: Stay, at: int) -> bool:
        if not stay.begin_ms + MARGIN_MS <= at <= stay.heard_ms - MARGIN_MS:
            return False
        return not any(
            trouble.server in ("", stay.server) and trouble.begin_ms <= at and trouble.end_ms >= stay.begin_ms
            for trouble in self.troubles
        )

    def troubled_ms(self, since_ms: int) -> float:
        """How long the nodes were in trouble after a moment, all together."""
        return sum(max(0.0, trouble.end_ms - max(trouble.begin_ms, since_ms)) for trouble in self.troubles)


def slack_ms() -> float:
    """How late a session may be closed here and now: everything waits for everything else that runs."""
    return SLACK_MS * max(1.0, max(os.getloadavg()) / (os.cpu_count() or 1))
