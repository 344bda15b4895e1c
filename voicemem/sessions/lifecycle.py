"""The life cycle of sessions: they are created, listed, changed, ended and erased here.

Presence tells the store which producers are connected to this node, and closes the sessions that are over. The store
knows the producers that are connected to any node or expected back, and decides what that means for a session.
"""

import asyncio
import builtins
import hmac
import logging
import re
from collections import Counter
from collections.abc import Awaitable, Callable
from typing import Annotated, Any, NamedTuple

import msgspec
from msgspec import Meta, Struct

from voicemem.config.session import SessionPatch, different_settings, validate_config, warnings_about
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject, SessionId, fields_of, join_cursor, matching, split_cursor
from voicemem.redaction.texts import Rules
from voicemem.runtime import Runtime
from voicemem.security.caller_ids import Callers
from voicemem.sessions.recording.batches import DEFAULT_END_REASON, ProducerLease
from voicemem.sessions.recording.commits import log_session
from voicemem.sessions.recording.redaction import redact_rows
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.port import Store
from voicemem.store.quarantine import QuarantineEntry
from voicemem.store.records import DisconnectedProducer, RestoredSession, SessionOverview
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import EXPECTED_BACK_MS, ClosedSession, SessionEnding, Stream
from voicemem.transcript.fold import CLOSED

LOG = logging.getLogger("voicemem")
CLOSED_BY_REQUEST = "api"
"""The reason of a close over REST that gives none."""
OWN_REASONS = frozenset({CLOSED_BY_REQUEST, "api_leave", DEFAULT_END_REASON, "idle", "max_duration", CLOSED})
"""Reasons of a close that are the service's own words. Any other is a client's text, which is not logged."""
SIGNATURE_BYTES = 16
DIFFERENT = "The session already exists, with a different configuration; what differs"
SWEEP_BATCH = 200
LEFT_MS = 5_000
"""How long another stack's connection may be gone before its session is closed: nothing else ends the call."""
DISCONNECTIONS_AT_ONCE, DISCONNECTIONS_PAUSE_S = 50, 0.01
"""Disconnections that are written in one commit, and how long fewer wait for more: of a thousand lost connections a few
are noticed in each iteration of the event loop, and acks would wait for hundreds of commits."""
CLOSES_AT_ONCE = 8
"""Ended sessions that are closed at a time: a close takes longer than an append, and when hundreds of calls end
together, the acks of the others would wait for all of them."""
SWEEP_S = 0.2


