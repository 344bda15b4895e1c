"""A session as producers use it."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

import msgspec

from voicemem.client.buffer import Ack
from voicemem.client.documents import Documents
from voicemem.client.errors import ClientError
from voicemem.client.producer import Producer
from voicemem.client.transport.rest import RestClient, query_params, session_path

NO_REST_URL = "This needs the URL of the REST API: Client(ingest_url, rest_url)."


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
    memories_max_tokens: int
    memories_kinds: Sequence[Literal["fact", "preference", "episode", "summary", "message"]]
    memories_from: Literal["earlier", "all"]
    usage: bool
    data: bool
    peek: bool
    at: int
    at_turn: int


class SearchParams(TypedDict, total=False):
    """Where and for how much a `search` looks; the server's defaults hold for what is absent."""

    user_id: str
    session_id: str
    namespace: str
    kinds: Sequence[str]
    topics: Sequence[str]
    entities: Sequence[str]
    since: int
    until: int
    as_of: int
    superseded: bool
    mode: str
    limit: int
    cursor: str


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
    def times_found(self) -> int:
        """How often `Client.find` has returned it: another part of the program sends into it too."""
        return self._producer.times_found

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

    def send(self, event: Mapping[str, Any], *, ends: bool = False) -> Ack:
        """Take an event and return at once; may be called from any thread, and never raises.

        The event gets the next `seq`, and the current time as `ts` if it has none. An event that cannot be taken is
        counted in `dropped` and reported to the option `on_dropped`; awaiting its ack raises why: `BufferFull`,
        `EventRefused` (not an event, or too big for a frame), `SessionEnded`, `Superseded`, `Closed`, or the
        `ClientError` after which the client cannot continue. A `session.end` is taken even if the buffer is full; so is
        another event that `ends` the session, such as a frame of another stack.
        """
        ack = self._producer.take(event, ends)
        if not ack.done():
            self._schedule_wakeup(self._producer)
        return ack

    def leave_gap(self, count: int) -> None:
        """Say that so many events are missing before the next one; the journal then has a `session.gap`."""
        self._producer.buffer.skip(count)

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
        marks: bool = False,
        timeout: float | None = None,  # noqa: ASYNC109 (it raises an error of its own)
    ) -> list[dict[str, Any]]:
        """Each turn's start, end, cause and latencies, in at most `timeout` seconds, by default `read_timeout_s`.

        With `marks`, also when its parts and its tool calls were.
        Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        answer = await self._read(
            "/turns", {"marks": True} if marks else {}, timeout, self._producer.options.read_timeout_s
        )
        turns: list[dict[str, Any]] = answer["turns"]
        return turns

    async def add(self, *messages: Mapping[str, Any]) -> dict[str, Any]:
        """Add messages or tool traces that did not come as events, all or none: `role`, `content`, and what REST takes.

        Returns `position` and `turn_id`. It is made once, in at most `read_timeout_s`; after `Unreachable` it is not
        known whether they were stored. Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        return await self._write("POST", "/messages", messages)

    async def forget(
        self, *, through_turn: int | None = None, keep_last: int | None = None, everything: bool = False
    ) -> dict[str, Any]:
        """Leave messages out of every context: all up to a turn, all but the newest, or everything.

        Returns `position`, `forgotten` and `remembered`. Raises `ValueError` unless one of the three is given, and
        what `add` raises.
        """
        asked = {"through_turn": through_turn, "keep_last": keep_last, "everything": everything or None}
        body = {name: value for name, value in asked.items() if value is not None}
        if len(body) != 1:
            raise ValueError("say what to forget: through_turn, keep_last or everything")
        return await self._write("POST", "/forget", body)

    async def memory(self) -> dict[str, Any]:
        """What the memory has besides its messages: `summaries`, `forgotten`, `carried`. Raises as `history`."""
        answer: dict[str, Any] = await self._read("/memory", {}, None, self._producer.options.read_timeout_s)
        return answer

    @property
    def working_memory(self) -> Documents:
        """The document of the session, or of its user. Raises `ClientError` without a `rest_url`."""
        path = session_path(self.session_id, "/working-memory")
        return Documents(self._reader(), path, self._producer.options.read_timeout_s)

    async def data(self) -> dict[str, Any]:
        """The session's data, an object of your own. Raises `RequestRefused`, `Unreachable`, `Closed`."""
        answer: dict[str, Any] = await self._read("/data", {}, None, self._producer.options.read_timeout_s)
        return answer

    async def update_data(self, **patch: Any) -> dict[str, Any]:
        """Merge values into the data; None removes one. Returns the data; raises what `add` raises."""
        return await self._write("PATCH", "/data", patch)

    def _reader(self) -> RestClient:
        if self._rest is None:
            raise ClientError("no_rest_url", NO_REST_URL)
        return self._rest

    async def _write(self, method: str, path: str, body: Any) -> dict[str, Any]:
        raw, timeout_s = msgspec.json.encode(body), self._producer.options.read_timeout_s
        path = session_path(self.session_id, path)
        answer: dict[str, Any] = await self._reader().request(method, path, None, raw, timeout_s)
        return answer

    async def _read(self, path: str, query: Mapping[str, Any], timeout_s: float | None, default_s: float) -> Any:
        path = session_path(self.session_id, path)
        return await self._reader().get(path, query_params(query), default_s if timeout_s is None else timeout_s)
