"""The recorder: takes producers' events, checks them, and has them journaled, answered and folded (docs/ingest.md).

Another stack's frames are first reduced to what their dialect keeps.
"""

import asyncio
import hmac
import logging
from collections.abc import Awaitable, Callable, Iterable, Sequence
from contextlib import suppress
from functools import partial
from typing import NamedTuple, TypeGuard, cast

from voicemem.config import session
from voicemem.dialects.dialect import Dialect, Frame, MalformedFrame, RawFrame, UnknownFrame
from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import CODES, Refused, SessionQuarantined, StoreUnavailable, VoicememError
from voicemem.protocol.codec import (
    ENCODER,
    DecodedEvent,
    RejectedEvent,
    has_large_integer,
    may_have_large_number,
    reject,
)
from voicemem.protocol.comparison import HIDDEN_WORD
from voicemem.protocol.events import Auth, FrameEvent, SessionOpen, SessionUpdate, update_patch
from voicemem.protocol.types import MAX_FRAME_BYTES, JsonObject
from voicemem.runtime import NodeIdentity, Runtime
from voicemem.security.access import SETS_NOTHING
from voicemem.security.audit import audit
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording import phone_numbers
from voicemem.sessions.recording.batches import (
    ConfigUpdate,
    EventBatch,
    ProducerLease,
    ReducedFrame,
    SenderState,
    validated_update,
)
from voicemem.sessions.recording.commits import NO_UNIX_MS, Commits, is_no_unix_ms, log_session
from voicemem.sessions.recording.redaction import Redaction
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.journal import Journal
from voicemem.store.quotas import check_producer
from voicemem.store.records import OpenResult
from voicemem.store.streams import Stream
from voicemem.telemetry import Telemetry
from voicemem.telemetry.metrics import Metrics

LOG = logging.getLogger("voicemem")
MAX_NAMED = 1_000
"""Types of frames that the log has named; further ones are only counted."""
MAX_NAME = 64
"""Characters of a type's name in the log."""
MAX_PICKED = 16 * 1024
"""The most bytes of a frame's facts about the caller that are kept, to compare the next frame with."""
ID_DIGITS = 32
TOO_LONG = "What is kept of a frame may be at most 1 MiB."


class FrameReducer:
    """Reduces frames, and counts the results."""

    def __init__(self, metrics: Metrics, secret: bytes) -> None:
        self.metrics = metrics
        self.secret = secret
        """The key of the hashes that replace ids made of speech."""
        self.named: set[tuple[str, str]] = set()

    def reduce(
        self,
        event: FrameEvent,
        keep_typed: bool = True,
        is_known: Callable[[FrameEvent], bool] | None = None,
        sender: SenderState | None = None,
    ) -> ReducedFrame | RejectedEvent | None:
        """Return the event to journal for a frame; None if it means nothing, or `is_known` by id, and has no seq.

        Without `keep_typed`, a text that the app typed means nothing. `sender` is the state of its sender.
        """
        dialect = DIALECTS.get(event.dialect)
        if dialect is None:
            return reject(event, "unknown_dialect", no_such_dialect(event.dialect))
        sender = sender or SenderState()
        note_caller(dialect, event.frame, sender)
        try:
            frame = reduce_frame(dialect, event)
            if frame is not None and not may_keep(frame, event, keep_typed, is_known, sender):
                frame = None
            result = "ignored" if frame is None else "taken"
        except UnknownFrame as unknown:
            self.name_unknown(dialect.name, str(unknown))
            frame, result = None, "unknown"
        except MalformedFrame as malformed:
            return self.refuse(event, str(malformed))
        if frame is None and event.seq is None:
            self.count(event.dialect, result)
            return None
        numbers: Sequence[str] = ()
        if frame is not None:
            frame, numbers = self.hide_numbers(dialect, frame, sender, event.frame)
        kept = kept_event(event, frame)
        if kept.seq is None and kept.id is not None and is_known is not None and is_known(kept):
            self.count(event.dialect, "repeated")
            return None
        payload = ENCODER.encode(kept)
        if frame is not None and phone_numbers.may_have_number(payload, numbers):
            frame = frame._replace(content=phone_numbers.hide_in_frame(dialect, frame.content, numbers))
            kept = kept_event(event, frame)
            payload = ENCODER.encode(kept)
        if len(payload) > MAX_FRAME_BYTES:
            return self.refuse(event, TOO_LONG)
        if may_have_large_number(payload) and has_large_integer(kept.frame):
            return self.refuse(event, "An integer must be within ±2^53.")
        self.count(event.dialect, result)
        return ReducedFrame(kept, payload, frame)

    def keyed_id(self, said: bytes) -> str:
        """Return an id that a repeat has too, and that reveals nothing of the text without the store's secret."""
        return hmac.digest(self.secret, b"frame " + said, "sha256").hex()[:ID_DIGITS]

    def hide_numbers(
        self, dialect: Dialect, frame: Frame, sender: SenderState, raw: RawFrame
    ) -> tuple[Frame, Sequence[str]]:
        """Hide the parties' numbers in the ids of a frame, and replace ids that would reveal its text.

        Return the frame, and the numbers. In ids, each number is replaced by its hash.
        """
        if frame.id is not None and dialect.ids_say_texts:
            frame = frame._replace(id=self.keyed_id(frame.id.encode()))
        if not isinstance(raw, dict):  # it came as a text
            note_caller(dialect, frame.content, sender)
        numbers = () if sender.caller is None else sender.caller.numbers
        if frame.session_id is not None:
            numbers = (*numbers, *phone_numbers.international_in(frame.session_id))
        if not numbers:
            return frame, ()

        def in_id(text: str | None) -> str | None:
            if text is None or phone_numbers.hide_in_text(text, numbers) == text:
                return text
            return phone_numbers.hide_in_text(text, numbers, self.keyed_id(text.encode(errors="replace")))

        end = None if frame.end is None else phone_numbers.hide_in_text(frame.end, numbers)
        return frame._replace(session_id=in_id(frame.session_id), id=in_id(frame.id), end=end), numbers

    def refuse(self, event: FrameEvent, detail: str) -> RejectedEvent:
        self.count(event.dialect, "malformed")
        return reject(event, "malformed_frame", detail)

    def count(self, dialect: str, result: str) -> None:
        self.metrics.frames.labels(dialect, result).inc()

    def name_unknown(self, dialect: str, kind: str) -> None:
        key = dialect, ascii(phone_numbers.RUN.sub(HIDDEN_WORD, kind)[:MAX_NAME])
        if key not in self.named and len(self.named) < MAX_NAMED:
            self.named.add(key)
            LOG.info("Frames of an unknown type are ignored: %s, %s", *key)


