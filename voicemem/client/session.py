"""A session as producers use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from voicemem.client.buffer import Ack
from voicemem.client.errors import ClientError
from voicemem.client.producer import Producer
from voicemem.client.transport.rest import RestClient, query_params, session_path


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
    peek: bool


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
    def dropped(self) -> int:
        """Number of events that `send` could not take."""
        return self._producer.dropped

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
        """Take an event and return at once; may be called from any thread, and never raises.

        The event gets the next `seq`, and the current time as `ts` if it has none. An event that cannot be taken is
        counted in `dropped` and reported to the option `on_dropped`; awaiting its ack raises why: `BufferFull`,
        `EventRefused` (not an event, or too big for a frame), `SessionEnded`, `Superseded`, `Closed`, or the
        `ClientError` after which the client cannot continue. A `session.end` is taken even if the buffer is full.
        """
        ack = self._producer.take(event)
        if not ack.done():
            self._schedule_wakeup(self._producer)
        return ack

    async def flush(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (it raises an error of its own)
        """Wait until everything sent so far is acknowledged or refused, at most `timeout` seconds.

        Raises `TimedOut`, and the `ClientError` after which nothing more can be acknowledged. A refused event raises
        from its own ack.
        """
        await self._producer.flush(timeout)

    async def end(
        self,
        reason: str | None = None,
        timeout: float | None = None,  # noqa: ASYNC109 (it raises an error of its own)
    ) -> int:
        """Send `session.end` and wait for its ack, at most `timeout` seconds. Returns its seq; raises as acks do."""
        return await self.send({"type": "session.end"} | ({} if reason is None else {"reason": reason})).result(timeout)

    async def history(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (it raises an error of its own)
        **params: Unpack[HistoryParams],
    ) -> dict[str, Any]:
        """The memory: `session_id`, `state`, `started_at`, `ended_at`, `position`, and the messages in `contents`.

        It shows every event acknowledged before. Times are Unix ms. It takes at most `timeout` seconds, by default
        `read_timeout_s`. Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        answer: dict[str, Any] = await self._read("/history", params, timeout, self._producer.options.read_timeout_s)
        return answer

    async def context(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (it raises an error of its own)
        **params: Unpack[ContextParams],
    ) -> dict[str, Any]:
        """The body of the next LLM request, in at most `timeout` seconds, by default `context_timeout_s`.

        Raises `RequestRefused`, `Unreachable`, `Closed`: then the call goes on with the messages that the program has.
        """
        answer: dict[str, Any] = await self._read("/context", params, timeout, self._producer.options.context_timeout_s)
        return answer

    async def turns(
        self,
        *,
        timeout: float | None = None,  # noqa: ASYNC109 (it raises an error of its own)
    ) -> list[dict[str, Any]]:
        """Each turn's start, end, cause and latencies, in at most `timeout` seconds, by default `read_timeout_s`.

        Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        answer = await self._read("/turns", {}, timeout, self._producer.options.read_timeout_s)
        turns: list[dict[str, Any]] = answer["turns"]
        return turns

    async def _read(self, path: str, query: Mapping[str, Any], timeout_s: float | None, default_s: float) -> Any:
        if self._rest is None:
            raise ClientError("no_rest_url", "Reading needs the URL of the REST API: Client(ingest_url, rest_url).")
        path = session_path(self.session_id, path)
        return await self._rest.get(path, query_params(query), default_s if timeout_s is None else timeout_s)
