"""The memory of a teed connection: its frames are queued unchanged, and reduced once the event loop is free.

The queue is bounded, and is reduced before anything waits for the memory, so it stays short even if that is away.
"""

import asyncio
import logging
import time
from collections import Counter, deque
from collections.abc import Callable, Mapping
from dataclasses import KW_ONLY, dataclass
from typing import Any, NamedTuple

from voicemem.client import Client, ClientError, ProducerSession
from voicemem.dialects.caller_fields import CALLER
from voicemem.dialects.dialect import (
    AUDIO_BYTES,
    MERGED_MS,
    Dialect,
    Frame,
    MalformedFrame,
    RawFrame,
    Side,
    UnknownFrame,
    session_id_of,
)
from voicemem.dialects.reading import decode_json
from voicemem.dialects.registry import MAX_DIALECT_FRAME_BYTES
from voicemem.integrations.background_session import BackgroundSession
from voicemem.protocol.codec import MALFORMED
from voicemem.protocol.telephone import INTERNATIONAL
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
MAX_QUEUED = 10_000
MAX_QUEUED_BYTES = 4 * MAX_DIALECT_FRAME_BYTES
"""The most bytes of queued frames; further ones are dropped and counted."""
RawMessage = str | bytes | bytearray | memoryview
MAX_WAITING = 64
"""The most events that wait for the frame with the vendor's session id."""
CLOSED = "closed"


class CopiedMessage(NamedTuple):
    """A message of the connection."""

    data: str | bytes
    is_text: bool
    """True if it is known to be text; bytes may be either."""
    side: Side
    ts: int
    """The time, Unix ms."""


class ReducedMessage(NamedTuple):
    """The kept part of a message."""

    frame: Frame
    side: Side
    ts: int


class FrameQueue:
    """Queues messages in the path of the call, and forwards their kept parts in order.

    `put` costs a microsecond or two, and nothing here raises.
    """

    slice_ns = 1_000_000
    """How long messages are reduced before the call may continue."""

    def __init__(self, dialect: Dialect, keep_typed: bool, forward: Callable[[ReducedMessage], object]) -> None:
        self.dialect = dialect
        self.keep_typed = keep_typed
        self.forward = forward
        self.counts: Counter[str] = Counter()
        """Messages by outcome: taken, ignored, unknown, malformed, dropped."""
        self.named: set[str] = set()
        self.queued: deque[CopiedMessage] = deque()
        self.queued_bytes = 0
        self.is_scheduled = False
        self.audio: ReducedMessage | None = None
        """An audio count that may still grow."""
        self.caller: JsonObject = {}
        """The caller's fields, until a frame carries them."""
        self.carried: JsonObject = {}
        self.loop = asyncio.get_running_loop()

    def put(self, data: RawMessage, side: Side, is_text: bool = False, ts: int | None = None) -> None:
        """Queue a message, which was sent or received at `ts`, or now."""
        if not isinstance(data, str | bytes):
            data = bytes(data)  # the sender may use its buffer again
        size = len(data)
        if len(self.queued) >= MAX_QUEUED or self.queued_bytes + size > MAX_QUEUED_BYTES:
            self.counts["dropped"] += 1
            if self.counts["dropped"] == 1:
                LOG.warning("The memory has missed a frame: more of them came than could be reduced.")
            return
        self.queued.append(CopiedMessage(data, is_text, side, now_ms() if ts is None else ts))
        self.queued_bytes += size
        if not self.is_scheduled:
            self.schedule()

    def schedule(self) -> None:
        self.is_scheduled = True
        try:
            self.loop.call_soon(self.work)
        except RuntimeError:  # the event loop was closed: no more of this call can be sent
            self.queued.clear()

    def work(self) -> None:
        self.is_scheduled = False
        until = time.perf_counter_ns() + self.slice_ns
        while self.queued:
            self.take(self.queued.popleft())
            if self.queued and time.perf_counter_ns() > until:
                self.schedule()
                return

    def finish(self) -> None:
        """Reduce all queued messages, and forward the count that was being merged."""
        while self.queued:
            self.take(self.queued.popleft())
        self.forward_audio()

    def take(self, message: CopiedMessage) -> None:
        self.queued_bytes -= len(message.data)
        try:
            frame = self.reduce(message)
            if frame is not None and frame.typed and not self.keep_typed:
                frame = None
            self.counts["ignored" if frame is None else "taken"] += 1
        except UnknownFrame as unknown:
            self.counts["unknown"] += 1
            name = ascii(str(unknown)[:64])
            if name not in self.named and len(self.named) < 100:
                self.named.add(name)
                LOG.info("Frames of an unknown type are left out: %s, %s", self.dialect.name, name)
            return
        except Exception as error:  # a malformed message, or a bug in a dialect
            self.reject(error)
            return
        if frame is not None:
            self.forward_in_order(ReducedMessage(self.with_caller(frame), message.side, message.ts))

    def reduce(self, message: CopiedMessage) -> Frame | None:
        """Return the kept part of a message. Raises `MalformedFrame`, `UnknownFrame`."""
        raw = raw_frame(message)
        self.note_caller(raw)
        return self.dialect.reduce(raw, message.side)

    def note_caller(self, raw: RawFrame) -> None:
        picked = self.dialect.caller.pick(raw)
        if picked and picked != self.carried:
            self.caller = self.carried = picked

    def with_caller(self, frame: Frame) -> Frame:
        """Return a frame that carries the caller to the service, which decides whether that is the session's user."""
        if not self.caller or frame.counts_audio:
            return frame
        caller, self.caller = self.caller, {}
        return frame._replace(content=frame.content | {CALLER: caller})

    def reject(self, error: Exception) -> None:
        """Count a message that the dialect rejects; the reason of the first is logged."""
        self.counts["malformed"] += 1
        if self.counts["malformed"] == 1:
            reason = str(error) if isinstance(error, MalformedFrame) else type(error).__name__
            LOG.warning("A message is not a frame of %s, and is left out: %s", self.dialect.name, reason)

    def forward_in_order(self, reduced: ReducedMessage) -> None:
        """Forward a frame after earlier ones; an audio count may wait to be merged."""
        if self.audio is not None:
            both = merged(self.audio, reduced)
            if both is not None:
                self.audio = both
                return
            self.forward_audio()
        if reduced.frame.counts_audio:
            self.audio = reduced
            self.loop.call_later(MERGED_MS / 1000, self.forward_audio, reduced.ts)  # equal counts are merged until then
        else:
            self.forward(reduced)

    def forward_audio(self, ts: int | None = None) -> None:
        """Forward a waiting audio count; with `ts`, only one that began then."""
        if self.audio is not None and ts in (None, self.audio.ts):
            audio, self.audio = self.audio, None
            self.forward(audio)


