"""How much a client keeps, and how it tries again."""

from __future__ import annotations

import random
from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class Options:
    """Times are in seconds. Delays before a new attempt have full jitter: between nothing and the delay."""

    max_events: int = 10_000
    """Unacknowledged events that each session may hold; one more raises `BufferFull`."""
    max_bytes: int = 8 * 1024 * 1024
    """The same in bytes, as they are sent."""
    first_delay_s: float = 0.5
    """Before the second attempt to connect; it doubles with each further one."""
    longest_delay_s: float = 20.0
    give_up_after_s: float | None = None
    """So long without any answer, the client fails with `Unreachable`; None goes on for ever."""
    fallback_after: int = 3
    """Failed attempts with the websocket after which events go over HTTP."""
    websocket_every_s: float = 30.0
    """How often the websocket is tried again meanwhile."""
    connect_timeout_s: float = 5.0
    ping_after_s: float = 10.0
    """How often the connection is asked whether it lives."""
    ping_timeout_s: float = 10.0
    """So long without anything heard after that, it is dead."""
    request_timeout_s: float = 15.0
    """For one HTTP request."""
    close_timeout_s: float = 5.0
    """How long `close` waits for acks."""
    read_attempts: int = 3
    """For reading, when the connection fails."""


class Backoff:
    """Delays between attempts: exponential, bounded, with full jitter."""

    def __init__(self, options: Options) -> None:
        self.first_s = options.first_delay_s
        self.longest_s = options.longest_delay_s
        self.attempts = 0

    def reset(self) -> None:
        self.attempts = 0

    def next_s(self) -> float:
        """How long to wait before the next attempt, in seconds."""
        ceiling = min(self.longest_s, self.first_s * 2.0 ** min(self.attempts, 60))
        self.attempts += 1
        return random.uniform(0, ceiling)  # noqa: S311 (spreads clients over time, hides nothing)
