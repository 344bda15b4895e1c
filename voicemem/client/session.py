"""A session for producers: sending of events, reads and changes of its memory, and its working memory."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Literal, TypedDict, Unpack

from voicemem.client.buffer import Ack
from voicemem.client.producer import Producer
from voicemem.client.transport.rest import Query, RestClient, required, session_path
from voicemem.protocol.types import JsonObject


class Documents:
    """The working-memory document of a session: its own, or its user's.

    Each request takes at most `read_timeout_s`. A change is sent once: after `Unreachable` it may or may not be stored.
    With `expected`, the version that the document should have, it is safe to retry. All methods raise `RequestRefused`
    (`precondition_failed` for another version), `Unreachable`, `Closed`.
    """

    def __init__(self, rest: RestClient, path: str) -> None:
        self._rest = rest
        self._path = path

    async def read(self, version: int | None = None) -> JsonObject:
        """Return the document, or a version of it: `content`, `form`, `version`, `updated_ms`."""
        return await self._rest.get(self._path, {"version": version})

    async def append(self, content: str | Mapping[str, Any], expected: int | None = None) -> JsonObject:
        """Merge an object into the document, or append a text. Returns the new document."""
        return await self._send("PATCH", {"content": content}, expected)

    async def replace(self, content: str | Mapping[str, Any], expected: int | None = None) -> JsonObject:
        """Replace the document. Returns the new one."""
        return await self._send("PUT", {"content": content}, expected)

    async def clear(self, expected: int | None = None) -> JsonObject:
        """Empty the document. Returns the new one."""
        return await self._send("DELETE", None, expected)

    async def tools(self) -> list[JsonObject]:
        """Return the tools with which an LLM maintains the document, in OpenAI's form."""
        return list((await self._rest.get(f"{self._path}/tools"))["tools"])

    async def execute(self, tool_call: Mapping[str, Any]) -> JsonObject:
        """Execute an LLM's tool call. Returns the tool message."""
        return await self._rest.send("POST", f"{self._path}/tools", tool_call)

    async def _send(self, method: str, body: Mapping[str, Any] | None, expected: int | None) -> JsonObject:
        headers = {} if expected is None else {"If-Match": f'"{expected}"'}
        return await self._rest.send(method, self._path, body, headers)


class HistoryParams(TypedDict, total=False):
    """The query of `history`; missing fields get the server's defaults."""

    fields: Literal["full", "standard"]
    open: bool
    after_turn: int
    limit: int


class ContextParams(TypedDict, total=False):
    """The query of `context`; missing fields get the server's defaults."""

    style: Literal["openai", "anthropic", "gemini"]
    enrich: Sequence[str]
    system: Literal["one", "separate"]
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
    fields: bool
    peek: bool
    at: int
    at_turn: int


class SearchParams(TypedDict, total=False):
    """Filters and limits of a `search`; missing fields get the server's defaults."""

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
    """Facts about a session that are known without waiting."""

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
        """The number of times that this producer was opened; None if only HTTP was used so far."""
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
        """The number of the next turn: above all turns that the server had, or that this producer has sent."""
        return self._producer.next_turn

    @property
    def unacknowledged(self) -> int:
        """The number of events in the buffer."""
        return len(self._producer.buffer)

    @property
    def unacknowledged_bytes(self) -> int:
        """The size of these events in bytes."""
        return self._producer.buffer.size

    @property
    def dropped(self) -> int:
        """The number of events that `send` could not accept."""
        return self._producer.dropped

    @property
    def times_found(self) -> int:
        """How often `Client.find` has returned it, so that other parts of the program send into it too."""
        return self._producer.times_found

    @property
    def fullness(self) -> float:
        """The used share of the buffer, from 0 to 1."""
        buffer = self._producer.buffer
        return min(1.0, max(len(buffer) / buffer.max_events, buffer.size / buffer.max_bytes))