def may_keep(
    frame: Frame,
    event: FrameEvent,
    keep_typed: bool,
    is_known: Callable[[FrameEvent], bool] | None,
    sender: SenderState,
) -> bool:
    """Return whether a frame is kept: it is neither typed text that is left out, nor a part of a frame that is."""
    if frame.typed and not keep_typed:
        return False

    def was_opened(id: str) -> bool:
        return is_known is not None and is_known(FrameEvent(dialect=event.dialect, id=id))

    return sender.admits(frame, was_opened)


def note_caller(dialect: Dialect, frame: RawFrame, sender: SenderState) -> None:
    """Note a frame's facts about the caller; a fault of ours in a dialect must not end the call."""
    try:
        picked = dialect.caller.pick(frame)
        if not picked or picked == sender.picked:  # most vendors say it once, and some with every frame
            return
        caller = dialect.caller.caller_of(picked)
    except Exception:  # whatever a vendor has sent
        LOG.exception("A dialect failed to read a caller", extra={"dialect": dialect.name})
        return
    sender.picked = picked if len(ENCODER.encode(picked)) <= MAX_PICKED else {}
    if caller is not None:
        sender.note_caller(dialect.name, caller)


def kept_event(event: FrameEvent, frame: Frame | None) -> FrameEvent:
    """Return the event to journal, without a vendor's id that an event may not have."""
    if frame is None:
        return FrameEvent(dialect=event.dialect, session_id=event.session_id, producer=event.producer, seq=event.seq)
    vendor_id = frame.id if frame.id is not None and 1 <= len(frame.id) <= 128 else None
    return FrameEvent(
        dialect=event.dialect,
        frame=frame.content,
        sender=event.sender,
        session_id=event.session_id,
        producer=event.producer,
        seq=event.seq,
        ts=frame.ts if event.ts is None else event.ts,
        id=vendor_id if event.id is None else event.id,
    )


def reduce_frame(dialect: Dialect, event: FrameEvent) -> Frame | None:
    """Return the parts of a frame that the dialect keeps. Raises `MalformedFrame`, `UnknownFrame`."""
    raw: RawFrame = event.frame
    if not isinstance(raw, dict | str | bytes):
        raise MalformedFrame("A frame is a JSON object or a text.")
    try:
        frame = dialect.reduce(raw, event.sender)
    except (MalformedFrame, UnknownFrame):
        raise
    except Exception:  # a fault of ours in a dialect must not end the call
        LOG.exception("A dialect failed to reduce a frame", extra={"dialect": dialect.name})
        raise MalformedFrame(CODES["malformed_frame"].sentence) from None
    if frame is not None and None not in (event.sender, frame.side) and event.sender != frame.side:
        raise MalformedFrame("The other side sends frames of this type.")
    return frame


