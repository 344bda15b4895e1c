"""Changes to sessions, and appends to them, over the rows of a transaction (`StreamRows`): all engines decide alike.

A stream's `position` and a producer's `next_seq` follow from the end of the journal, so an ordinary append writes the
journal only; their own rows are written when anything else about them changes. The rules that need no rows are in
`streams` and `append_rules`.
"""

from abc import ABC, abstractmethod
from bisect import bisect_right, insort
from collections.abc import Callable, Iterable, Sequence
from hashlib import sha256
from operator import attrgetter
from typing import Any

import msgspec

from voicemem.config.session import SessionPatch, apply_patch
from voicemem.errors import QuotaExceeded, Refused, StoreUnavailable
from voicemem.protocol.comparison import is_same_event
from voicemem.protocol.types import JsonObject
from voicemem.store import streams
from voicemem.store.append_rules import AppendResult, Batch, JournalRun, Offer, Outcome, admit, must_note_expected
from voicemem.store.database import Connection, Row, assign, columns, insert, upsert
from voicemem.store.endpoints import save_session_endpoint
from voicemem.store.outbox import enqueue_close, enqueue_start
from voicemem.store.quotas import admit_session, may_run_again
from voicemem.store.records import Quotas
from voicemem.store.runs import find_last_seq, load_originals
from voicemem.store.streams import SESSION_KIND, USER_KIND, ProducerState, SessionEnding, Stream

STORED_COLUMNS = ", ".join(f"s.{name}" for name in Stream.__struct_fields__)
"""The columns of `streams` s; `position` is the one when the row was last saved."""
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
    """Another transaction took a name or a key in between: run this one again."""


class StreamRows(ABC):
    """Streams, producers and journals of one transaction; the job may change the objects that it gets.

    Each engine has its own way to cache rows, to lock streams and to insert runs.
    """

    connection: Connection
    quotas: Quotas
    """Checked before a session or events are added."""
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
        """Return whether a project has used up its bytes; False without a quota."""

    def admit_bytes(self, project: str) -> None:
        """Raise `QuotaExceeded` if the project has used up its bytes; a refusal is counted.

        Called before clients' content is stored, except for ends, and for changes that free bytes.
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
        """Count bytes added to a stream's archives, deliveries, configuration or secrets; negative if deleted."""

    counts_stored = False
    """True if `count_stored` counts; else the number of bytes need not be computed."""

    # Streams

    def session_of(self, project: str, session_id: str) -> Stream | None:
        return self.find_by_name(project, SESSION_KIND, session_id)

    def find_by_name(self, project: str, kind: str, name: str) -> Stream | None:
        row = self.connection.row(SELECT_STREAM_KEY, project=project, kind=kind, id=name)
        return None if row is None else self.stream(row[0])

    def load_stream(self, key: int) -> Stream | None:
        """Write the added runs, then read a stream's row."""
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
        """Copy the settings that lists show out of a session's configuration."""
        self.connection.execute(SAVE_OVERVIEW, stream=stream.key, **streams.overview_values(stream.config))

    def forget_name(self, stream: Stream) -> None:
        """Drop the cached name of a stream that is about to get another."""
        return

    # Producers

    def load_producer(self, key: int, name: str) -> ProducerState:
        """Read a producer's row, and its last seq in the journal."""
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
    """Return the values of `INSERTED`, except the API key that began it."""
    config, values = stream.config, msgspec.structs.asdict(stream)
    values |= {"config": msgspec.json.encode(config), "due_ms": streams.close_due_ms(stream)}
    return values | {"name": config.get("name"), "user_id": config.get("user_id"), "channel": config.get("channel")}


