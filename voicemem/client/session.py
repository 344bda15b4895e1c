"""A session as producers use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from voicemem.client.buffer import Ack
from voicemem.client.errors import ClientError
from voicemem.client.producer import Producer
from voicemem.client.rest import RestClient, query_params, session_path


class HistoryParams(TypedDict, total=False):
    """The query of a history; what is not given is as the server has it."""

    fields: Literal["full", "standard"]
    open: bool
    after_turn: int
    limit: int


class ContextParams(TypedDict, total=False):
    """The query of a context; what is not given is as the server has it."""

    style: Literal["openai", "anthropic", "gemini"]
    enrich: Sequence[str]
    alternate: bool
    tools: bool
    max_history: int


class SessionFacts:
    """What is known of a session, without waiting."""

    def __init__(self, line: Producer) -> None:
        self._producer = line

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {self.session_id!r}, producer {self.producer!r}, {self.state}>"

    @property
    def session_id(self) -> str:
        return self._producer.session_id

    @property
    def producer(self) -> str:
        return self._producer.producer

    @property
    def state(self) -> str:
        """`running` or `ended`, as the server said last."""
        return self._producer.state

    @property
    def epoch(self) -> int | None:
        """How many times this producer was opened; None while only HTTP was used."""
        return self._producer.epoch

    @property
    def incarnation(self) -> str | None:
        """The identity of the server's store; None while only HTTP was used."""
        return self._producer.incarnation

    @property
    def next_seq(self) -> int:
        """The seq that the next event gets."""
        return self._producer.buffer.next_seq

    @property
    def next_turn(self) -> int:
        """The number that a new turn takes: above all that the server had, and that this producer sent."""
        return self._producer.next_turn

    @property
    def unacknowledged(self) -> int:
        """Events in the buffer."""
        return len(self._producer.buffer)

    @property
    def unacknowledged_bytes(self) -> int:
        """Bytes in the buffer."""
        return self._producer.buffer.size

    @property
    def fullness(self) -> float:
        """How full the buffer is, from 0 to 1."""
        buffer = self._producer.buffer
        return min(1.0, max(len(buffer) / buffer.max_events, buffer.size / buffer.max_bytes))


class ProducerSession(SessionFacts):
    """One producer's part in one session; `Client.open` makes it."""

    def __init__(self, line: Producer, notice: Callable[[Producer], None], rest: RestClient | None) -> None:
        super().__init__(line)
        self._schedule_wakeup = notice
        self._rest = rest

    def send(self, event: Mapping[str, Any]) -> Ack:
        """Take an event, and return at once; may be called from any thread.

        It gets the next `seq`, and the current time as `ts` when it has none. Raises `BufferFull`, `EventRefused` (what
        could be no frame: too big, too deep), `SessionEnded`, `Superseded`, `ClientError` (the client cannot go on),
        `TypeError` and `ValueError` (what is no JSON). Then nothing is taken.
        """
        ack = self._producer.add(event)
        self._schedule_wakeup(self._producer)
        return ack

    async def flush(self) -> None:
        """Wait until everything that was sent so far is acknowledged, or refused.

        Raises the `ClientError` after which nothing more can be acknowledged. Refusals are told by their own acks.
        """
        await self._producer.flush()

    async def end(self, reason: str | None = None) -> int:
        """Send `session.end`, whatever is in the buffer, and wait until it is on disk; its seq. Raises as acks do."""
        event = {"type": "session.end"} | ({} if reason is None else {"reason": reason})
        ack = self._producer.add(event, ignore_limits=True)
        self._schedule_wakeup(self._producer)
        return await ack

    async def history(self, **params: Unpack[HistoryParams]) -> dict[str, Any]:
        """The memory: `{"session_id","state","started_at","ended_at","position","contents":[…]}`.

        Shows everything that was acknowledged before. Raises `RequestRefused`, `Unreachable`.
        """
        return await self._read("/history", params)

    async def context(self, **params: Unpack[ContextParams]) -> dict[str, Any]:
        """The body of the next LLM call. Raises `RequestRefused`, `Unreachable`."""
        return await self._read("/context", params)

    async def _read(self, path: str, query: Mapping[str, Any]) -> dict[str, Any]:
        if self._rest is None:
            raise ClientError("no_rest_url", "The client was made without the URL of the REST API.")
        answer: dict[str, Any] = await self._rest.get(session_path(self.session_id, path), query_params(query))
        return answer