def raw_frame(message: CopiedMessage) -> RawFrame:
    """Return the frame in a message: a JSON object, or other text or bytes. Raises `MalformedFrame`."""
    data = message.data
    if len(data) > MAX_DIALECT_FRAME_BYTES:
        raise MalformedFrame("A frame may be at most 16 MiB.")
    if isinstance(data, bytes) and not message.is_text and not data.lstrip(b" \t\r\n").startswith(b"{"):
        return data
    try:
        value = decode_json(data.encode() if isinstance(data, str) else data)
    except MALFORMED:
        return data.decode() if isinstance(data, bytes) and message.is_text else data
    if not isinstance(value, dict):
        raise MalformedFrame("A frame is a JSON object or a text.")
    return value


def merged(one: ReducedMessage, other: ReducedMessage) -> ReducedMessage | None:
    """Merge two audio counts of about the same time; None if they differ otherwise."""
    if not other.frame.counts_audio or one.side != other.side or other.ts - one.ts > MERGED_MS:
        return None
    content, added = one.frame.content, other.frame.content[AUDIO_BYTES]
    if content | {AUDIO_BYTES: added} != other.frame.content:
        return None
    return one._replace(frame=one.frame._replace(content=content | {AUDIO_BYTES: content[AUDIO_BYTES] + added}))


def now_ms() -> int:
    return time.time_ns() // 1_000_000


class Times(NamedTuple):
    """Times of a teed connection, in seconds."""

    session_id_s: float = 10.0
    """How long events wait for the frame with the vendor's session id."""
    closed_s: float = 5.0
    lost_s: float = 60.0
    """How long a closed or lost connection may come back before its session is ended."""
    linger_s: float = 600.0
    """How long delivery continues after a call is over."""


