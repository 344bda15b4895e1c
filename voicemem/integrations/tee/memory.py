"""What a connection has of its memory: the session, the context of the next LLM call, and the end."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from typing import Any, NamedTuple

from voicemem.client import Client, ClientError, ProducerSession
from voicemem.dialects.dialect import Dialect, Side, session_id_of
from voicemem.integrations.background_session import LOG, BackgroundSession
from voicemem.integrations.tee.frames import FrameQueue, RawMessage, ReducedCrossing, now_ms
from voicemem.protocol.types import JsonObject

MAX_WAITING, MAX_WAIT_S = 64, 10.0
"""Events that wait for the frame that says the vendor's id of the session, and for how long."""
CLOSED_S, LOST_S = 5.0, 60.0
"""How long a connection that was closed, or lost, may come back before its session is ended."""
LINGER_S = 600.0
"""How long a call that is over is still delivered."""
CLOSED = "closed"
"""The reason of an end for which nobody has given another."""


class WaitingEvent(NamedTuple):
    """An event for a session that is not known yet, and whether it ends that."""

    event: JsonObject
    ends: bool


class CallMemory:
    """The memory of one connection; `memory_of` finds it. Nothing here raises, or waits without a bound."""

    def __init__(
        self,
        client: Client,
        is_own: bool,
        dialect: Dialect,
        session_id: str | None,
        *,
        side: Side,
        producer: str,
        config: Mapping[str, Any] | None,
        keep_typed: bool,
        ends: bool,
    ) -> None:
        self.client = client
        self.is_own = is_own
        """Whether the client was made for this connection alone."""
        self.dialect = dialect
        self.sender: Side = side
        self.receiver: Side = "vendor" if side == "app" else "app"
        """Who sends what this program receives."""
        self.producer = producer
        self.config = config
        self.ends = ends
        """Whether the end of the connection is that of the session."""
        self.ended = False
        self.lost = 0
        """Events that came after the end."""
        self.background: BackgroundSession | None = None
        self.waiting: list[WaitingEvent] = []
        self.queue = FrameQueue(dialect, keep_typed, self.take)
        self.left_at: int | None = None
        """When the connection was closed or lost, Unix ms."""
        self.closed_by_app = False
        self.timer: asyncio.TimerHandle | None = None
        self.leaving: asyncio.Task[None] | None = None
        self.linger_s = LINGER_S
        self.on_left: Callable[[], object] = lambda: None
        """Called when nothing more will be delivered."""
        if session_id is not None:
            self.begin(session_id)

    # For users

    @property
    def session_id(self) -> str | None:
        """The id of the session; None until the vendor has said its own."""
        return None if self.background is None else self.background.session_id

    @property
    def session(self) -> ProducerSession | None:
        """The client's session; None until it is open."""
        return None if self.background is None else self.background.session

    @property
    def counts(self) -> dict[str, int]:
        """What became of the messages so far: `taken`, `ignored`, `unknown`, `malformed`, `dropped`."""
        return dict(self.queue.counts)

    @property
    def dropped(self) -> int:
        """How many frames and events could not be kept: too much is unacknowledged, or the session has ended."""
        background = 0 if self.background is None else self.background.dropped
        return self.queue.counts["dropped"] + self.lost + background

    def send(self, event: Mapping[str, Any]) -> None:
        """Send an event of voicemem.v1, in order with the frames: `tool.call`, `message`, `tts` …; returns at once."""
        self.queue.finish()
        if isinstance(event, Mapping):
            self.hand_on({"ts": now_ms(), **event}, event.get("type") == "session.end")
        else:
            self.failed(TypeError("An event must be a mapping, such as a dict."))

    async def context(self, **params: Any) -> JsonObject | None:
        """The body of the next LLM request, with all that has crossed the connection; None if it does not come in time.

        It takes at most the client's `context_timeout_s` in all. After a failure the next are None at once, for five
        seconds.
        """
        self.queue.finish()
        return None if self.background is None else await self.background.context(**params)

    async def aclose(
        self,
        reason: str | None = None,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (it is not a cancellation)
    ) -> None:
        """End the session, if it has not ended, and wait until all of it is on disk.

        It waits at most `timeout` seconds, by default the client's `close_timeout_s`; the rest is delivered later,
        while the event loop runs. A client that was made for this connection is closed then.
        """
        self.stop_timer()
        self.end(reason or CLOSED)
        self.leaving = self.leaving or asyncio.ensure_future(self.leave(self.linger_s))
        await asyncio.wait({self.leaving}, timeout=self.client.options.close_timeout_s if timeout is None else timeout)

    # From the connection

    def received(self, data: RawMessage, is_text: bool = False, ts: int | None = None) -> None:
        """A message that the program has received, at `ts`, or now."""
        if self.left_at is not None:
            self.come_back()
        self.queue.put(data, self.receiver, is_text, ts)

    def sent(self, data: RawMessage, is_text: bool = False, ts: int | None = None) -> None:
        """A message that the program has sent, at `ts`, or now."""
        if self.left_at is not None:
            self.come_back()
        self.queue.put(data, self.sender, is_text, ts)

    def closed(self, is_clean: bool = True, by_app: bool = False) -> None:
        """The connection was closed, or lost; whoever uses it may hear of that more than once."""
        gives_up = by_app and not self.closed_by_app
        self.closed_by_app |= by_app
        if self.leaving is not None or (self.left_at is not None and not gives_up):
            return
        if self.left_at is None:
            self.left_at = now_ms()
            self.queue.finish()
        self.stop_timer()
        self.timer = self.queue.loop.call_later(CLOSED_S if is_clean else LOST_S, self.leave_alone)

    def failed(self, error: Exception) -> None:
        """A message could not be copied."""
        self.queue.reject(error)

    def come_back(self) -> None:
        """Frames after a loss: openai's SDK has connected again."""
        if not self.closed_by_app:
            self.stop_timer()
            self.left_at = None

    def stop_timer(self) -> None:
        if self.timer is not None:
            self.timer.cancel()
            self.timer = None

    # To the memory

    def take(self, crossing: ReducedCrossing) -> None:
        """Hand on a frame, to the session that it may be the first to name."""
        frame = crossing.frame
        if self.background is None and frame.session_id:
            self.begin(session_id_of(frame.session_id))
        event = {
            "type": "frame",
            "dialect": self.dialect.name,
            "from": crossing.side,
            "ts": crossing.ts,
            "frame": frame.content,
        }
        self.hand_on(event, frame.end is not None)

    def hand_on(self, event: JsonObject, ends: bool = False) -> None:
        if self.ended:
            self.lost += 1
            return
        self.ended = ends
        if self.background is not None:
            self.background.send(event, ends)
            return
        if not self.waiting:
            self.queue.loop.call_later(MAX_WAIT_S, self.wait_no_longer)
        self.waiting.append(WaitingEvent(event, ends))
        if len(self.waiting) >= MAX_WAITING:
            self.wait_no_longer()

    def wait_no_longer(self) -> None:
        """Go on without the vendor's id."""
        if self.background is None:
            self.begin(None)

    def begin(self, session_id: str | None) -> None:
        """Open the session, and hand on what waited for it."""
        self.background = BackgroundSession(self.client, session_id, self.producer, self.config)
        waiting, self.waiting = self.waiting, []
        for event, ends in waiting:
            self.background.send(event, ends)

    # The end

    def end(self, reason: str) -> None:
        self.queue.finish()
        if not self.ended and (self.background is not None or self.waiting):
            ts = now_ms() if self.left_at is None else self.left_at
            self.hand_on({"type": "session.end", "reason": reason, "ts": ts}, ends=True)
        self.ended = True

    def leave_alone(self) -> None:
        """End the session of a connection that did not come back, unless another one goes on with it."""
        self.timer = None
        if self.ends and (self.background is None or self.background.is_alone):
            self.end(CLOSED)
        self.leaving = self.leaving or asyncio.ensure_future(self.leave(self.linger_s))

    async def leave(self, timeout_s: float) -> None:
        """Wait until everything is on disk, for so long; then close a client of our own, also when it is cancelled."""
        if self.background is None and self.waiting:
            self.begin(None)
        try:
            if self.background is not None:
                await self.background.aclose(timeout_s)
        finally:
            await self.close_own_client()
            self.on_left()

    async def close_own_client(self) -> None:
        if self.is_own:
            try:
                await self.client.close(0)
            except ClientError as error:
                LOG.warning("Not everything of a call is stored. Session %s: %s", self.session_id, error.detail)