class Sessions:
    """Creates, lists, changes, ends and erases sessions.

    `check_settings` raises `Refused` for a configuration that this service does not allow. `note_closed` is called with
    each session that this process has closed.
    """

    def __init__(
        self,
        store: Store,
        runtime: Runtime,
        check_settings: Callable[[SessionPatch], None],
        note_closed: Callable[[ClosedSession], None] = lambda closed: None,
        rules: Rules | None = None,
        callers: Callers | None = None,
    ) -> None:
        """`rules` say what is redacted in restored journals; without `callers`, frames identify no user."""
        self.rules = rules
        self.store = store
        self.callers = callers or Callers(store, runtime.clock)
        self.clock = runtime.clock
        self.new_id = runtime.new_id
        self.check_settings = check_settings
        self.note_closed = note_closed
        self.webhooks_due = asyncio.Event()
        """Set at every start and close, when there may be webhook events to send."""
        self.user_listeners: builtins.list[Callable[[Stream], Awaitable[None]]] = []
        """Called with each session that was given a user; the change is answered once they are done."""
        self.close_collectors: builtins.list[dict[int, Stream]] = []
        """Each gets every closed session, by key; its owner takes them out when it has time."""
        self.change_listeners: builtins.list[Callable[[Stream], None]] = []
        """Called with each session that was restored, or whose configuration was changed; they must be fast."""
        self.list_listeners: builtins.list[Callable[[Stream], None]] = []
        """Called with each session whose row in a list may have changed: those, and started, closed or erased ones."""

    # Reading

    async def list(self, session_filter: SessionFilter, cursor: str | None) -> tuple[list[Stream], str | None]:
        """Return a page of sessions, newest first, and the next page's cursor. Raises `Refused` (`invalid_cursor`)."""
        after = None if cursor is None else self.parse_cursor(session_filter.project, cursor)
        page, has_more = await self.store.journal.list_page(msgspec.structs.replace(session_filter, after=after))
        last = (page[-1].started_ms, page[-1].key) if has_more else None
        return page, None if last is None else self.format_cursor(session_filter.project, last)

    async def list_overviews(
        self, session_filter: SessionFilter, cursor: str | None
    ) -> tuple[builtins.list[SessionOverview], str | None]:
        """Return a page of slim rows; it is shorter than requested if too many sessions had to be checked."""
        place = None if cursor is None else self.parse_cursor(session_filter.project, cursor)
        page, after = await self.store.overviews.list_overviews(msgspec.structs.replace(session_filter, after=place))
        return page, None if after is None else self.format_cursor(session_filter.project, after)

    def format_cursor(self, project: str, last: tuple[int, int]) -> str:
        body = msgspec.json.encode(last)
        return join_cursor(self.sign_cursor(project, body), body)

    def parse_cursor(self, project: str, cursor: str) -> tuple[int, int]:
        signature, body = split_cursor(cursor, SIGNATURE_BYTES)
        if not hmac.compare_digest(signature, self.sign_cursor(project, body)):
            raise Refused("invalid_cursor")
        return msgspec.json.decode(body, type=tuple[int, int])

    def sign_cursor(self, project: str, body: bytes) -> bytes:
        """Return the signature of a cursor, which is valid for one project and one incarnation of the store."""
        scope = f"{self.store.directory.incarnation}\0{project}\0".encode()
        return hmac.digest(self.store.directory.cursor_secret, scope + body, "sha256")[:SIGNATURE_BYTES]

    # Changing

    async def create(
        self,
        project: str,
        session_id: str | None,
        config: JsonObject,
        key_id: str | None = None,
        takes_name: bool = False,
    ) -> tuple[Stream, bool]:
        """Create a session, or return the existing one if its configuration is the same; and whether it is new.

        Raises `Refused` (`invalid_field`, `session_erased`, and `session_exists` if its configuration is different, or
        if it `takes_name` and a running session has that name).
        """
        session_patch = validate_config(config)
        self.check_settings(session_patch)
        await SCHEMA_WORKER.check_config(session_patch.public)
        stream, result = await self.store.journal.create_session(
            project, session_id or self.new_id(), session_patch, self.clock(), key_id, takes_name
        )
        if result == "different":
            raise Refused("session_exists", f"{DIFFERENT}: {different_settings(stream.config, session_patch.public)}.")
        if result == "created":
            log_session("opened", stream.project, stream.id)
            self.webhooks_due.set()
            self.on_listed(stream)
        return stream, result == "created"

    async def find_or_create(
        self, project: str, session_id: str, user_id: str | None, key_id: str | None = None
    ) -> Stream:
        """Return a session or a new one; set its user if it has none.

        Raises `Refused` (`session_erased`, `quota_exceeded`).
        """
        stream = await self.store.journal.find_session(project, session_id)
        if stream is not None:
            return stream if user_id is None else await self.set_first_user(stream, user_id)
        try:
            return (await self.create(project, session_id, {} if user_id is None else {"user_id": user_id}, key_id))[0]
        except Refused as refused:
            if refused.code != "session_exists":  # another request began it just now
                raise
            return await self.store.journal.get_session(project, session_id)

    async def restore(
        self,
        project: str,
        session_id: str | None,
        session_patch: SessionPatch,
        restored: RestoredSession,
        key_id: str | None = None,
    ) -> Stream:
        """Create a session with a journal. Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`)."""
        self.check_settings(session_patch)
        if self.rules is not None:
            rows = await asyncio.to_thread(redact_rows, restored.rows, self.rules)
            restored = msgspec.structs.replace(restored, rows=rows)
        stream = await self.store.journal.restore_session(
            project, session_id or self.new_id(), session_patch, restored, self.clock(), key_id
        )
        if stream is None:
            raise Refused("session_exists", "A session with this id exists already.")
        log_session("opened", stream.project, stream.id)
        self.webhooks_due.set()
        self.on_changed(stream)
        return stream

    async def change(self, stream: Stream, patch: JsonObject, is_first_user: bool = False) -> Stream:
        """Merge a patch into the configuration; memories of a session that gets a user are the user's from then on.

        `is_first_user` is as in `Journal.change_config`. Raises `Refused` (`invalid_field`, and as there).
        """
        session_patch = validate_config(patch)
        self.check_settings(session_patch)
        await SCHEMA_WORKER.check_config(session_patch.public)
        payload = msgspec.json.encode({"type": "session.update", **session_patch.public})
        changed = await self.store.journal.change_config(
            stream.key,
            session_patch,
            payload,
            self.clock(),
            after_end=stream.state == "ended",
            is_first_user=is_first_user,
        )
        self.on_changed(changed)
        if changed.config.get("user_id") is not None and "user_id" in patch:
            for listener in self.user_listeners:
                await listener(changed)
        return changed

    async def set_first_user(self, stream: Stream, user_id: str) -> Stream:
        """Set the user of a session that has none; a session that cannot be changed stays as it is."""
        if stream.config.get("user_id") is not None:
            return stream
        try:
            return await self.change(stream, {"user_id": user_id}, is_first_user=True)
        except Refused as refused:  # recording the call matters more than naming its user
            LOG.warning("A session's user was not set: %s", refused.detail, extra={"project": stream.project})
            return stream

    async def identify(self, lease: ProducerLease) -> None:
        """Set the user of a session from what its sender's frames have said about the caller."""
        caller = lease.sender.caller
        user = None if caller is None else await self.callers.user_of(lease.project, lease.sender.dialect, caller)
        stream = None if user is None else await self.store.journal.find_session(lease.project, lease.session_id)
        if stream is not None and user is not None:
            await self.set_first_user(stream, user)

    def on_changed(self, stream: Stream) -> None:
        """Report that the service has journaled something in a session itself, other than its close."""
        for listener in self.change_listeners:
            listener(stream)
        self.on_listed(stream)

    def on_listed(self, stream: Stream) -> None:
        for listener in self.list_listeners:
            listener(stream)

    async def end(self, stream: Stream, reason: str | None) -> Stream:
        """End and close a session at once; one that has ended stays as it is."""
        now = self.clock()
        closed = await self.close(stream.key, SessionEnding(now, reason or CLOSED_BY_REQUEST), now)
        return closed or await self.store.journal.get_session(stream.project, stream.id)

    async def close(
        self, key: int, ending: SessionEnding | None, now_ms: int, if_silent: bool = False
    ) -> Stream | None:
        """Close a session and return it; None if there was nothing to close. Without an `ending` it has to be due."""
        closed = await self.store.journal.close_session(key, ending, self.new_id(), now_ms, if_silent=if_silent)
        if closed is None:
            return None
        self.on_closed(closed)
        return closed.stream

    def on_closed(self, closed: ClosedSession) -> None:
        """Log a close, and let its webhook events go out."""
        stream = closed.stream
        reason = stream.reason if stream.reason in OWN_REASONS else "given"
        log_session("closed", stream.project, stream.id, reason=reason)
        self.webhooks_due.set()
        self.note_closed(closed)
        for collector in self.close_collectors:
            collector[stream.key] = stream
        self.on_listed(stream)

    async def erase(self, stream: Stream) -> None:
        """Make everything of a session unreadable; its content leaves the store soon after."""
        await self.store.retention.erase(stream.key, self.clock())
        self.on_listed(stream)