DEFAULT_PRODUCER = "main"
NEEDS_ADMIN = "Settings that make the server call a URL need the scope admin."
FLOOD_LIMIT = 1_000
"""Events in a row that could not be stored, after which a sender is cut off."""
YIELD_EVERY = 500
"""Events of one frame or body that are processed before other tasks get their turn."""


class OpenedProducer(NamedTuple):
    """A producer's next epoch on a session, the number of the session's next turn, and sentences for its sender."""

    result: OpenResult
    next_turn: int
    warnings: tuple[str, ...]


class Recorder:
    """Takes events of many leases, checks them (`check_settings` may refuse), and queues them for the next commit."""

    def __init__(
        self,
        journal: Journal,
        read_models: ReadModelCache,
        runtime: Runtime,
        check_settings: Callable[[session.SessionPatch], None],
        telemetry: Telemetry,
        node: NodeIdentity | None = None,
        redaction: Redaction | None = None,
    ) -> None:
        """Connections are made to `node`. Without `redaction` all is kept."""
        self.node = node or NodeIdentity()
        self.journal = journal
        self.read_models = read_models
        self.runtime = runtime
        self.clock = runtime.clock
        self.check_settings = check_settings
        self.telemetry = telemetry
        self.metrics, self.tracer = telemetry
        self.commits = Commits(journal, read_models, self.clock, telemetry, redaction)
        self.feed, self.refusals = self.commits.feed, self.commits.refusals
        self.frames = FrameReducer(self.metrics, journal.database.identity["cursor_secret"])
        self.identify_caller: Callable[[ProducerLease], Awaitable[None]] | None = None
        """Sets the user of a session from what a sender's frames have said about the caller."""

    async def open_producer(
        self,
        project: str,
        session_id: str,
        frame: SessionOpen,
        may_call_out: bool,
        key_id: str | None = None,
        own_name: str | None = None,
    ) -> OpenedProducer:
        """Open a producer's next epoch on a session; `own_name` is the name of one of the service's own producers.

        The frame's configuration is for a new session, and is ignored for one that exists. Raises `Refused`,
        `StoreUnavailable`.
        """
        try:
            producer = own_name or check_producer(frame.producer or DEFAULT_PRODUCER)
            opened = await self.acquire_lease(project, session_id, producer, frame, may_call_out, key_id)
        except VoicememError:
            self.metrics.resume.labels("refused").inc()
            raise
        result = "created" if opened.result.created else "reopened" if opened.result.reopened else "resumed"
        self.metrics.resume.labels(result).inc()
        if result != "resumed":
            log_session("opened" if result == "created" else "reopened", project, session_id)
        return opened

    async def acquire_lease(
        self, project: str, session_id: str, producer: str, frame: SessionOpen, may_call_out: bool, key_id: str | None
    ) -> OpenedProducer:
        existing = await self.journal.find_session(project, session_id)
        config = {} if existing is not None else frame.session or {}
        check_may_call_out(config, may_call_out)
        session_patch = session.validate_config(config)
        await SCHEMA_WORKER.check_config(session_patch.public)
        self.check_settings(session_patch)
        opened = await self.journal.open_producer(
            project, session_id, producer, session_patch, frame.from_seq, self.clock(), key_id, self.node.token
        )
        if opened.created and session.patch_changes_outbound(session_patch):
            audit("calling_out_changed", key_id, project, session_id)
        times = [frame.ts]
        try:
            state = await self.read_models.get_state(opened.stream)
            next_turn = state.newest_turn + 1
            times += state.clock, *state.clocks.values()
        except VoicememError:  # the producer is connected all the same; there are hardly more turns than entries
            next_turn = opened.stream.position + 1
        about_times = (NO_UNIX_MS,) if any(map(is_no_unix_ms, times)) else ()
        return OpenedProducer(opened, next_turn, session.warnings_about(opened.stream.config) + about_times)

    async def record(
        self,
        lease: ProducerLease,
        arrivals: Iterable[DecodedEvent | RejectedEvent],
        from_seq: int | None = None,
        expected_until_ms: int | None = None,
        expected_position: int | None = None,
        whole: bool = False,
    ) -> EventBatch:
        """Journal events in one batch, and return it after the commit; `from_seq` as in `session.open`.

        `expected_until_ms` says until when a producer without a connection is expected back. With an
        `expected_position` nothing is stored unless the journal ends there. A `whole` batch is stored if all its events
        can be. Raises `StoreUnavailable`, `Refused`; of a whole one for the first event that is not valid.
        """
        answered: asyncio.Future[VoicememError | None] = asyncio.get_running_loop().create_future()
        batch = EventBatch(
            lease.key,
            lease.producer,
            lease.epoch,
            lease=lease,
            on_result=lambda _, error: None if answered.done() else answered.set_result(error),
            origin=self.tracer.current(),
            from_seq=from_seq,
            expected_until_ms=expected_until_ms,
            expected_position=expected_position,
        )
        for arrival in arrivals:
            if is_update(arrival):
                arrival = await self.check_update(lease, arrival)
            validated = self.validate(lease, arrival)
            if whole and isinstance(validated, RejectedEvent):
                raise Refused(validated.code, validated.detail)
            if validated is not None:
                batch.add(validated)
        await self.identify(lease)
        self.commits.shard_of(lease.key).enqueue(batch)
        error = await answered
        if error is not None:
            raise error
        if whole and batch.problems:
            raise Refused(batch.problems[0].code, batch.problems[0].detail)
        return batch

    async def identify(self, lease: ProducerLease) -> None:
        """Set the user of a session, if a frame has newly identified the caller. Raises `StoreUnavailable`."""
        if not lease.sender.is_unidentified or not lease.may_set or self.identify_caller is None:
            return
        lease.sender.is_unidentified = False
        try:
            await self.identify_caller(lease)
        except StoreUnavailable:
            lease.sender.is_unidentified = True
            raise

    def validate(
        self, lease: ProducerLease, arrival: DecodedEvent | RejectedEvent
    ) -> DecodedEvent | RejectedEvent | None:
        """Return an event as it is journaled, its rejection, or None for a frame that means nothing."""
        if isinstance(arrival, RejectedEvent):
            return arrival
        event = arrival.event
        try:
            if isinstance(event, (SessionOpen, Auth)):
                raise Refused("unknown_type", "session.open and auth are frames of a websocket.")
            if event.session_id not in (None, lease.session_id) or event.producer not in (None, lease.producer):
                raise Refused("invalid_field", "The event names another session or producer than the request.")
            if isinstance(event, SessionUpdate):
                if not lease.may_set:
                    raise Refused("forbidden", SETS_NOTHING)
                check_may_call_out(update_patch(event), lease.may_call_out)
                update = validated_update(event, arrival.payload)
                self.check_settings(update.patch)
                return update
            if isinstance(event, FrameEvent) and not isinstance(arrival, ReducedFrame):
                return self.reduce_frame(lease, event)
        except Refused as refused:
            return reject(event, refused.code, refused.detail)
        return arrival

    async def check_update(self, lease: ProducerLease, arrival: DecodedEvent) -> DecodedEvent | RejectedEvent:
        """Return a `session.update` validated, with its schema, or its rejection; let other tasks run first."""
        validated = self.validate(lease, arrival)
        await give_way()
        if isinstance(validated, ConfigUpdate):
            try:
                await SCHEMA_WORKER.check_config(validated.patch.public)
            except Refused as refused:
                return reject(arrival.event, refused.code, refused.detail)
        return validated if isinstance(validated, RejectedEvent) else arrival

    def reduce_frame(
        self, lease: ProducerLease, event: FrameEvent, keep_typed: bool = True
    ) -> ReducedFrame | RejectedEvent | None:
        is_known = partial(self.read_models.has_frame, lease.key)
        return self.frames.reduce(event, keep_typed, is_known, lease.sender)

    def reduce_frames(
        self, lease: ProducerLease, arrivals: Iterable[DecodedEvent | RejectedEvent]
    ) -> list[DecodedEvent | RejectedEvent]:
        """Reduce frames of another stack to what `record` would journal; a thread may do it."""
        validated = (self.validate(lease, arrival) for arrival in arrivals)
        return [arrival for arrival in validated if arrival is not None]

    async def new_frames(self, stream: Stream, frames: list[ReducedFrame]) -> list[ReducedFrame]:
        """Return the frames that a session does not have yet, as far as that is known."""
        with suppress(SessionQuarantined):
            await self.read_models.get_state(stream)
        has_frame = self.read_models.has_frame
        return [one for one in frames if not (one.event.id and has_frame(stream.key, cast(FrameEvent, one.event)))]


def is_update(arrival: DecodedEvent | RejectedEvent) -> TypeGuard[DecodedEvent]:
    """Return whether this changes a configuration, and needs `Recorder.check_update` before it is validated."""
    return isinstance(arrival, DecodedEvent) and isinstance(arrival.event, SessionUpdate)


async def give_way() -> None:
    """Let others have their turn: the loop finds what is due by now, then wakes its tasks, and then they run."""
    for _ in range(3):
        await asyncio.sleep(0)


def check_may_call_out(config: JsonObject, may_call_out: bool) -> None:
    """Refuse settings that need the scope `admin`, before any work is done for the others. Raises `Refused`."""
    if session.changes_outbound(config) and not may_call_out:
        raise Refused("forbidden", NEEDS_ADMIN)
