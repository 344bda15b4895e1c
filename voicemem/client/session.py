"""A session as producers use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from voicemem.client.buffer import Ack
from voicemem.client.errors import ClientError
from voicemem.client.producer import Producer
from voicemem.client.rest import RestClient, query_params, session_path


class HistoryParams(TypedDict, total=False):
    """Query of `history`; the server's defaults hold for what is absent."""

    fields: Literal["full", "standard"]
    open: bool
    after_turn: int
    limit: int


class ContextParams(TypedDict, total=False):
    """Query of `context`; the server's defaults hold for what is absent."""

    style: Literal["openai", "anthropic", "gemini"]
    enrich: Sequence[str]
    alternate: bool
    tools: bool
    max_history: int
    policy: str
    max_messages: int
    max_tokens: int
    context_window: int
    usage: bool
    data: bool


class SessionFacts:
    """What is known of a session without waiting."""

    def __init__(self, producer: Producer) -> None:
        self._producer = producer

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}, producer {self.producer!r}, {self.state}>"

    @property
    def session_id(self) -> str:
        return self._producer.session_id

    @property
    def producer(self) -> str:
        return self._producer.name

    @property
    def state(self) -> str:
        """`running` or `ended`, as the server last reported."""
        return self._producer.state

    @property
    def epoch(self) -> int | None:
        """How many times this producer has been opened; None if only HTTP was used so far."""
        return self._producer.epoch

    @property
    def incarnation(self) -> str | None:
        """The identity of the server's store; None if only HTTP was used so far."""
        return self._producer.incarnation

    @property
    def next_seq(self) -> int:
        """The seq of the next event."""
        return self._producer.buffer.next_seq

    @property
    def next_turn(self) -> int:
        """The number for a new turn: above all turns that the server had, or that this producer has sent."""
        return self._producer.next_turn

    @property
    def unacknowledged(self) -> int:
        """Number of events in the buffer."""
        return len(self._producer.buffer)

    @property
    def unacknowledged_bytes(self) -> int:
        """Size of these events in bytes."""
        return self._producer.buffer.size

    @property
    def fullness(self) -> float:
        """How full the buffer is, from 0 to 1."""
        buffer = self._producer.buffer
        return min(1.0, max(len(buffer) / buffer.max_events, buffer.size / buffer.max_bytes))


class ProducerSession(SessionFacts):
    """A session as one producer uses it; `Client.open` makes it."""

    def __init__(
        self, producer: Producer, schedule_wakeup: Callable[[Producer], None], rest: RestClient | None
    ) -> None:
        super().__init__(producer)
        self._schedule_wakeup = schedule_wakeup
        self._rest = rest

    def send(self, event: Mapping[str, Any]) -> Ack:
        """Take an event and return at once; may be called from any thread.

        The event gets the next `seq`, and the current time as `ts` if it has none. Raises `BufferFull`, `EventRefused`
        (too big or too deep for a frame), `SessionEnded`, `Superseded`, `ClientError` (the client cannot continue), and
        `TypeError` and `ValueError` (the event is not JSON). Then nothing is taken.
        """
        ack = self._producer.add(event)
        self._schedule_wakeup(self._producer)
        return ack

    async def flush(self) -> None:
        """Wait until everything sent so far is acknowledged or refused.

        Raises the `ClientError` after which nothing more can be acknowledged. A refused event raises from its own ack.
        """
        await self._producer.flush()

    async def end(self, reason: str | None = None) -> int:
        """Send `session.end`, even if the buffer is full, and wait for its ack. Returns its seq; raises as acks do."""
        event = {"type": "session.end"} | ({} if reason is None else {"reason": reason})
        ack = self._producer.add(event, ignore_limits=True)
        self._schedule_wakeup(self._producer)
        return await ack

    async def history(self, **params: Unpack[HistoryParams]) -> dict[str, Any]:
        """The memory: `session_id`, `state`, `started_at`, `ended_at`, `position`, and the messages in `contents`.

        It shows every event acknowledged before. Times are Unix ms. Raises `RequestRefused`, `Unreachable`.
        """
        return await self._read("/history", params)

    async def context(self, **params: Unpack[ContextParams]) -> dict[str, Any]:
        """The body of the next LLM request. Raises `RequestRefused`, `Unreachable`."""
        return await self._read("/context", params)

    async def turns(self) -> list[dict[str, Any]]:
        """Each turn's start, end, cause and latencies. Raises `RequestRefused`, `Unreachable`."""
        turns: list[dict[str, Any]] = (await self._read("/turns", {}))["turns"]
        return turns

    async def _read(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        if self._rest is None:
            raise ClientError("no_rest_url", "Reading needs the URL of the REST API: Client(ingest_url, rest_url).")
        answer: dict[str, Any] = await self._rest.get(session_path(self.session_id, path), query_params(query))
        return answer
