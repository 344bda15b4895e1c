"""Dialect connections: bare frames of another stack, on a path of its own, from senders that do not know voicemem.

Nothing is sent to such a sender, which might take it for a command, unless it has offered our subprotocol; and nothing
that it sends closes the connection, since its call must continue (docs/dialects.md).
"""

import asyncio
import re
from collections import deque
from collections.abc import Coroutine
from functools import partial
from typing import Any, NamedTuple
from urllib.parse import parse_qsl, urlsplit

import msgspec

from voicemem.dialects.dialect import MalformedFrame, session_id_of
from voicemem.dialects.registry import DIALECTS, MAX_DIALECT_FRAME_BYTES, decode_message, no_such_dialect, split_frame
from voicemem.errors import Refused, VoicememError
from voicemem.protocol.codec import RejectedEvent
from voicemem.protocol.events import Auth, FrameEvent, SessionOpen
from voicemem.protocol.explanations import unknown_name
from voicemem.protocol.frames import PATH, PROTOCOL
from voicemem.protocol.types import SESSION_ID_PATTERN, SESSION_ID_RULE
from voicemem.security.access import Grant
from voicemem.security.session_tokens import looks_like_token
from voicemem.server.http.request import LARGE_BYTES
from voicemem.server.ingest.connection import CLEAN_CLOSES, WINDOW_BYTES, Connection
from voicemem.server.ingest.producer_leases import IngestHost, OpenLease
from voicemem.server.ingest.websocket import EventSocket
from voicemem.sessions.recording.batches import ProducerLease, ReducedFrame, SenderState
from voicemem.store.quotas import check_producer

MAX_WAITING, MAX_WAITING_BYTES, MAX_WAIT_S = 64, 1024 * 1024, 10.0
"""Frames that wait for one with the vendor's id of the session, and for how long."""
LOT = 300
"""Frames of a large message that are processed at a time: others are served in between."""
LEFT_CLOSES = (*CLEAN_CLOSES, 1005)
"""Close codes after which a sender is not expected back."""
QUERY = ("session_id", "user_id", "producer", "token", "typed")
AUTH_DECODER = msgspec.json.Decoder(Auth)


class DialectTarget(NamedTuple):
    """The details of a connection that its URL states."""

    dialect: str
    session_id: str | None = None
    producer: str | None = None
    token: str | None = None
    """A session token; nothing logs it."""
    keep_typed: bool = True
    user_id: str | None = None
    """The user for a session that has none."""


def parse_target(path: str) -> DialectTarget | None:
    """Parse the path and query of a request; None for the path of events. Raises `Refused`."""
    address = urlsplit(path)
    if address.path == PATH:
        if address.query:
            raise Refused("invalid_query", "The ingest path takes no query; send the key in a header or a frame.")
        return None
    name = address.path.removeprefix(f"{PATH}/")
    if name == address.path:
        raise Refused("not_found", f"The ingest path is {PATH}, or {PATH}/ and the name of a dialect.")
    if name not in DIALECTS:
        raise Refused("unknown_dialect", no_such_dialect(name))
    pairs = parse_qsl(address.query, keep_blank_values=True, max_num_fields=16)
    query = dict(pairs)
    unknown = next((name for name in query if name not in QUERY), None)
    if unknown is not None:
        raise Refused("invalid_query", f"{unknown_name('parameter', unknown, QUERY)}.")
    if len(query) < len(pairs):
        raise Refused("invalid_query", f"The query may have {', '.join(QUERY)}, each once.")
    session_id, user_id = query.get("session_id"), query.get("user_id")
    producer, token = query.get("producer"), query.get("token")
    if session_id is not None and not re.match(SESSION_ID_PATTERN, session_id):
        raise Refused("invalid_query", f"A session id is {SESSION_ID_RULE}")
    if user_id is not None and not (1 <= len(user_id) <= 128 and user_id.isprintable()):
        raise Refused("invalid_query", "A user's id is 1 to 128 printable characters.")
    if producer is not None and not 1 <= len(producer) <= 128:
        raise Refused("invalid_query", "A producer's name is 1 to 128 characters.")
    check_producer(producer or name)
    if token is not None and not looks_like_token(token):
        raise Refused("invalid_query", "Only a session token may stand in the query; send a key in a header.")
    if query.get("typed", "keep") not in ("keep", "ignore"):
        raise Refused("invalid_query", "typed must be keep or ignore.")
    return DialectTarget(name, session_id, producer or name, token, query.get("typed") != "ignore", user_id)


class Received(NamedTuple):
    """A message as it was received, and when (Unix ms)."""

    message: bytes
    binary: bool
    ts: int