class ProducerSession(SessionFacts):
    """A session of one producer, from `Client.open`."""

    def __init__(
        self, producer: Producer, schedule_wakeup: Callable[[Producer], None], rest: RestClient | None
    ) -> None:
        super().__init__(producer)
        self._schedule_wakeup = schedule_wakeup
        self._rest = rest

    def send(self, event: Mapping[str, Any], *, ends: bool = False) -> Ack:
        """Accept an event and return at once; may be called from any thread, and never raises.

        The event gets the next `seq`, and the current time as `ts` if it has none. An event that cannot be accepted is
        counted in `dropped` and reported to the option `on_dropped`; awaiting its ack raises the error: `BufferFull`,
        `EventRefused` (not an event, or too big for a frame), `SessionEnded`, `Superseded`, `Closed`, or the
        `ClientError` after which the client cannot continue. A `session.end` is accepted even if the buffer is full,
        and so is another event that `ends` the session, such as a frame of another stack.
        """
        ack = self._producer.take(event, ends)
        if not ack.done():
            self._schedule_wakeup(self._producer)
        return ack

    def leave_gap(self, count: int) -> None:
        """Report that `count` events are missing before the next one; the journal then has a `session.gap`."""
        self._producer.buffer.skip(count)

    async def flush(self, timeout: float | None = None) -> None:
        """Wait until everything sent so far is acknowledged or refused, at most `timeout` seconds.

        Raises `TimedOut`, and the `ClientError` after which nothing more can be acknowledged. Refused events raise only
        from their own acks.
        """
        await self._producer.flush(timeout)

    async def end(self, reason: str | None = None, timeout: float | None = None) -> int:
        """Send `session.end` and wait for its ack, at most `timeout` seconds. Returns its seq; raises as acks do."""
        return await self.send({"type": "session.end"} | ({} if reason is None else {"reason": reason})).result(timeout)

    async def history(self, *, timeout: float | None = None, **params: Unpack[HistoryParams]) -> JsonObject:
        """Read the memory: `session_id`, `state`, `started_at`, `ended_at`, `position`, and the messages in `contents`.

        It shows every event acknowledged before. Times are Unix ms. It takes at most `timeout` seconds, by default
        `read_timeout_s`. Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        return await self._read("/history", params, timeout)

    async def context(self, *, timeout: float | None = None, **params: Unpack[ContextParams]) -> JsonObject:
        """Read the body of the next LLM request, in at most `timeout` seconds, by default `context_timeout_s`.

        Raises `RequestRefused`, `Unreachable`, `Closed`: then use the messages that the program has.
        """
        timeout = self._producer.options.context_timeout_s if timeout is None else timeout
        return await self._read("/context", params, timeout)

    async def turns(self, *, marks: bool = False, timeout: float | None = None) -> list[JsonObject]:
        """Read each turn's start, end, cause and latencies, in at most `timeout` seconds, by default `read_timeout_s`.

        `marks` adds the times of its parts and tool calls.
        Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        return list((await self._read("/turns", {"marks": marks or None}, timeout))["turns"])

    async def add(self, *messages: Mapping[str, Any]) -> JsonObject:
        """Add messages or tool traces that did not come as events, all or none: `role`, `content`, and REST's fields.

        Returns `position` and `turn_id`. The request is sent once, in at most `read_timeout_s`; after `Unreachable` the
        messages may or may not be stored. Raises `RequestRefused`, `Unreachable`, `Closed`.
        """
        return await self._write("POST", "/messages", messages)

    async def forget(
        self, *, through_turn: int | None = None, keep_last: int | None = None, everything: bool = False
    ) -> JsonObject:
        """Leave messages out of every context: all up to a turn, all but the newest, or everything.

        Returns `position`, `forgotten` and `remembered`. Raises `ValueError` unless exactly one of the three is given,
        and what `add` raises.
        """
        arguments = {"through_turn": through_turn, "keep_last": keep_last, "everything": everything or None}
        body = {name: value for name, value in arguments.items() if value is not None}
        if len(body) != 1:
            raise ValueError("say what to forget: through_turn, keep_last or everything")
        return await self._write("POST", "/forget", body)

    async def memory(self) -> JsonObject:
        """Read the memory's parts besides messages: `summaries`, `forgotten`, `carried`. Raises as `history`."""
        return await self._read("/memory")

    @property
    def working_memory(self) -> Documents:
        """The working-memory document of the session or of its user. Raises `ClientError` without a `rest_url`."""
        return Documents(required(self._rest), session_path(self.session_id, "/working-memory"))

    async def data(self) -> JsonObject:
        """Read the session's data, an object of your own. Raises `RequestRefused`, `Unreachable`, `Closed`."""
        return await self._read("/data")

    async def update_data(self, /, **patch: Any) -> JsonObject:
        """Merge values into the data; None removes one. Returns the data; raises what `add` raises."""
        return await self._write("PATCH", "/data", patch)

    async def _write(self, method: str, path: str, body: Any) -> JsonObject:
        return await required(self._rest).send(method, session_path(self.session_id, path), body)

    async def _read(self, path: str, query: Query = None, timeout_s: float | None = None) -> JsonObject:
        return await required(self._rest).get(session_path(self.session_id, path), query, timeout_s)
