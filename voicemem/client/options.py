"""Options of a client, and its delays between attempts."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass

from voicemem.backoff import exponential_s, spread


@dataclass(frozen=True, kw_only=True)
class Options:
    """How much a client buffers, and how it retries. Times are in seconds.

    Delays between attempts have full jitter: each is a random time between zero and the delay given here.
    """

    max_events: int = 10_000
    """Unacknowledged events that each session may hold; one more raises `BufferFull`."""
    max_bytes: int = 8 * 1024 * 1024
    """The same limit in bytes, as the events are sent."""
    first_delay_s: float = 0.5
    """Delay before the second attempt to connect; it doubles with each further attempt."""
    longest_delay_s: float = 20.0
    """Upper bound of that delay."""
    give_up_after_s: float | None = None
    """After this long without any answer the client fails with `Unreachable`; None means never."""
    fallback_after: int = 3
    """Failed websocket attempts after which events go over HTTP."""
    websocket_every_s: float = 30.0
    """How often the websocket is tried again meanwhile."""
    connect_timeout_s: float = 5.0
    """For one attempt to connect."""
    ping_after_s: float = 10.0
    """How often the client checks that the connection is alive."""
    ping_timeout_s: float = 10.0
    """After this long without anything from the server, the connection counts as dead."""
    request_timeout_s: float = 15.0
    """For one HTTP request."""
    close_timeout_s: float = 5.0
    """How long `close` waits for acks."""
    read_attempts: int = 3
    """Attempts to read when the connection fails."""


class Backoff:
    """Delays between attempts: exponential, bounded, with full jitter."""

    def __init__(self, options: Options, random: Callable[[], float] = random.random) -> None:
        self.first_s = options.first_delay_s
        self.longest_s = options.longest_delay_s
        self.random = random
        self.attempts = 0

    def reset(self) -> None:
        """Start again with the first delay."""
        self.attempts = 0

    def next_s(self) -> float:
        """How long to wait before the next attempt, in seconds."""
        ceiling_s = exponential_s(self.attempts, self.first_s, self.longest_s)
        self.attempts += 1
        return spread(ceiling_s, self.random(), 0, 1)
