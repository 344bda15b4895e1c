"""A stream and its producers: what a store keeps of a session besides its journal, and when the session is to close.

The rules are pure, and every store applies them in its transaction, so that all engines decide alike.
"""

from collections.abc import Callable
from typing import NamedTuple

import msgspec
from msgspec import Struct

from voicemem.config.session import Durations
from voicemem.protocol.types import JsonObject

SESSION_KIND, USER_KIND = "session", "user"
"""Kinds of streams; a user's is never closed."""
ERASED_USER_KIND = "erased user"
"""The kind of the row that remains of an erased user's stream."""
END_GRACE_MS = 2_000
"""How long after the first `session.end` a session waits for the last words of its other producers."""
EXPECTED_BACK_MS = 10_000
"""How long a producer without a connection is expected back: after its connection was lost, after it sent over HTTP,
and after the end of the node that it was connected to. An end waits for these producers, but never longer than the
grace."""
EARLIEST_MS = 10**11
"""A time in 1973: a number between 0 and this is no Unix time in ms."""
NAME_TAKEN = "A session of this name is running already."
IN_OVERVIEW = frozenset({"name", "user_id", "labels"})
"""The settings that a slim row repeats."""
MAX_OVERVIEW_TEXT, MAX_OVERVIEW_LABELS = 160, 2048
"""Characters of a text that a slim row repeats, and of all labels as JSON; longer labels are not shown."""


class SessionEnding(NamedTuple):
    ts: int
    reason: str
    provisional: bool = False
    """For an idle close: a producer that comes back reopens the session."""
    began_ms: int | None = None
    """When the call began, if its end says so: then both times are the session's."""


class ProducerState(Struct, gc=False):
    name: str
    epoch: int = 0
    next_seq: int = 1
    unsequenced: bool = False
    ended: bool = False
    node: str | None = None
    """The token of the node that it is connected to."""
    expected_until_ms: int | None = None
    """Until when it is expected back, while it is not connected."""


class Stream(Struct, gc=False):
    """The row of a stream. Times are Unix ms."""

    key: int
    project: str
    kind: str
    id: str
    state: str
    position: int
    started_ms: int
    ended_ms: int | None
    """None while it is running, unless its call has said when it ended."""
    reason: str | None
    config: JsonObject
    silent_since_ms: int | None
    """Since when no producer is connected to any node; None while one is."""
    ending_ms: int | None
    ending_ts: int | None
    ending_reason: str | None
    provisional: bool = False
    """True if it was closed for idleness, so that it may be reopened."""

    @property
    def ending(self) -> SessionEnding | None:
        """The first committed `session.end`; None before one was committed."""
        return None if self.ending_ts is None else SessionEnding(self.ending_ts, self.ending_reason or "ended")


class ClosedSession(NamedTuple):
    """A session that was just closed, its ending as journaled, and when that entry was made."""

    stream: Stream
    ending: SessionEnding
    received_ms: int


def overview_values(config: JsonObject) -> dict[str, str | None]:
    name, labels = config.get("name"), config.get("labels")
    encoded = None if labels is None else msgspec.json.encode(labels).decode()
    if encoded is not None and len(encoded) > MAX_OVERVIEW_LABELS:
        encoded = None
    shown = None if name is None else name[:MAX_OVERVIEW_TEXT]
    return {"name": shown, "user_id": config.get("user_id"), "labels": encoded}


def is_expected(producer: ProducerState, now_ms: int) -> bool:
    """Return whether a producer may still send events: it is connected, or expected back."""
    return producer.node is not None or (producer.expected_until_ms or 0) > now_ms


def close_due_ms(stream: Stream) -> int | None:
    """Return when to close a session if nothing more happens; None if it is not running, and for a user's stream."""
    if stream.state != "running" or stream.kind != SESSION_KIND:
        return None
    durations = msgspec.convert(stream.config, Durations)
    times = [stream.started_ms + int(durations.max_duration * 1000)]
    if stream.ending_ms is not None:
        times.append(stream.ending_ms + END_GRACE_MS)
    if stream.silent_since_ms is not None and durations.idle_timeout:
        times.append(stream.silent_since_ms + int(durations.idle_timeout * 1000))
    return min(times)


def ending_if_due(stream: Stream, now_ms: int) -> SessionEnding | None:
    """Return the ending with which a session is to be closed now; None when it is not due."""
    due = close_due_ms(stream)
    if due is None or due > now_ms:
        return None
    if stream.ending is not None:
        return stream.ending
    durations = msgspec.convert(stream.config, Durations)
    if stream.started_ms + int(durations.max_duration * 1000) <= now_ms:
        return SessionEnding(now_ms, "max_duration")
    return SessionEnding(now_ms, "idle", provisional=True)


def break_off(stream: Stream, now_ms: int, is_awaited: Callable[[int], bool]) -> int | None:
    """Note that all connections of a running session are lost; return when the session is then to be closed.

    A committed end waits for the producers that are expected back and have not ended (`is_awaited` of the key) as if
    it had just been committed; without any, it is due now.
    """
    stream.silent_since_ms = now_ms
    if stream.ending is not None:
        if not is_awaited(stream.key):
            return now_ms
        stream.ending_ms = now_ms
    return close_due_ms(stream)


def retention_times(stream: Stream, default_ttl_s: int) -> tuple[int, int | None]:
    """Return the times of a session that has just ended: when its journal is compacted, and when it expires, if ever.

    `default_ttl_s` is for sessions without `ttl_seconds`; 0: never.
    """
    durations = msgspec.convert(stream.config, Durations)
    ended = stream.ended_ms or 0
    ttl_s = durations.ttl_seconds if durations.ttl_seconds is not None else default_ttl_s or None
    expires = None if ttl_s is None else ended + int(ttl_s * 1000)
    return ended + int(durations.reopen_window * 1000), expires


def mark_erased(stream: Stream, now_ms: int) -> None:
    """Clear the row. It stays without content, so that a late event cannot create the session again."""
    stream.state, stream.config, stream.ended_ms, stream.reason = "erased", {}, now_ms, None
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    stream.provisional = False


def may_reopen(stream: Stream, now_ms: int) -> bool:
    """Return whether an event or an open reopens a session: after an idle close, within its `reopen_window`."""
    if stream.state != "ended" or not stream.provisional or stream.ended_ms is None:
        return False
    return now_ms < stream.ended_ms + int(msgspec.convert(stream.config, Durations).reopen_window * 1000)
