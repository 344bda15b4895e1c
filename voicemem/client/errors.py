"""Errors of a client. Each has a code and a sentence, from the server if it gave one.

The sets define how the client reacts to the server's codes and statuses.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

NOTHING: Mapping[str, Any] = MappingProxyType({})

# Try again later

TRANSIENT_CODES = frozenset(
    {"flood", "rate_limited", "quota_exceeded", "timeout", "too_many_connections"}
    | {"draining", "store_unavailable", "internal"}
)
"""Codes that are never a reason to give up, with any HTTP status or close code."""
TRANSIENT_STATUSES = frozenset({408, 429, 500, 502, 503, 504})
"""HTTP statuses that may change soon, even if a proxy sends them without a code."""

BUSY_CODES = frozenset({"flood", "rate_limited", "quota_exceeded", "store_unavailable", "too_many_connections"})
"""Codes of a server that is up but busy, so attempts become rarer."""

# Open again

LOST_STATE_CODES = frozenset({"not_open", "session_required"})
"""Codes for lost state: the server no longer knows what this connection opened, so only a new one helps."""

# Give up

PRODUCER_FATAL_CODES = frozenset({"superseded", "session_erased", "seq_required"})
"""Codes after which this producer can send nothing more into its session."""
REPLAY_FATAL_CODES = PRODUCER_FATAL_CODES | {"seq_conflict", "seq_gap", "session_ended"}
"""Codes after which a recording does not fit the session, so its rest is not sent."""
CLIENT_FATAL_CLOSES = frozenset({1003, 1007, 1008, 1009})
"""Websocket close codes after which the client must not connect again, unless the error is transient."""
CLIENT_FATAL_STATUSES = frozenset({401, 403})
"""HTTP statuses with the same meaning, once a producer has been opened."""


def is_transient(code: str, status: int | None) -> bool:
    """Return whether a refused request may succeed later. `status` is None for an error without one."""
    return code in TRANSIENT_CODES or status in TRANSIENT_STATUSES


def transient_error(address: str, code: str, status: int | None, detail: str) -> Unreachable:
    reason = f"HTTP status {status}: {detail}"
    return (Busy if code in BUSY_CODES or status == 429 else Unreachable)(f"{address}: {reason}", reason)


class ClientError(Exception):
    """The base of all client errors. `code` is one of the server's codes, or of the client's own."""

    def __init__(self, code: str, detail: str) -> None:
        self.code = code
        self.detail = detail
        super().__init__(f"{code}: {detail}")


class BufferFull(ClientError):
    """Too many events or bytes are unacknowledged, so this event was not accepted.

    Its seq stays free, unless the option `leaves_gaps` is set.
    """

    def __init__(self, events: int, size: int) -> None:
        super().__init__("buffer_full", f"{events} events of {size} bytes are not acknowledged yet.")


class EventRefused(ClientError):
    """One event was refused, and none of it is stored. `seq` is None if the client did not accept it."""

    def __init__(self, code: str, detail: str, seq: int | None = None) -> None:
        super().__init__(code, detail)
        self.seq = seq


class SessionEnded(EventRefused):
    """The session has ended, and accepts no new events."""


class SessionErased(EventRefused):
    """The session was erased; its id cannot be used again."""


class Superseded(ClientError):
    """Another process has opened this producer. Unacknowledged events may or may not be stored."""

    def __init__(self) -> None:
        super().__init__("superseded", "Another process has opened this producer.")


class RequestRefused(ClientError):
    """The server answered a request with an error. `status` is the HTTP status, None over a websocket."""

    def __init__(self, code: str, detail: str, status: int | None = None, problem: Mapping[str, Any] = NOTHING) -> None:
        super().__init__(code, detail)
        self.status = status
        self.problem = problem
        """The whole problem document of an HTTP answer, or nothing."""


class Unreachable(ClientError):
    """No answer came: the connection failed, or it timed out. The sentence names the address and the reason."""

    def __init__(self, detail: str, reason: str | None = None) -> None:
        super().__init__("unreachable", detail)
        self.reason = reason or detail
        """The sentence without the address."""


class Busy(Unreachable):
    """The server cannot serve this client for now; raised only inside the client."""


class TimedOut(ClientError, TimeoutError):
    """The caller's timeout has passed. The fate of the events is not known yet; they are still being sent."""

    def __init__(self, subject: str, timeout_s: float) -> None:
        super().__init__("timed_out", f"{subject} not acknowledged within {timeout_s:g} s, and may still be.")


class Closed(ClientError):
    """The client was closed. Events that were unacknowledged then may or may not be stored."""

    def __init__(self) -> None:
        super().__init__("closed", "The client is closed.")


class Unacknowledged(ClientError):
    """The client was closed before some events were acknowledged. `events` counts them by session id."""

    def __init__(self, events: dict[str, int]) -> None:
        super().__init__("unacknowledged", f"{sum(events.values())} events were not acknowledged in time.")
        self.events = events