StateName = Annotated[str, Meta(extra_json_schema={"enum": ["running", "ended"]})]
Label = Annotated[str, matching("^[^:=]+[:=]", "A label to filter by must be KEY:VALUE")]


def session_filter(project: str, query: Any, **more: Any) -> SessionFilter:
    """Return the filter for a project's sessions by the conditions of a query, whose `label` is a `Label`."""
    conditions = fields_of(SessionFilter, query) | {"project": project} | more
    if conditions.get("label") is not None:
        conditions["label"] = tuple(re.split("[:=]", conditions["label"], maxsplit=1))
    return SessionFilter(**conditions)


class SessionInfo(Struct, frozen=True, omit_defaults=True):
    """A session; times are Unix ms, secrets are left out of `config`.

    `warnings` are sentences about settings that have no effect. `set_aside` says why the memory cannot be made, in an
    answer about one session. JSON leaves out both where there is nothing to say.
    """

    session_id: SessionId
    state: StateName
    reason: str | None
    started_at: int
    ended_at: int | None
    position: int
    config: Annotated[JsonObject, Meta(extra_json_schema={"$ref": "#/components/schemas/SessionConfig"})]
    warnings: tuple[str, ...] = ()
    set_aside: QuarantineEntry | None = None


def info_of(stream: Stream, set_aside: QuarantineEntry | None = None) -> SessionInfo:
    facts = stream.id, stream.state, stream.reason, stream.started_ms, stream.ended_ms, stream.position, stream.config
    return SessionInfo(*facts, warnings_about(stream.config), set_aside)


class Disconnection(NamedTuple):
    """A connection that has ended, when it ended (Unix ms), and whether it was lost."""

    lease: ProducerLease
    since_ms: int
    lost: bool


