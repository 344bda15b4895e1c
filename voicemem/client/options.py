"""Options of a client, a buffer limit that several sessions share, and delays between attempts."""

import random
import threading
from collections.abc import Callable
from dataclasses import dataclass

from voicemem.backoff import exponential_s, spread
from voicemem.client.errors import ClientError

OnDropped = Callable[[str, str, ClientError], object]
"""Gets the session id, the producer's name and the error of an event that `send` could not accept."""


class Room:
    """A limit of the bytes of unacknowledged events that several sessions share, even of several clients.

    May be used from any thread. Raises `ValueError` for a limit below 1.
    """

    def __init__(self, max_bytes: int) -> None:
        if max_bytes < 1:
            raise ValueError("max_bytes must be at least 1")
        self.max_bytes = max_bytes
        self.used = 0
        self.lock = threading.Lock()

    def take(self, size: int, ignore_limit: bool = False) -> bool:
        """Reserve a number of bytes. Return whether they fit the limit."""
        with self.lock:
            if self.used + size > self.max_bytes and not ignore_limit:
                return False
            self.used += size
            return True

    def give_back(self, size: int) -> None:
        with self.lock:
            self.used -= size


@dataclass(frozen=True, kw_only=True)
class Options:
    """Settings of a client: how much it buffers, and how it retries. Times are in seconds.

    Delays between attempts have full jitter: each is random, between zero and the delay set here. Raises `ValueError`
    for a number of events, bytes or attempts below 1.
    """

    max_events: int = 10_000
    """The most unacknowledged events of each session; further ones are not accepted (`BufferFull`)."""
    max_bytes: int = 8 * 1024 * 1024
    """The most bytes of unacknowledged events, as encoded."""
    room: Room | None = None
    """A byte limit shared with other sessions and clients; events beyond it are not accepted either."""
    leaves_gaps: bool = False
    """True if an event beyond a limit uses up its seq: the journal then shows the gap as `session.gap`.
    Not for programs that send such events again."""
    first_delay_s: float = 0.5
    """Delay before the second attempt to connect; it doubles with each further attempt."""
    longest_delay_s: float = 20.0
    """Upper bound of that delay while the server answers that it is busy."""
    away_delay_s: float = 1.0
    """Upper bound of that delay while the server cannot be reached."""
    give_up_after_s: float | None = None
    """After this long without any answer the client fails with `Unreachable`; None means never."""
    fallback_after: int = 3
    """Failed websocket attempts after which events go over HTTP."""
    websocket_every_s: float = 30.0
    """How often the websocket is tried again while something in between blocks it."""
    open_timeout_s: float | None = 3.0
    """How long `open` waits in all; None means forever."""
    context_timeout_s: float = 1.0
    """The most time of `context` in all: connecting, TLS, every attempt."""
    read_timeout_s: float = 3.0
    """The most time of `history` and `turns` in all."""
    read_attempts: int = 2
    """Attempts to read within that time."""
    connect_timeout_s: float = 5.0
    """The most time of one attempt to connect."""
    ping_after_s: float = 10.0
    """How often the client checks that the connection is alive."""
    ping_timeout_s: float = 10.0
    """After this long without anything from the server, the connection counts as dead."""
    request_timeout_s: float = 15.0
    """The most time of one HTTP request that sends events."""
    close_timeout_s: float = 5.0
    """How long `close` waits for acks; closing the connections takes at most 2 s more."""
    on_dropped: OnDropped | None = None
    """Called for each event that `send` could not accept, in the sending thread; it must be quick."""

    def __post_init__(self) -> None:
        for name in ("max_events", "max_bytes", "read_attempts"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} must be at least 1")


class Backoff:
    """Delays between attempts: exponential, bounded, with full jitter."""

    def __init__(self, options: Options, random: Callable[[], float] = random.random) -> None:
        self.options = options
        self.random = random
        self.attempts = 0

    def reset(self) -> None:
        self.attempts = 0

    def next_s(self, longest_s: float | None = None) -> float:
        """Return the delay before the next attempt, in seconds. `longest_s` lowers the upper bound."""
        ceiling_s = exponential_s(self.attempts, self.options.first_delay_s, self.options.longest_delay_s)
        ceiling_s = ceiling_s if longest_s is None else min(ceiling_s, longest_s)
        self.attempts += 1
        return spread(ceiling_s, self.random(), 0, 1)
