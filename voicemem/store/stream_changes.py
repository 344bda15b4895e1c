"""Changes to sessions, over the rows of a transaction (`StreamRows`), so that all engines decide alike.

A stream's `position` and a producer's `next_seq` follow from where the journal ends, so an ordinary append writes the
journal only; their own rows are written when anything else about them changes. Appends of events are in `batch_append`;
the rules that need no rows are in `streams`.
"""

from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable
from hashlib import sha256
from typing import Any

import msgspec

from voicemem.config.session import SessionPatch, apply_patch
from voicemem.errors import QuotaExceeded, Refused, StoreUnavailable
from voicemem.protocol.types import JsonObject
from voicemem.store import streams
from voicemem.store.admission import admit_session
from voicemem.store.database import Connection, Row, assign, columns, insert, upsert
from voicemem.store.endpoints import save_session_endpoint
from voicemem.store.outbox import enqueue_close, enqueue_start
from voicemem.store.records import Quotas
from voicemem.store.runs import find_last_seq
from voicemem.store.streams import SESSION_KIND, USER_KIND, JournalRun, ProducerState, SessionEnding, Stream

STORED_COLUMNS = ", ".join(f"s.{name}" for name in Stream.__struct_fields__)
"""The columns of `streams` s; `position` is that of the last time the row was saved."""
POSITION = """greatest(s.position, coalesce((
    select j.position + j.count - 1 from journal j where j.stream = s.key order by j.position desc limit 1
), 0))"""
STREAM_COLUMNS = STORED_COLUMNS.replace("s.position", POSITION)
"""The same, but with the position at which the journal ends."""
CONFIG_INDEX = Stream.__struct_fields__.index("config")
SELECT_READABLE_STREAMS = (
    f"select {STREAM_COLUMNS} from streams s where key in :keys and state <> 'erased' order by key"
)
SELECT_STREAM = f"select {STREAM_COLUMNS} from streams s where s.key = :key"
SELECT_STREAM_KEY = "select key from streams where project = :project and kind = :kind and id = :id"
CHANGING = (
    *("state", "position", "started_ms", "ended_ms", "reason", "config", "silent_since_ms", "ending_ms", "ending_ts"),
    *("ending_reason", "provisional", "due_ms", "name", "user_id", "channel"),
)
"""The columns of a stream that change; the last four are derived from the others."""
INSERTED = ("key", "project", "kind", "id", "key_id", *CHANGING)
INSERT_STREAM = f"{insert('streams', INSERTED)} on conflict do nothing"
UPDATE_STREAM = f"update streams set {assign(CHANGING)} where key = :key"
SAVE_OVERVIEW = upsert("overviews", ["stream"], ("name", "user_id", "labels"))
PRODUCER_COLUMNS = columns(ProducerState.__struct_fields__)
SELECT_PRODUCER = f"select {PRODUCER_COLUMNS} from producers where stream = :stream and name = :name"
COUNT_ALL_STORED = """
    insert into stored_bytes select s.project, sum(r.size) from (
        select stream, octet_length(payload) as size from journal
        union all select stream, octet_length(runs) from archives
        union all select stream, octet_length(value) from secrets
        union all select stream, octet_length(payload) from payloads
        union all select key, octet_length(config) - 2 from streams
    ) r join streams s on s.key = r.stream group by s.project
    on conflict (project) do update set bytes = excluded.bytes
"""
SAVE_PRODUCER = upsert("producers", ["stream", "name"], ProducerState.__struct_fields__[1:])


class Conflict(Exception):
    """Another transaction took a name or a key in between: this one is to be run again."""