class Presence:
    """Tells the store about the connections of this node, and closes the sessions that are over.

    The last words of a call must not be lost (docs/ingest.md, "End a session"): a session whose end was committed stays
    open until every producer that is connected or expected back has ended as well, or its grace is over.
    """

    def __init__(self, sessions: Sessions, draining: asyncio.Event | None = None) -> None:
        """`draining` is set when the node is about to stop: then everything that it holds is released in one step."""
        self.sessions = sessions
        self.draining = draining or asyncio.Event()
        self.connected: dict[tuple[str, str], Counter[str]] = {}
        """How many connections to this node each producer has, by project and session id; for the metrics."""
        self.unrecorded: dict[tuple[int, str], Disconnection] = {}
        """Connections whose end is not in the store yet, by key and producer."""
        self.recording = asyncio.Lock()
        """Held while disconnections are written."""
        self.pause_s = DISCONNECTIONS_PAUSE_S
        self.closing = asyncio.Semaphore(CLOSES_AT_ONCE)
        self.answered = asyncio.Event()
        """Set while no commit is being answered, which closes wait for; the services put the commits' event here."""
        self.answered.set()
        self.left: dict[int, int] = {}
        """Sessions that another stack's connection has left, and when (Unix ms), by key."""

    def connect(self, lease: ProducerLease) -> None:
        self.connected.setdefault((lease.project, lease.session_id), Counter())[lease.producer] += 1

    async def disconnect(self, lease: ProducerLease, lost: bool = False) -> None:
        """Note that a connection has ended: without another one, its session closes if its end was committed.

        `lost` says that the connection broke, so that its producer is expected back; a stopping node leaves this to
        `Nodes.retire_node`. While other disconnections are written, this one is written with them, and not waited for,
        which would keep hundreds of connections in memory. Raises `StoreUnavailable`; the next sweep repeats it.
        """
        producers = self.connected[lease.project, lease.session_id]
        producers[lease.producer] -= 1
        if not producers[lease.producer]:
            del producers[lease.producer]
        if not producers:
            del self.connected[lease.project, lease.session_id]
        if lost and self.draining.is_set():
            return
        disconnection = Disconnection(lease, self.sessions.clock(), lost)
        self.unrecorded[lease.key, lease.producer] = disconnection  # the newer of a producer
        if not self.recording.locked():
            await self.record_disconnections()

    async def record_disconnections(self) -> None:
        """Write disconnections, some at a time: events wait too. Raises `StoreUnavailable`; a sweep repeats it."""
        async with self.recording:
            while self.unrecorded:
                count = min(DISCONNECTIONS_AT_ONCE, len(self.unrecorded))
                await self.record_together([self.unrecorded.popitem()[1] for _ in range(count)])
                if 0 < len(self.unrecorded) < DISCONNECTIONS_AT_ONCE:
                    await asyncio.sleep(self.pause_s)

    async def record_together(self, disconnections: builtins.list[Disconnection]) -> None:
        now = max(disconnection.since_ms for disconnection in disconnections)
        leaving = [
            DisconnectedProducer(lease.key, lease.producer, lease.epoch or 0, now + EXPECTED_BACK_MS if lost else None)
            for lease, _, lost in disconnections
        ]
        try:
            left = await self.sessions.store.journal.leave(leaving, now)
        except BaseException:
            for disconnection in disconnections:
                self.unrecorded.setdefault((disconnection.lease.key, disconnection.lease.producer), disconnection)
            raise
        ended = {stream.key for stream in left if stream.state == "running" and stream.ending is not None}
        await asyncio.gather(*(self.close_when_ended(lease) for lease, *_ in disconnections if lease.key in ended))

    async def close_when_ended(self, lease: ProducerLease) -> None:
        """Close a session if its end was committed, and no producer is awaited. Raises `StoreUnavailable`."""
        sessions = self.sessions
        async with self.closing:
            await self.answered.wait()
            closed = await sessions.store.journal.close_ended(lease.key, sessions.new_id(), sessions.clock())
        if closed is not None:
            sessions.on_closed(closed)

    def close_if_left(self, lease: ProducerLease) -> None:
        """Close a session soon, unless someone is connected to it by then."""
        self.left[lease.key] = self.sessions.clock()

    async def close_left(self) -> None:
        """Close the sessions that were left long enough ago; anyone who comes back reopens them."""
        now = self.sessions.clock()
        for key, since in list(self.left.items()):
            if now >= since + LEFT_MS:
                await self.sessions.close(key, SessionEnding(since, CLOSED, provisional=True), now, if_silent=True)
                self.left.pop(key, None)

    async def sweep(self) -> int:
        """Close the sessions that are due; return how many were closed. Raises `StoreUnavailable`, `StoreRuined`."""
        if not self.sessions.store.healthy:
            await self.sessions.store.probe()
        await self.record_disconnections()
        now, count = self.sessions.clock(), 0
        await self.close_left()
        for key in await self.sessions.store.journal.find_due(now, SWEEP_BATCH):
            count += await self.sessions.close(key, None, now) is not None
        return count