def to_stream(row: Row) -> Stream:
    """Return the stream of a row of `STREAM_COLUMNS`. Raises `StoreUnavailable` for a damaged one."""
    values: list[Any] = list(row)
    try:
        values[CONFIG_INDEX] = msgspec.json.decode(values[CONFIG_INDEX], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreUnavailable("The configuration of the session is damaged in the store.") from None
    values[-1] = bool(values[-1])
    return Stream(*values)


def config_bytes(config: JsonObject) -> int:
    """Return the bytes that a configuration counts for the quota; an empty one counts none."""
    return len(msgspec.json.encode(config)) - len("{}") if config else 0


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
    """Return a stream that starts now; it gets its key when it is added."""
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
    """Set when the journal of a session that has just ended is to be compacted, and when the session expires."""
    compact_ms, expires_ms = streams.retention_times(stream, rows.quotas.ttl_seconds)
    rows.connection.execute(PLAN_RETENTION, stream=stream.key, compact_ms=compact_ms, expires_ms=expires_ms)


# Existing sessions


def refuse_erased(stream: Stream) -> None:
    if stream.state == "erased":
        raise Refused("session_erased")


def find(rows: StreamRows, key: int) -> Stream:
    """Return a stream that is not erased. Raises `Refused` (`unknown_session`)."""
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
    """Journal the seqs that a producer can no longer send. The caller saves both rows."""
    rows.append_server_event(stream, now_ms, gap_event(producer.name, range(producer.next_seq, from_seq)))
    producer.next_seq = from_seq


def gap_event(producer: str, seqs: range) -> bytes:
    """Return the event that says that these seqs of a producer are missing."""
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

    Like a restored one, the session counts for quotas at the time when it was created.
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


# Events

GAP = b'{"type":"session.gap"'
BY_START = attrgetter("start")
OBJECT_DECODER = msgspec.json.Decoder(type=dict[str, Any])


class BatchAppend:
    """The append of a batch whose events are admitted one by one; it lives for one job."""

    def __init__(
        self,
        rows: StreamRows,
        stream: Stream,
        producer: ProducerState,
        batch: Batch,
        now_ms: int,
        full: bool,
    ) -> None:
        self.rows = rows
        self.stream = stream
        self.producer = producer
        self.before = msgspec.structs.replace(producer)
        self.batch = batch
        self.offers = batch.as_offers()
        self.now_ms = now_ms
        self.is_full = full
        """True if the project has used up its bytes: then only ends are stored, so that calls can end."""
        self.left_out: range | None = None
        """Consecutive seqs that were refused since the bytes are used up: one gap is journaled for all of them."""
        self.leaves_out = False
        self.open_run: JournalRun | None = None
        self.payloads: list[bytes] = []
        """Payloads of the newest run, which grows while positions and seqs are consecutive."""
        self.stored: dict[int, bytes] = {}
        """Payloads by seq: of this batch, which may repeat itself, and the originals of events that were resent."""
        self.known_seqs: list[range] = []
        """Ranges for which `stored` is complete: a seq that it lacks is in a gap."""
        self.left_out_before: list[range] = []
        """The gaps among them that a quota has left, in order."""

    def run(self) -> AppendResult:
        if self.batch.expected_position not in (None, self.stream.position):
            return AppendResult(self.stream, self.producer.next_seq, None, position_taken=True)
        keeps_seqs_only = all(offer.seq is not None and offer.ending is None for offer in self.offers)
        if self.is_full and self.stream.state == "running" and self.is_new and keeps_seqs_only:
            refused = [self.refuse_full(offer) for offer in self.offers]  # as at an open, so that names take no bytes
            return AppendResult(self.stream, self.producer.next_seq, None, refused)
        reopens = (
            not self.is_full
            and streams.may_reopen(self.stream, self.now_ms)
            and any(map(self.would_be_stored, self.offers))
            and may_run_again(self.rows, self.stream.project, self.stream.key)
        )
        if reopens:
            reopen(self.rows, self.stream, self.now_ms)
        if self.stream.silent_since_ms is not None:
            self.stream.silent_since_ms = self.now_ms  # events over HTTP put off the idle close
        ending, config = self.stream.ending_ms, self.stream.config
        declared = self.admits_gap() and self.stream.state == "running"
        if declared and self.batch.from_seq is not None:
            declare_gap(self.rows, self.stream, self.producer, self.batch.from_seq, self.now_ms)
        outcomes = [self.append_offer(offer) for offer in self.offers]
        self.note_left_out()
        if self.is_expected_back(outcomes):
            self.producer.expected_until_ms = self.batch.expected_until_ms
        if declared or self.leaves_out or self.needs_producer_row():
            self.rows.save_producer(self.stream.key, self.producer)
        same = self.stream.ending_ms == ending and self.stream.config is config
        if self.stream.silent_since_ms is not None or declared or self.leaves_out or not same:
            self.rows.save_stream(self.stream)
        return AppendResult(self.stream, self.producer.next_seq, None, outcomes, reopens)

    @property
    def is_new(self) -> bool:
        """Return whether the producer has sent no event before, and was not opened."""
        return self.before.epoch == 0 and self.before.next_seq == 1

    def needs_producer_row(self) -> bool:
        """Return whether its row must be saved: after its first event, or a change that the journal does not show."""
        before, after = self.before, self.producer
        first = self.is_new and after.next_seq > 1
        return first or msgspec.structs.replace(before, next_seq=after.next_seq) != after

    def is_expected_back(self, outcomes: Sequence[Outcome]) -> bool:
        """Return whether the producer must be noted as expected: it has no connection, and may send more."""
        return (
            self.batch.expected_until_ms is not None
            and must_note_expected(self.producer, self.batch.expected_until_ms)
            and any(
                offer.seq is not None and (outcome.duplicate or outcome.position is not None)
                for offer, outcome in zip(self.offers, outcomes, strict=True)
            )
        )

    def would_be_stored(self, offer: Offer) -> bool:
        """Return whether the event would be stored if the session were running; only then is an ended one reopened."""
        producer = self.producer
        if self.batch.from_seq is not None and self.admits_gap():
            producer = msgspec.structs.replace(producer, next_seq=self.batch.from_seq)
        running = msgspec.structs.replace(self.stream, state="running")
        return admit(running, producer, self.batch.epoch, offer) is None

    def admits_gap(self) -> bool:
        """Return whether the batch declares missing seqs, and may do so in a running session."""
        producer = self.producer
        return (
            self.batch.from_seq is not None
            and self.batch.from_seq > producer.next_seq
            and self.batch.epoch in (None, producer.epoch)
            and not (producer.ended or producer.unsequenced)
        )

    def append_offer(self, offer: Offer) -> Outcome:
        outcome = admit(self.stream, self.producer, self.batch.epoch, offer)
        if outcome is None:
            return self.store_offer(offer)
        if outcome.duplicate and offer.seq is not None:
            return self.compare_duplicate(offer, offer.seq)
        return outcome

    def store_offer(self, offer: Offer) -> Outcome:
        if self.is_full and offer.ending is None:
            return self.leave_out(offer)
        self.note_left_out()
        refusal = offer.refusal or self.apply_effect(offer)
        payload = msgspec.json.encode({"type": "refused", "code": refusal}) if refusal else offer.payload
        self.stream.position += 1
        self.add_to_run(offer, payload)
        if offer.seq is None:
            self.producer.unsequenced = True
        else:
            self.producer.next_seq = offer.seq + 1
            self.stored[offer.seq] = payload
        return Outcome(self.stream.position, refusal)

    def leave_out(self, offer: Offer) -> Outcome:
        """Refuse an event whose project has used up its bytes. Its seq is used too, so that the call can continue."""
        if offer.seq is not None:
            first = offer.seq if self.left_out is None else self.left_out.start
            self.left_out = range(first, offer.seq + 1)
            self.producer.next_seq = offer.seq + 1
        return self.refuse_full(offer)

    def refuse_full(self, offer: Offer) -> Outcome:
        self.rows.count_quota_refusal("stored_bytes")
        return Outcome(code=offer.refusal or "quota_exceeded")

    def note_left_out(self) -> None:
        """Journal one gap for all events left out so far, under its first seq, by which a resend finds it."""
        if self.left_out is not None:
            self.stream.position += 1
            name, seq = self.producer.name, self.left_out.start
            gap = [gap_event(name, self.left_out)]
            self.rows.add_run(JournalRun(self.stream.key, self.stream.position, name, seq, self.now_ms, gap))
            self.left_out, self.leaves_out, self.open_run = None, True, None

    def add_to_run(self, offer: Offer, payload: bytes) -> None:
        """Add an event to the newest run, or begin one.

        The events that a batch stores have consecutive positions and seqs, so they are one run, unless their times of
        receipt differ.
        """
        run = self.open_run
        if run is None or run.received_ms != offer.received_ms:
            self.payloads = []
            position, name = self.stream.position, self.producer.name
            self.open_run = JournalRun(self.stream.key, position, name, offer.seq, offer.received_ms, self.payloads)
            self.rows.add_run(self.open_run)
        self.payloads.append(payload)

    def apply_effect(self, offer: Offer) -> str | None:
        """Apply an update or an end to the stream; return the code if the event is refused."""
        if offer.update is not None:
            try:
                apply_session_patch(self.rows, self.stream, offer.update, self.now_ms)
            except Refused as refused:
                return refused.code
        if offer.ending is not None:
            self.producer.ended, self.producer.node = True, None  # its connection no longer counts: no `leave` needed
            if self.stream.ending_ms is None:
                self.stream.ending_ms = self.now_ms
                self.stream.ending_ts, self.stream.ending_reason = offer.ending.ts, offer.ending.reason
                take_times(self.rows, self.stream, offer.ending, self.now_ms)
        return None

    def compare_duplicate(self, offer: Offer, seq: int) -> Outcome:
        """Compare an event with the one stored under its seq.

        The same event is acknowledged again, a refused one is refused again, and a different one is a conflict.
        """
        if not (seq in self.stored or any(seq in seqs for seqs in self.known_seqs)):
            # A whole gap is remembered: a producer that resends thousands of its events costs one search.
            self.open_run = None  # it is written now, and cannot grow any more
            self.rows.flush()
            whose = self.rows.connection, self.stream.key, self.producer.name
            originals, known = load_originals(*whose, seq, self.producer.next_seq)
            self.stored |= originals
            for original in originals.values():
                if original.startswith(GAP):
                    gap = OBJECT_DECODER.decode(original)
                    insort(self.left_out_before, range(gap["from_seq"], gap["to_seq"] + 1), key=BY_START)
            if known:
                self.known_seqs.append(known)
        place = bisect_right(self.left_out_before, seq, key=BY_START) - 1
        if place >= 0 and seq in self.left_out_before[place]:
            return Outcome(code=offer.refusal or "quota_exceeded")
        payload = self.stored.get(seq)
        if payload is None:  # in a declared gap: it can no longer be stored, so it must not be acknowledged
            return Outcome(code="quota_exceeded" if self.is_full else "seq_conflict")
        if payload.startswith(b'{"type":"refused"'):
            return Outcome(code=str(OBJECT_DECODER.decode(payload)["code"]), duplicate=True)
        if offer.refusal is None and is_same_event(payload, offer.payload):
            return Outcome(duplicate=True)
        return Outcome(code="seq_conflict")