class StreamRows(ABC):
    """Streams, producers and journals of one transaction; the job may change what it gets.

    Each engine has its own way to keep rows at hand, to lock streams and to insert runs.
    """

    connection: Connection
    quotas: Quotas
    """Checked by those who add a session or events."""
    count_quota_refusal: Callable[[str], None]
    """Called with the name of a quota, on any thread, for each session or event that it refuses."""

    @abstractmethod
    def stream(self, key: int) -> Stream | None:
        """Return the stream of a key, for the job to change; None when there is none."""

    @abstractmethod
    def producer(self, key: int, name: str) -> ProducerState:
        """Return a session's producer, for the job to change; a new one when it is unknown."""

    @abstractmethod
    def add_run(self, run: JournalRun) -> None:
        """Journal a run, which may grow until the rows are written."""

    @abstractmethod
    def flush(self) -> None:
        """Insert the runs that were added: before each query that must see them, and before the commit."""

    @abstractmethod
    def new_stream_key(self) -> int:
        """Return the key of a new stream."""

    @abstractmethod
    def is_full(self, project: str) -> bool:
        """Return whether a project has used up its bytes, where they are bounded."""

    def admit_bytes(self, project: str) -> None:
        """Raise `QuotaExceeded` if the project has used up its bytes; a refusal is counted.

        Asked before everything that callers store, but for ends, and for what frees bytes.
        """
        if self.is_full(project):
            self.count_quota_refusal("stored_bytes")
            raise QuotaExceeded(
                "stored_bytes",
                f"The project may store {self.quotas.stored_bytes} bytes (stored_bytes); erase sessions, or let them"
                " expire.",
            )

    @abstractmethod
    def count_stored(self, key: int, size: int) -> None:
        """Count bytes added to archives, deliveries, configuration or secrets of a stream, or below zero, deleted."""

    counts_stored = False
    """True if `count_stored` counts; else it need not be worked out how many bytes there are."""

    # Streams

    def session_of(self, project: str, session_id: str) -> Stream | None:
        return self.find_by_name(project, SESSION_KIND, session_id)

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        row = self.connection.row(SELECT_STREAM_KEY, project=project, kind=kind, id=name)
        return None if row is None else self.stream(row[0])

    def load_stream(self, key: int) -> Stream | None:
        """Read a stream's row, after the runs that were added."""
        self.flush()
        row = self.connection.row(SELECT_STREAM, key=key)
        return None if row is None else to_stream(row)

    def add_stream(self, stream: Stream, key_id: str | None = None) -> None:
        """Insert a new stream, which gets its key; `key_id` is the API key that began it.

        Raises `Conflict` when another has just taken its id.
        """
        stream.key = self.new_stream_key()
        if not self.connection.execute(INSERT_STREAM, key_id=key_id, **stream_values(stream)):
            raise Conflict
        if self.counts_stored:
            self.count_stored(stream.key, config_bytes(stream.config))
        if stream.kind == SESSION_KIND and not streams.IN_OVERVIEW.isdisjoint(stream.config):
            self.save_overview(stream)

    def add_user(self, project: str, user_id: str, now_ms: int) -> Stream:
        stream = new_stream(project, USER_KIND, user_id, {}, now_ms)
        self.add_stream(stream)
        return stream

    def note_changed(self, keys: Iterable[int]) -> None:
        """Note that more than the journals of these streams was changed."""
        return

    def save_stream(self, stream: Stream) -> None:
        self.connection.execute(UPDATE_STREAM, **stream_values(stream))
        self.note_changed([stream.key])

    def save_overview(self, stream: Stream) -> None:
        """Repeat what lists show of a session's configuration."""
        self.connection.execute(SAVE_OVERVIEW, stream=stream.key, **streams.overview_values(stream.config))

    def forget_name(self, stream: Stream) -> None:
        """Forget the name of a stream that is about to get another."""
        return

    # Producers

    def load_producer(self, key: int, name: str) -> ProducerState:
        """Read a producer's row, and where its seqs end in the journal."""
        self.flush()
        next_seq = find_last_seq(self.connection, key, name) + 1
        row = self.connection.row(SELECT_PRODUCER, stream=key, name=name)
        if row is None:
            return ProducerState(name, next_seq=next_seq)
        _, epoch, saved_seq, unsequenced, ended, node, until = row
        return ProducerState(name, epoch, max(saved_seq, next_seq), bool(unsequenced), bool(ended), node, until)

    def save_producer(self, key: int, producer: ProducerState) -> None:
        self.connection.execute(SAVE_PRODUCER, stream=key, **msgspec.structs.asdict(producer))
        self.note_changed([key])

    # Journals

    def append_server_event(self, stream: Stream, now_ms: int, event: dict[str, Any] | bytes) -> None:
        """Journal an event of the server's own. The caller saves the stream's row."""
        stream.position += 1
        payload = event if isinstance(event, bytes) else msgspec.json.encode(event)
        self.add_run(JournalRun(stream.key, stream.position, None, None, now_ms, [payload]))


