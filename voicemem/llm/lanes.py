"""How many LLM requests may be under way in the background: an LLM that hangs must not hold up the others."""

from __future__ import annotations

from collections import Counter

from voicemem.config.session import parse_config
from voicemem.store.streams import Stream

MAX_RUNNING_JOBS, MAX_JOBS_PER_LANE = 256, 8
"""LLM requests at a time: in all, and from one project to one URL."""
Lane = tuple[str, str | None]
"""Project and URL of a session's LLM: what shares a bound on concurrent requests."""


class Lanes:
    """Counts what is under way, whatever it is for: summaries and memories share these bounds."""

    def __init__(self) -> None:
        self.running: Counter[Lane] = Counter()

    def is_busy(self, stream: Stream) -> bool:
        """Whether this session's LLM, or all of them, have enough requests."""
        return self.running.total() >= MAX_RUNNING_JOBS or self.running[lane_of(stream)] >= MAX_JOBS_PER_LANE

    def enter(self, stream: Stream) -> Lane:
        """Begin work on a session; what is returned goes to `leave`."""
        lane = lane_of(stream)
        self.running[lane] += 1
        return lane

    def leave(self, lane: Lane) -> None:
        self.running[lane] -= 1
        if not self.running[lane]:
            del self.running[lane]


def lane_of(stream: Stream) -> Lane:
    return stream.project, parse_config(stream.config).llm.url
