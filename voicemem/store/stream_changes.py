"""What happens to sessions, over the rows of any engine's transaction, so that all engines decide alike.

Appends of events are in `batch_append`; the rules that need no rows are in `streams`.
"""

from __future__ import annotations

from typing import Literal, Protocol

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import apply_patch
from voicemem.errors import Refused
from voicemem.protocol.strict_json import SORTED
from voicemem.protocol.types import JsonObject
from voicemem.store.batch_append import AppendRows, ServerEvents, declare_gap
from voicemem.store.records import OpenResult, RestoredSession
from voicemem.store.streams import (
    SESSION_KIND,
    ProducerState,
    SessionEnding,
    Stream,
    ending_if_due,
    is_expected,
    may_reopen,
)


class StreamRows(AppendRows, Protocol):
    """What these changes need of an engine's transaction, which sees what was changed before in it."""

    def stream(self, key: int) -> Stream | None:
        """The stream of a key, for the job to change; None when there is none."""

    def producer(self, key: int, name: str) -> ProducerState:
        """A session's producer, for the job to change; a new one when it is unknown."""

    def is_connected(self, key: int) -> bool:
        """Whether any producer of a session is connected to a node."""

    def names_not_ended(self, key: int) -> list[str]:
        """The producers of a session that have not committed their `session.end`."""

    def finish_close(self, stream: Stream, notice_id: str, now_ms: int) -> None:
        """What follows a close: producers' rows, the plan of retention, webhook events, and the name, which is free."""


# New streams


def new_stream(project: str, kind: str, name: str, config: JsonObject, now_ms: int) -> Stream:
    """A stream that starts now; it gets its key when it is added."""
    return Stream(
        key=0,
        project=project,
        kind=kind,
        id=name,
        state="running",
        position=0,
        started_ms=now_ms,
        ended_ms=None,
        reason=None,
        config=config,
        silent_since_ms=now_ms if kind == SESSION_KIND else None,
        ending_ms=None,
        ending_ts=None,
        ending_reason=None,
    )


def new_session(project: str, session_id: str, session_patch: SessionPatch, now_ms: int) -> Stream:
    """A session that starts now, with the settings of a patch."""
    return new_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)


def restored_session(
    project: str, session_id: str, session_patch: SessionPatch, restored: RestoredSession, now_ms: int
) -> Stream:
    """A session that stands where its restored journal ends."""
    stream = new_session(project, session_id, session_patch, now_ms)
    stream.started_ms, stream.position = restored.started_ms, len(restored.rows)
    if restored.ended_ms is not None:
        stream.state, stream.silent_since_ms = "ended", None
        stream.ended_ms, stream.reason, stream.provisional = restored.ended_ms, restored.reason, restored.provisional
    elif restored.ending is not None:
        stream.ending_ms, (stream.ending_ts, stream.ending_reason, _) = now_ms, restored.ending
    return stream


def source_of_secrets(rows: StreamRows, restored: RestoredSession) -> Stream | None:
    """The session whose secrets a restored one gets, if any. Raises `Refused` (`unknown_session`)."""
    if restored.secrets_of is None:
        return None
    source = rows.stream(restored.secrets_of)
    if source is None or source.state == "erased":
        raise Refused("unknown_session")
    return source


# Sessions that are there


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def compare(stream: Stream, secrets: dict[str, str], session_patch: SessionPatch) -> Literal["same", "different"]:
    """Whether a session was created as it is asked for again. Raises `Refused` (`session_erased`)."""
    refuse_erased(stream)
    new_secrets = {name: value for name, value in session_patch.secrets.items() if value is not None}
    new = [apply_patch({}, session_patch.public), new_secrets]
    same = SORTED.encode([stream.config, secrets]) == SORTED.encode(new)  # as JSON: in Python 1 == True
    return "same" if same else "different"


def connect(
    rows: StreamRows, stream: Stream, created: bool, producer: str, node: str, from_seq: int | None, now_ms: int
) -> OpenResult:
    """Connect a producer to a node, under its next epoch. Raises `Refused` (`session_erased`)."""
    refuse_erased(stream)
    reopened = may_reopen(stream, now_ms)
    if reopened:
        rows.reopen(stream, now_ms)
    lease = rows.producer(stream.key, producer)
    lease.epoch += 1
    lease.node, lease.expected_until_ms = node, None
    if from_seq is not None and from_seq > lease.next_seq and stream.state == "running":
        declare_gap(rows, stream, lease, from_seq, now_ms)
    if stream.state == "running":
        stream.silent_since_ms = None
    rows.save_producer(stream.key, lease)
    rows.save_stream(stream)
    return OpenResult(stream, lease.epoch, lease.next_seq, created, reopened)