def stream_values(stream: Stream) -> dict[str, Any]:
    """The values of `INSERTED`, but for the key that began it."""
    config, values = stream.config, msgspec.structs.asdict(stream)
    values |= {"config": msgspec.json.encode(config), "due_ms": streams.close_due_ms(stream)}
    return values | {"name": config.get("name"), "user_id": config.get("user_id"), "channel": config.get("channel")}


def to_stream(row: Row) -> Stream:
    """The stream of a row of `STREAM_COLUMNS`. Raises `StoreUnavailable` for a damaged one."""
    values: list[Any] = list(row)
    try:
        values[CONFIG_INDEX] = msgspec.json.decode(values[CONFIG_INDEX], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreUnavailable("The configuration of the session is damaged in the store.") from None
    values[-1] = bool(values[-1])
    return Stream(*values)


def config_bytes(config: JsonObject) -> int:
    """The bytes that a configuration counts for the quota; an empty one counts none."""
    return len(msgspec.json.encode(config)) - len("{}") if config else 0


def label_digest(name: str, value: str) -> bytes:
    """Return a digest that finds the sessions with a label, in place of both, which are too long for an index."""
    return sha256(msgspec.json.encode([name, value])).digest()


SELECT_PRODUCER_NAMES = "select name from producers where stream = :stream"
SELECT_PRODUCERS_NOT_ENDED = f"{SELECT_PRODUCER_NAMES} and not ended"
SAVE_RESTORED = "update streams set restored_ms = :now_ms where key = :key"
SELECT_IS_NAME_TAKEN = f"""
    select 1 from streams where project = :project and md5(name) = md5(:name) and state = 'running'
    and name is not null and kind = '{SESSION_KIND}' limit 1
"""
DELETE_FROM_SECRETS = "delete from secrets where stream = :stream and name = :name"
SUM_SECRETS = """
    select coalesce(sum(octet_length(value)), 0) from secrets
    where stream = :stream and name = coalesce(cast(:name as text), name)
"""
INSERT_INTO_SECRETS = "insert into secrets (stream, name, value) values (:stream, :name, :value)"
PLAN_RETENTION = """
    insert into retention (stream, compact_ms, expires_ms) values (:stream, :compact_ms, :expires_ms)
    on conflict (stream) do update set compact_ms = excluded.compact_ms, expires_ms = excluded.expires_ms,
    erased_ms = null, node = null, leased_until_ms = 0
"""
DELETE_PLAN = "delete from retention where stream = :stream"


def new_stream(project: str, kind: str, name: str, config: JsonObject, now_ms: int) -> Stream:
    """A stream that starts now; it gets its key when it is added."""
    silent_since_ms = now_ms if kind == SESSION_KIND else None
    return Stream(0, project, kind, name, "running", 0, now_ms, None, None, config, silent_since_ms, None, None, None)


def create_session(
    rows: StreamRows,
    project: str,
    session_id: str,
    session_patch: SessionPatch,
    now_ms: int,
    key_id: str | None,
    takes_name: bool = False,
) -> Stream:
    """Create an empty session. Raises `Refused` (`session_exists`) if its name is taken, and `QuotaExceeded`."""
    stream = new_stream(project, SESSION_KIND, session_id, apply_patch({}, session_patch.public), now_ms)
    if takes_name and (name := stream.config.get("name")) is not None:
        rows.connection.lock(f"name {sha256(name.encode()).hexdigest()} {project}")
        if rows.connection.row(SELECT_IS_NAME_TAKEN, project=project, name=name) is not None:
            raise Refused("session_exists", streams.NAME_TAKEN)
    admit_session(rows, project, key_id, now_ms)
    rows.add_stream(stream, key_id)
    save_secrets(rows, stream, session_patch, now_ms)
    enqueue_start(rows.connection, stream, now_ms)
    return stream


def save_secrets(rows: StreamRows, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Store the secrets of a patch, and bring the session's own endpoint in line with its configuration."""
    for name, value in session_patch.secrets.items():
        if rows.counts_stored:
            (before,) = rows.connection.one(SUM_SECRETS, stream=stream.key, name=name)
            rows.count_stored(stream.key, len((value or "").encode()) - before)
        rows.connection.execute(DELETE_FROM_SECRETS, stream=stream.key, name=name)
        if value is not None:
            rows.connection.execute(INSERT_INTO_SECRETS, stream=stream.key, name=name, value=value)
    if "webhook" in session_patch.public or "webhook.secret" in session_patch.secrets:
        save_session_endpoint(rows.connection, stream, now_ms)


def plan_retention(rows: StreamRows, stream: Stream) -> None:
    """Note when the journal of a session that has just ended is to be compacted, and when the session expires."""
    compact_ms, expires_ms = streams.retention_times(stream, rows.quotas.ttl_seconds)
    rows.connection.execute(PLAN_RETENTION, stream=stream.key, compact_ms=compact_ms, expires_ms=expires_ms)


# Sessions that are there


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def find(rows: StreamRows, key: int) -> Stream:
    """A stream that is not erased. Raises `Refused` (`unknown_session`)."""
    stream = rows.stream(key)
    if stream is None or stream.state == "erased":
        raise Refused("unknown_session")
    return stream


def apply_session_patch(rows: StreamRows, stream: Stream, session_patch: SessionPatch, now_ms: int) -> None:
    """Merge a patch into the configuration. Raises `Refused`, before anything is written."""
    before, stream.config = stream.config, apply_patch(stream.config, session_patch.public)
    if rows.counts_stored:
        rows.count_stored(stream.key, config_bytes(stream.config) - config_bytes(before))
    if not streams.IN_OVERVIEW.isdisjoint(session_patch.public):
        rows.save_overview(stream)
    save_secrets(rows, stream, session_patch, now_ms)


def declare_gap(rows: StreamRows, stream: Stream, producer: ProducerState, from_seq: int, now_ms: int) -> None:
    """Journal which seqs a producer can no longer send. The caller saves both rows."""
    rows.append_server_event(stream, now_ms, gap_event(producer.name, range(producer.next_seq, from_seq)))
    producer.next_seq = from_seq


def gap_event(producer: str, seqs: range) -> bytes:
    """The event that says that these seqs of a producer are not there."""
    gap = {"type": "session.gap", "producer": producer, "from_seq": seqs.start, "to_seq": seqs.stop - 1}
    return msgspec.json.encode(gap)


def reopen(rows: StreamRows, stream: Stream, now_ms: int) -> None:
    """Undo an idle close. The caller saves the stream's row."""
    rows.append_server_event(stream, now_ms, {"type": "session.reopened", "ts": now_ms})
    stream.state, stream.ended_ms, stream.reason, stream.provisional = "running", None, None, False
    stream.silent_since_ms = now_ms
    rows.connection.execute(DELETE_PLAN, stream=stream.key)
    enqueue_start(rows.connection, stream, now_ms)


def take_times(rows: StreamRows, stream: Stream, ending: SessionEnding, now_ms: int) -> None:
    """Take the times of the call itself from its end, which may come long after it. The caller saves the stream's row.

    As one that is restored, the session counts for quotas when it was made.
    """
    if ending.began_ms is not None and streams.EARLIEST_MS < ending.began_ms <= ending.ts <= now_ms:
        stream.ended_ms = ending.ts
        if ending.began_ms < stream.started_ms:
            stream.started_ms = ending.began_ms
            rows.connection.execute(SAVE_RESTORED, key=stream.key, now_ms=now_ms)


def close(
    rows: StreamRows, key: int, ending: SessionEnding | None, notice_id: str, now_ms: int, if_silent: bool = False
) -> streams.ClosedSession | None:
    """Close a running session with an ending, or else with the committed one if nothing more is expected."""
    stream = rows.stream(key)
    if stream is None or stream.state != "running" or (if_silent and stream.silent_since_ms is None):
        return None
    if ending is None:
        ending = stream.ending
        names = () if ending is None else rows.connection.rows(SELECT_PRODUCERS_NOT_ENDED, stream=key)
        if ending is None or any(streams.is_expected(rows.producer(key, name), now_ms) for (name,) in names):
            return None
    event = {"type": "session.closed", "ts": ending.ts, "reason": ending.reason}
    rows.append_server_event(stream, now_ms, event)
    stream.state, stream.ended_ms = "ended", stream.ended_ms or now_ms
    stream.reason, stream.provisional = ending.reason, ending.provisional
    stream.silent_since_ms = stream.ending_ms = stream.ending_ts = stream.ending_reason = None
    rows.save_stream(stream)
    for (name,) in rows.connection.rows(SELECT_PRODUCER_NAMES, stream=key):  # the journal is archived later
        rows.save_producer(key, rows.producer(key, name))
    plan_retention(rows, stream)
    enqueue_close(rows.connection, stream, notice_id, now_ms)
    return streams.ClosedSession(stream, ending, now_ms)