class DialectConnection(Connection):
    """Takes bare frames, and envelopes, of one session."""

    __slots__ = ("open_lease", "received", "sender", "target", "waiting", "waiting_bytes")

    def __init__(
        self,
        websocket: EventSocket,
        host: IngestHost,
        grant: Grant | None,
        target: DialectTarget,
        origin: object = None,
    ) -> None:
        self.target = target
        self.received: deque[Received] = deque()
        """Messages that wait until the session is open, behind a large one, or for the rate of the key."""
        self.waiting: list[ReducedFrame] = []
        """Frames that wait for one that names the session."""
        self.waiting_bytes = 0
        self.open_lease: OpenLease | None = None
        self.sender = SenderState()
        """The state of its frames, also before the session is known."""
        websocket.silent = websocket.subprotocol != PROTOCOL
        super().__init__(websocket, host, grant, origin)

    async def run(self) -> None:
        if self.grant is not None and self.session_id is not None:
            self.begin(self.take_slowly(None))
        await super().run()

    @property
    def session_id(self) -> str | None:
        """The session that the URL or a session token names."""
        return self.target.session_id or (None if self.grant is None else self.grant.session_id)

    # Messages in

    def on_message(self, message: bytes, binary: bool) -> None:
        if self.reading_stopped:
            return
        self.unanswered += len(message)
        self.received.append(Received(message, binary, self.host.recorder.clock()))
        if self.frame_task is None:
            self.take_received()
        if self.unanswered > WINDOW_BYTES:
            self.websocket.set_reading(False)

    def take_received(self) -> None:
        while self.received and not self.throttle.held and not self.reading_stopped and self.frame_task is None:
            received = self.received.popleft()
            self.unanswered -= len(received.message)
            if self.grant is None or len(received.message) > LARGE_BYTES:
                self.begin(self.take_slowly(received))
            else:
                self.take(received, self.decode(received))

    def begin(self, work: Coroutine[Any, Any, None]) -> None:
        self.frame_task = asyncio.create_task(self.process(work))

    async def process(self, work: Coroutine[Any, Any, None]) -> None:
        """Do work that takes time; then process the messages that came meanwhile."""
        try:
            await work
        except VoicememError as error:
            self.fail(error)
        finally:
            if self.frame_task is asyncio.current_task():  # otherwise another has begun
                self.frame_task = None
        self.take_received()
        self.resume_if_room()

    async def take_slowly(self, first: Received | None) -> None:
        """Open the session if it is known, and take a message that takes time. Raises `InvalidFrame`."""
        if first is not None and self.grant is None:
            try:
                key = AUTH_DECODER.decode(first.message).token
            except msgspec.DecodeError:
                key = None
            await self.authenticate(key)
            self.websocket.accept_up_to(MAX_DIALECT_FRAME_BYTES)
            first = first if key is None else None
        if self.grant is not None and self.open_lease is None and self.session_id is not None:
            await self.open_session(self.session_id)
        if first is not None and len(first.message) <= LARGE_BYTES:
            self.take(first, self.decode(first))
        elif first is not None:
            async with self.host.large_messages.slot(self.project):
                await self.take_large(first)

    async def take_large(self, received: Received) -> None:
        decode, size, owner = self.host.decoding.decode, len(received.message), self.project
        frame = await decode(size, partial(self.decode, received), owner)
        if not isinstance(frame, FrameEvent):
            self.take(received, frame)
            return
        parts = await decode(size, partial(split_frame, self.with_time(frame, received)), owner)
        self.throttle.count(len(parts))
        await self.take_parts(parts, size)

    async def take_parts(self, parts: list[FrameEvent], size: int) -> None:
        """Take the frames of a large message, some at a time: each lot is stored before the next is read."""
        for first in range(0, len(parts), LOT):
            reduce = partial(self.reduce_all, parts[first : first + LOT])
            reduced = await self.host.decoding.decode(size, reduce, self.project)
            if self.open_lease is None:
                await self.open_for(reduced)
            await self.flush()
            for arrival in reduced:
                self.forward(arrival, size // len(parts))

    def decode(self, received: Received) -> FrameEvent | RejectedEvent | MalformedFrame:
        try:
            return decode_message(received.message, received.binary, self.target.dialect)
        except MalformedFrame as malformed:
            return malformed

    def take(self, received: Received, frame: FrameEvent | RejectedEvent | MalformedFrame) -> None:
        self.throttle.count(1)
        frames, size = self.host.recorder.frames, len(received.message)
        if isinstance(frame, MalformedFrame):
            frames.count(self.target.dialect, "malformed")
            return
        if isinstance(frame, RejectedEvent):
            frames.count(self.target.dialect, "malformed")
            self.forward(frame, size)
            return
        for arrival in self.reduce_all(split_frame(self.with_time(frame, received))):
            self.forward(arrival, size)
            size = 0

    def with_time(self, frame: FrameEvent, received: Received) -> FrameEvent:
        """Return the frame with the time of its receipt, unless it has a time, or a seq: then it must not change."""
        is_dated = frame.ts is not None or frame.seq is not None
        return frame if is_dated else msgspec.structs.replace(frame, ts=received.ts)

    def reduce_all(self, frames: list[FrameEvent]) -> list[ReducedFrame | RejectedEvent]:
        return [arrival for frame in frames if (arrival := self.reduce(frame)) is not None]

    def forward(self, arrival: ReducedFrame | RejectedEvent, size: int) -> None:
        if self.open_lease is not None:
            self.enqueue(arrival, size)
        elif isinstance(arrival, ReducedFrame):
            self.wait_for_id(arrival)

    def reduce(self, frame: FrameEvent) -> ReducedFrame | RejectedEvent | None:
        recorder, keep_typed = self.host.recorder, self.target.keep_typed
        if self.open_lease is None:
            return recorder.frames.reduce(frame, keep_typed, sender=self.sender)
        self.open_lease.lease.sender = self.sender
        return recorder.reduce_frame(self.open_lease.lease, frame, keep_typed)

    def resume(self) -> None:
        if self.frame_task is None:
            self.take_received()
        self.resume_if_room()

    def stop_reading(self) -> None:
        super().stop_reading()
        self.received.clear()

    # Its session

    def wait_for_id(self, frame: ReducedFrame) -> None:
        """Keep a frame until one names the session; then open that."""
        if not self.waiting:
            asyncio.get_running_loop().call_later(MAX_WAIT_S, self.stop_waiting)
        self.waiting.append(frame)
        self.waiting_bytes += len(frame.payload)
        self.host.waiting_frame_bytes += len(frame.payload)
        is_full = (
            self.waiting_bytes > MAX_WAITING_BYTES or self.host.waiting_frame_bytes > self.host.most_waiting_frame_bytes
        )
        said = None if frame.reduced is None else frame.reduced.session_id
        if said:
            self.resume_session(session_id_of(said))
        elif len(self.waiting) >= MAX_WAITING or is_full:
            self.stop_waiting()

    async def open_for(self, arrivals: list[ReducedFrame | RejectedEvent]) -> None:
        """Open the session that frames name; one with an id of ours if more frames come than may wait."""
        reduced = (one.reduced for one in arrivals if isinstance(one, ReducedFrame) and one.reduced is not None)
        said = next((one.session_id for one in reduced if one.session_id), None)
        if said is not None or len(self.waiting) + len(arrivals) >= MAX_WAITING:
            await self.open_session(None if said is None else session_id_of(said))

    def stop_waiting(self) -> None:
        if self.open_lease is None and not self.reading_stopped:
            self.resume_session(None)

    def resume_session(self, session_id: str | None) -> None:
        """Open the session next; a task that processes a large frame does so itself."""
        if self.frame_task is None or self.frame_task is asyncio.current_task():
            self.begin(self.open_session(session_id))

    async def open_session(self, session_id: str | None) -> None:
        """Open the session, and process the waiting frames. Raises `Refused` if it cannot be opened."""
        user = self.target.user_id
        config = None if user is None else {"user_id": user}
        await self.open(SessionOpen(session_id=session_id, producer=self.target.producer, session=config))
        self.open_lease = self.leases.only
        if self.open_lease is not None:
            self.open_lease.lease.sender = self.sender
            if user is not None:
                await self.set_first_user(self.open_lease.lease, user)
        for frame in self.end_waiting():
            if self.open_lease is not None:
                self.enqueue(frame, len(frame.payload))

    async def set_first_user(self, lease: ProducerLease, user: str) -> None:
        """Set the user of an existing session that has none, if this sender may."""
        sessions = self.host.presence.sessions
        stream = await sessions.store.journal.find_session(lease.project, lease.session_id)
        if stream is not None and lease.may_set:
            await sessions.set_first_user(stream, user)

    def end_waiting(self) -> list[ReducedFrame]:
        self.host.waiting_frame_bytes -= self.waiting_bytes
        waiting, self.waiting, self.waiting_bytes = self.waiting, [], 0
        return waiting

    # The end

    async def wind_down(self) -> None:
        while self.frame_task is not None:
            await self.frame_task
        if self.waiting and self.grant is not None and not self.reading_stopped:
            # The connection will not name its session any more: its frames are kept under an id of ours.
            await self.process(self.open_session(None))
        self.end_waiting()
        await super().wind_down()
        left = self.websocket.close_code in LEFT_CLOSES
        if self.open_lease is not None and left and not self.draining:
            self.host.presence.close_if_left(self.open_lease.lease)

    def refuse(self, refused: Refused, session_id: str | None, producer: str | None, seq: int | None = None) -> None:
        super().refuse(refused, session_id, producer, seq)
        if self.open_lease is None:  # the session cannot be opened, so the connection is of no use
            self.fail(refused)

    def count_unstored(self) -> None:
        """Count nothing: frames of a stack that does not know us are never a flood, and its call continues."""