def disconnect(
    rows: StreamRows, key: int, producer: str, epoch: int, expected_until_ms: int | None, now_ms: int
) -> Stream | None:
    """Disconnect a producer, unless it has come back since; see `voicemem.store.port.Journal.leave`."""
    stream = rows.stream(key)
    if stream is None or stream.state == "erased":
        return None
    lease = rows.producer(key, producer)
    if lease.epoch != epoch or lease.node is None:
        return None
    lease.node, lease.expected_until_ms = None, expected_until_ms
    rows.save_producer(key, lease)
    if stream.state == "running" and not rows.is_connected(key):
        stream.silent_since_ms = now_ms
        rows.save_stream(stream)
    return stream


def change_config(rows: StreamRows, key: int, session_patch: SessionPatch, payload: bytes, now_ms: int) -> Stream:
    """Merge a patch, and journal it. Raises `Refused` (`unknown_session`, `session_ended`)."""
    stream = find(rows, key)
    if stream.state == "ended":
        raise Refused("session_ended")
    rows.apply_patch(stream, session_patch, now_ms)
    return journal(rows, stream, payload, now_ms)


def append_expected(rows: StreamRows, key: int, payload: bytes, expected: int, now_ms: int) -> Stream | None:
    """Journal an event of the server's own, if the journal ends where it should. Raises `Refused`."""
    stream = find(rows, key)
    return journal(rows, stream, payload, now_ms) if stream.position == expected else None


def find(rows: StreamRows, key: int) -> Stream:
    """A stream that is not erased. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(key)
    if stream is None or stream.state == "erased":
        raise Refused("unknown_session")
    return stream


def journal(rows: StreamRows, stream: Stream, payload: bytes, now_ms: int) -> Stream:
    rows.append_server_event(stream, now_ms, payload)
    rows.save_stream(stream)
    return stream


def reopen(rows: ServerEvents, stream: Stream, now_ms: int) -> None:
    """Undo an idle close, as far as the journal and the stream go. The caller saves the stream's row."""
    rows.append_server_event(stream, now_ms, {"type": "session.reopened", "ts": now_ms})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "running", None, None, False
    stream.silent_since_ms = now_ms


# The close


def close_if_due(
    rows: StreamRows, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool
) -> Stream | None:
    """Close a running session with an ending, or with the one that is due; see `Journal.close_session`."""
    stream = rows.stream(key)
    if stream is None or stream.state != "running" or (if_silent and stream.silent_since_ms is None):
        return None
    return close(rows, stream, ending or ending_if_due(stream, now_ms), notice_id, now_ms)


def close_if_complete(rows: StreamRows, key: int, notice_id: str, now_ms: int) -> Stream | None:
    """Close a running session whose producers have all ended; see `Journal.close_ended`."""
    stream = rows.stream(key)
    return None if stream is None or stream.state != "running" else close(rows, stream, None, notice_id, now_ms)


def close(rows: StreamRows, stream: Stream, ending: SessionEnding | None, notice_id: str, now_ms: int) -> Stream | None:
    """Close a session with an ending, or else with the committed one if nothing more is expected."""
    ending = ending or ending_if_complete(rows, stream, now_ms)
    if ending is None:
        return None
    event = {"type": "session.closed", "ts": ending.ts, "reason": ending.reason}
    rows.append_server_event(stream, now_ms, event)
    stream.state, stream.ended_ms = "ended", now_ms
    stream.reason, stream.provisional = ending.reason, ending.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    rows.save_stream(stream)
    rows.finish_close(stream, notice_id, now_ms)
    return stream


def ending_if_complete(rows: StreamRows, stream: Stream, now_ms: int) -> SessionEnding | None:
    """The committed end of a session for whose producers nothing more is expected; otherwise None."""
    if stream.ending is None:
        return None
    awaited = any(is_expected(rows.producer(stream.key, name), now_ms) for name in rows.names_not_ended(stream.key))
    return None if awaited else stream.ending