@dataclass(eq=False, repr=False)
class CallMemory:
    """The memory of one connection, from `memory_of`. Nothing here raises, or waits without a limit."""

    client: Client
    is_own: bool
    dialect: Dialect
    given_id: str | None
    _: KW_ONLY
    side: Side
    producer: str
    config: Mapping[str, Any] | None = None
    keep_typed: bool = True
    ends: bool = True
    """True if the session ends with the connection."""
    queue_kind: Callable[[Dialect, bool, Callable[[ReducedMessage], object]], FrameQueue] = FrameQueue
    times: Times = Times()  # noqa: RUF009 (it is a constant)

    def __post_init__(self) -> None:
        self.ended = False
        self.lost = 0
        self.background: BackgroundSession | None = None
        self.waiting: list[tuple[JsonObject, bool]] = []
        """Events for a session that is not known yet, and whether each ends the session."""
        self.queue = self.queue_kind(self.dialect, self.keep_typed, self.take)
        self.left_at: int | None = None
        """When the connection was closed or lost, Unix ms."""
        self.closed_by_app = False
        self.timer: asyncio.TimerHandle | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.on_left: Callable[[], object] = lambda: None
        if self.given_id is not None:
            self.begin(self.given_id)

    # For users

    @property
    def session_id(self) -> str | None:
        """The id of the session; None until the vendor has sent its own."""
        return None if self.background is None else self.background.session_id

    @property
    def session(self) -> ProducerSession | None:
        """The client's session; None until it is open."""
        return None if self.background is None else self.background.session

    @property
    def counts(self) -> dict[str, int]:
        """The number of messages so far by result: `taken`, `ignored`, `unknown`, `malformed`, `dropped`."""
        return dict(self.queue.counts)

    @property
    def dropped(self) -> int:
        """The number of frames and events dropped because too much is unacknowledged, or the session has ended."""
        background = 0 if self.background is None else self.background.dropped
        return self.queue.counts["dropped"] + self.lost + background

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event of voicemem.v1 in order with the frames: `tool.call`, `message`, `tts` …. Returns at once."""
        self.queue.finish()
        if isinstance(event, Mapping):
            self.forward({"ts": now_ms(), **event}, event.get("type") == "session.end")
        else:
            self.failed(TypeError("An event must be a mapping, such as a dict."))

    async def context(self, **params: Any) -> JsonObject | None:
        """Return the body of the next LLM request, with all messages of the connection; None if it is late.

        It takes at most the client's `context_timeout_s` in all. For five seconds after a failure it returns None at
        once.
        """
        self.queue.finish()
        return None if self.background is None else await self.background.context(**params)

    async def aclose(self, reason: str | None = None, *, timeout: float | None = None) -> None:
        """End the session, if it has not ended, and wait until all of it is on disk.

        It waits at most `timeout` seconds, by default the client's `close_timeout_s`; the rest is delivered later,
        while the event loop runs. A client that was made for this connection is closed afterwards.
        """
        self.stop_timer()
        self.end(reason or CLOSED)
        self.leaving = self.leaving or asyncio.ensure_future(self.leave(self.times.linger_s))
        await asyncio.wait({self.leaving}, timeout=self.client.options.close_timeout_s if timeout is None else timeout)

    # From the connection

    def received(self, data: RawMessage, is_text: bool = False, ts: int | None = None) -> None:
        self.copy(data, "vendor" if self.side == "app" else "app", is_text, ts)

    def sent(self, data: RawMessage, is_text: bool = False, ts: int | None = None) -> None:
        self.copy(data, self.side, is_text, ts)

    def copy(self, data: RawMessage, side: Side, is_text: bool, ts: int | None) -> None:
        if self.left_at is not None and not self.closed_by_app:  # openai's SDK has reconnected
            self.stop_timer()
            self.left_at = None
        self.queue.put(data, side, is_text, ts)

    def closed(self, is_clean: bool = True, by_app: bool = False) -> None:
        """Note that the connection was closed or lost; this may be called more than once."""
        gives_up = by_app and not self.closed_by_app
        self.closed_by_app |= by_app
        if self.leaving is not None or (self.left_at is not None and not gives_up):
            return
        if self.left_at is None:
            self.left_at = now_ms()
            self.queue.finish()
        self.stop_timer()
        delay_s = self.times.closed_s if is_clean else self.times.lost_s
        self.timer = self.queue.loop.call_later(delay_s, self.end_if_lost)

    def failed(self, error: Exception) -> None:
        self.queue.reject(error)

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # To the memory

    def take(self, message: ReducedMessage) -> None:
        """Send a frame to its session, which it may be the first to name."""
        frame = message.frame
        if self.background is None and frame.session_id:
            is_private = INTERNATIONAL.search(frame.session_id) is not None  # it contains a phone number
            self.begin(None if is_private else session_id_of(frame.session_id))
        event = {"type": "frame", "dialect": self.dialect.name, "from": message.side, "ts": message.ts}
        self.forward({**event, "frame": frame.content}, frame.end is not None)

    def forward(self, event: JsonObject, ends: bool = False) -> None:
        if self.ended:
            self.lost += 1
            return
        self.ended = ends
        if self.background is not None:
            self.background.send(event, ends)
            return
        if not self.waiting:
            self.queue.loop.call_later(self.times.session_id_s, self.stop_waiting)
        self.waiting.append((event, ends))
        if len(self.waiting) >= MAX_WAITING:
            self.stop_waiting()

    def stop_waiting(self) -> None:
        if self.background is None:
            self.begin(None)

    def begin(self, session_id: str | None) -> None:
        self.background = BackgroundSession(self.client, session_id, self.producer, self.config)
        waiting, self.waiting = self.waiting, []
        for event, ends in waiting:
            self.background.send(event, ends)

    # The end

    def end(self, reason: str) -> None:
        self.queue.finish()
        if not self.ended and (self.background is not None or self.waiting):
            ts = now_ms() if self.left_at is None else self.left_at
            self.forward({"type": "session.end", "reason": reason, "ts": ts}, ends=True)
        self.ended = True

    def end_if_lost(self) -> None:
        """End the session of a connection that did not come back, unless another connection continues it."""
        self.timer = None
        if self.ends and (self.background is None or self.background.is_alone):
            self.end(CLOSED)
        self.leaving = self.leaving or asyncio.ensure_future(self.leave(self.times.linger_s))

    async def leave(self, timeout_s: float) -> None:
        """Wait up to `timeout_s` until all is on disk; then close a client of our own, even when cancelled."""
        if self.waiting:
            self.stop_waiting()
        try:
            if self.background is not None:
                await self.background.aclose(timeout_s)
        finally:
            if self.is_own:
                try:
                    await self.client.close(0)
                except ClientError as error:
                    LOG.warning("A call was not stored completely. Session %s: %s", self.session_id, error.detail)
            self.on_left()
