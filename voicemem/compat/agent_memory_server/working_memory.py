"""Working memories as sessions: read and replaced (docs/from-agent-memory-server.md).

A PUT is compared with the state at a journal position; its changes are journaled directly after that position, or
everything is repeated. So a PUT costs only its changes, and is idempotent.
"""

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import Annotated, Literal, NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, Meta, Struct, structs

from voicemem.compat.agent_memory_server import records as forms
from voicemem.compat.agent_memory_server import sessions, working_messages
from voicemem.compat.agent_memory_server.finding import RecordFinder, RecordSearch, TextFilter
from voicemem.compat.agent_memory_server.long_term import LongTermRecords
from voicemem.errors import Refused, StoreUnavailable
from voicemem.llm.tokens import UNKNOWN_WINDOW, TokenCounter, context_window_of, counter, encoding_of, estimate_tokens
from voicemem.memory.add_and_forget import API_PRODUCER
from voicemem.protocol.codec import check_text, decode_event
from voicemem.protocol.events import Event, MemoryForgotten, ServerEvent, SessionUpdate
from voicemem.protocol.memories import normalised
from voicemem.protocol.quoting import on_one_line, quoted
from voicemem.protocol.types import JsonObject, matching
from voicemem.redaction.digit_runs import START
from voicemem.redaction.texts import redact_text, redact_value
from voicemem.services import Services
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.store.streams import Stream, may_reopen

SUMMARY_SHARE = 0.7
"""The share of a window at which agent-memory-server makes a summary; answers show how near that is."""
MOST_VERSIONS = 5
"""The most positions that are checked for the state that a writer has read."""
FRESH_MS = 30_000
"""How long after a session's start an initial PUT removes nothing: two clients that find no session both send an empty
one, and the later PUT must not remove what the other client has added by then."""
Admit = Callable[[int, int], None]
"""Called with the number and the bytes of the events to journal; raises `RateLimited`."""


class Window(NamedTuple):
    """The context window of a client's model: its size in tokens, and how they are counted."""

    tokens: int
    counter: TokenCounter


def window_of(model: str | None, tokens: int | None) -> Window | None:
    """Return the context window of a client's model; None if the client names neither model nor size."""
    if model is None and tokens is None:
        return None
    most = tokens or context_window_of(model, {}) or UNKNOWN_WINDOW
    return Window(most, counter(encoding_of(model)))


def first_fitting(costs: Sequence[int], most: int) -> int:
    """Return the index of the first of the newest messages that fit together; the last one is always included."""
    total = 0
    for index in range(len(costs) - 1, -1, -1):
        total += costs[index]
        if total > most:
            return min(index + 1, len(costs) - 1)
    return 0


def percent(used: int, window: Window | None, share: float) -> float | None:
    return None if window is None else min(100.0, 100.0 * used / (window.tokens * share))


class WorkingMemories:
    """The working memories of all projects."""

    def __init__(self, services: Services, records: LongTermRecords) -> None:
        self.store = services.store
        self.read_models = services.read_models
        self.recorder = services.recorder
        self.sessions = services.sessions
        self.clock = services.sessions.clock
        self.records = records
        self.owned = records.owned
        self.locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By project and client's id: writers in one process take turns."""

    # Reading

    async def read(
        self, project: str, owner: sessions.Owner, window: Window | None = None, newest: int | None = None
    ) -> forms.WorkingMemoryView:
        """Read a working memory: all messages, the newest, or those that fit. Raises `Refused` (`unknown_session`)."""
        return await self.view(await self.owned.get(project, owner), window, newest, fits=True)

    async def view(
        self, stream: Stream, window: Window | None, newest: int | None = None, fits: bool = False
    ) -> forms.WorkingMemoryView:
        view = await self.read_models.read(stream, working_messages.session_view_of)
        rows = await self.store.journal.read_rows(stream.key, view.position - 1, 1) if view.position else []
        last_ms = rows[0].received_ms if rows else stream.started_ms
        owner = sessions.owner_of(stream)
        memories = await self.records.long_term.find_all(stream.project, view.kept.memories)
        messages = [one.view for one in view.messages]
        if newest is not None and newest > 0:
            messages = sorted(messages, key=lambda one: forms.parse_time(one.created_at, "created_at"))[-newest:]
        costs: list[int] = []
        if window is not None:
            length = sum(len(one.content) for one in messages)
            count = window.counter.count if length <= 200_000 else estimate_tokens
            costs = [count(f"{one.role}: {one.content}") for one in messages]
        if window is not None and fits:
            messages = messages[first_fitting(costs, window.tokens) :]
            costs = costs[len(costs) - len(messages) :]
        used = sum(costs)
        return forms.WorkingMemoryView(
            messages=messages,
            memories=[forms.view_of(one) for one in memories],
            data=view.data,
            context=view.context,
            user_id=owner.user_id,
            tokens=view.kept.tokens,
            session_id=owner.session_id,
            namespace=owner.namespace,
            long_term_memory_strategy=view.kept.strategy,
            ttl_seconds=sessions.ttl_of(stream),
            last_accessed=forms.format_time(working_messages.encode_read_marker(self.clock(), last_ms, view.position)),
            created_at=forms.format_ms(stream.started_ms),
            updated_at=forms.format_ms(last_ms),
            context_percentage_total_used=percent(used, window, 1.0),
            context_percentage_until_summarization=percent(used, window, SUMMARY_SHARE),
        )

    # Writing

    async def write(
        self, project: str, owner: sessions.Owner, body: forms.GivenWorkingMemory, key_id: str | None, admit: Admit
    ) -> Stream:
        """Replace a working memory, or begin one. Return its session.

        Raises `Refused`: `invalid_field`, `too_big`, `session_in_use` while a producer is connected, `session_ended`
        for a call that is over, and the codes of any session or event.
        """
        working_messages.check_messages(body.named_messages, self.clock())
        check_text(body.context)
        body = self.redacted(body)
        check_data(body)
        async with self.locks.setdefault((project, owner.session_id), asyncio.Lock()):
            for _ in range(MAX_APPEND_ATTEMPTS):
                stream = await self.owned.find(project, owner)
                if stream is None:
                    stream = await self.owned.create(project, owner, body.ttl_seconds, key_id)
                named = structs.replace(body, memories=await self.records.known_as(stream, body.memories))
                written = await self.replace(stream, named, key_id, admit)
                if written is not None:
                    await self.records.keep_in(written, named.memories)
                    return written
        raise StoreUnavailable("The session changes faster than this change can be stored; try again.")

    def redacted(self, body: forms.GivenWorkingMemory) -> forms.GivenWorkingMemory:
        rules = self.sessions.rules
        if rules is None:
            return body
        context = redact_text(body.context, START, rules)[0] if body.context else body.context
        strategy: JsonObject = redact_value(msgspec.to_builtins(body.long_term_memory_strategy), rules)
        kept = msgspec.convert(strategy, forms.StrategyConfig)
        return structs.replace(body, context=context, long_term_memory_strategy=kept)

    async def replace(
        self, stream: Stream, body: forms.GivenWorkingMemory, key_id: str | None, admit: Admit
    ) -> Stream | None:
        """Replace a session's content; None if something else was journaled meanwhile."""
        if stream.state == "running" and stream.silent_since_ms is None:
            raise Refused("session_in_use")
        now_ms = self.clock()
        view = await self.read_models.read(stream, working_messages.session_view_of)
        is_filled = view.messages or view.context or view.data or view.kept.memories
        if now_ms < stream.started_ms + FRESH_MS and may_be_initial_put(body) and is_filled:
            return stream
        change, blurred = working_messages.Change(0, ()), self.sessions.rules is not None
        if body.messages is not UNSET:
            seen = None
            if body.last_accessed is not None and not working_messages.starts_with(
                body.messages, view.messages, blurred
            ):
                seen = await self.find_seen(stream, view, forms.parse_time(body.last_accessed, "last_accessed"))
            change = working_messages.change_of(view.messages, body.messages, seen, blurred)
        update = config_update(stream, body, renew=not change.add)
        if not all(one.was_put for one in view.messages[: change.forget]):
            code = "session_ended" if stream.state == "ended" else "session_in_use"
            raise Refused(code, "The messages of a call can be added to, but not replaced: send them first.")
        if (change.add or change.forget or update) and stream.state == "ended" and not may_reopen(stream, now_ms):
            raise Refused("session_ended")
        state = await self.read_models.get_state(stream)
        if state.position != view.position:
            return None
        events: list[Event] = [SessionUpdate(**update)] if update else []
        events += working_messages.events_of(state, change.add, now_ms, self.sessions.new_id, fresh=change.forget > 0)
        after = stream
        if events:
            recorded = await self.record(stream, events, view.position, key_id, admit)
            if recorded is None:
                return None
            after = recorded
        elif view.position != stream.position:
            after = structs.replace(stream, position=view.position)
        return await self.derive(after, view, change, body)

    async def record(
        self, stream: Stream, events: Sequence[Event], expected: int, key_id: str | None, admit: Admit
    ) -> Stream | None:
        """Journal events directly after a position, all or none; None if something else is already there."""
        payloads = [msgspec.json.encode(event) for event in events]
        admit(len(payloads), sum(map(len, payloads)))
        lease = ProducerLease(stream, API_PRODUCER, None, may_call_out=False, key_id=key_id)
        arrivals = map(decode_event, payloads)
        recorded = await self.recorder.record(lease, arrivals, expected_position=expected, whole=True)
        return None if recorded.position_taken else recorded.stream

    async def derive(
        self,
        stream: Stream,
        view: working_messages.SessionView,
        change: working_messages.Change,
        body: forms.GivenWorkingMemory,
    ) -> Stream | None:
        """Journal the server's events for a change: forgotten messages, the summary, the data."""
        after: Stream | None = stream
        makers: tuple[Callable[[ReadModel], ServerEvent | None], ...] = (
            lambda read_model: working_messages.forgotten_event(read_model, view, change),
            lambda read_model: working_messages.summary_event(read_model, body),
            lambda read_model: working_messages.data_event(read_model, body, self.sessions.rules),
        )
        for make in makers:
            assert after is not None
            read_model = await self.read_models.get(after)
            if read_model.position != after.position:
                return None
            event = make(read_model)
            if event is not None:
                for_caller = not isinstance(event, MemoryForgotten)
                after = await self.read_models.append(stream.key, event, read_model.position, self.clock(), for_caller)
                if after is None:
                    return None
                self.sessions.on_changed(after)
        return after

    async def find_seen(self, stream: Stream, view: working_messages.SessionView, stamped: datetime) -> int | None:
        """Count the stored messages that the sender has read; None if the time of that read does not show it."""
        for position in islice(working_messages.possible_positions(stamped, view.position), MOST_VERSIONS):
            rows = await self.store.journal.read_rows(stream.key, max(position - 1, 0), 2 if position else 1)
            received_ms = rows.pop(0).received_ms if position and rows else stream.started_ms
            next_ms = rows[0].received_ms if rows and position < view.position else None
            if working_messages.may_be_read_at(stamped, received_ms, next_ms):
                orders = await self.read_models.read(stream, working_messages.remembered_positions)
                return sum(order <= position for order in orders[view.hidden : view.hidden + len(view.messages)])
            if received_ms <= forms.to_ms(stamped):
                return None
        return None


def may_be_initial_put(body: forms.GivenWorkingMemory) -> bool:
    """Return whether a client may have sent this because it found no session: empty, with `data` if it has a read time.

    To clear a working memory, the Python client sends no `data`.
    """
    is_empty = not (body.named_messages or body.memories or body.data or body.context)
    return is_empty and (body.data is not None or body.last_accessed is None)


def check_data(body: forms.GivenWorkingMemory) -> None:
    """Raise `Refused` for a key of ours in the data, and for memories without id or text."""
    if working_messages.KEPT_DATA in (body.data or {}):
        raise Refused(
            "invalid_field", f"The key `{working_messages.KEPT_DATA}` of `data` is voicemem's own; use another one."
        )
    for record in body.memories:
        forms.check_record(record)
        forms.draft_of(record, None, "message")


def config_update(stream: Stream, body: forms.GivenWorkingMemory, renew: bool) -> JsonObject:
    """Return the changes of the configuration: a new or renewed lifetime, and a new strategy."""
    if not sessions.is_own(stream):
        return {}
    stays = body.ttl_seconds == sessions.ttl_of(stream) and not (renew and body.ttl_seconds)
    update = {} if stays else sessions.lifetime(body.ttl_seconds)
    extract = sessions.extract_of(body.long_term_memory_strategy)
    if extract != (stream.config.get("memory") or {}).get("extract"):
        update["memory"] = {"extract": extract}
    return update


SUMMARY = "## A summary of the conversation so far:\n"
MEMORIES = "## Long term memories related to the user's query\n "
Digits = Annotated[str, matching(r"^[1-9][0-9]{0,9}\Z", "A number in a text is 1 to 10 digits without a leading 0")]
"""A number of tokens, which the client sends as a text."""


class PromptSession(Struct, frozen=True):
    """The session whose messages come first."""

    session_id: sessions.Given
    namespace: sessions.Given | None = None
    user_id: sessions.Given | None = None
    model_name: str | None = None
    context_window_max: Annotated[int, Meta(ge=1)] | Digits | None = None


class PromptRequest(Struct, frozen=True):
    """A question to an LLM, and its context: a session, memories, or both."""

    query: Annotated[str, Meta(max_length=100_000)]
    session: PromptSession | None = None
    long_term_search: RecordSearch | bool | None = None


class TextContent(Struct, frozen=True):
    """A text in MCP's form."""

    text: str
    type: Literal["text"] = "text"


class PromptMessage(Struct, frozen=True):
    """A message of the prompt."""

    role: Literal["system", "user", "assistant"]
    content: TextContent


class Prompt(Struct, frozen=True):
    """The messages for an LLM, and the memories in them."""

    messages: list[PromptMessage]
    long_term_memories: list[forms.RecordView] | None


async def make_prompt(working: WorkingMemories, records: RecordFinder, project: str, request: PromptRequest) -> Prompt:
    """Make the prompt, without an LLM. Raises `Refused` (`invalid_field`)."""
    session = request.session
    if session is None and not request.long_term_search:
        raise Refused("invalid_field", "Either session or long_term_search must be provided.")
    messages: list[PromptMessage] = []
    if session is not None:
        owner = sessions.checked_owner(session.session_id, session.namespace, session.user_id)
        size = session.context_window_max
        try:
            view = await working.read(
                project, owner, window_of(session.model_name, None if size is None else int(size))
            )
            messages += [message("system", SUMMARY + quoted(view.context))] if view.context else []
            messages += [message("user" if one.role == "user" else "assistant", one.content) for one in view.messages]
        except Refused as refused:
            if refused.code != "unknown_session":
                raise
    memories: list[forms.RecordView] = []
    if request.long_term_search:
        said = dict[str, forms.RecordView]()
        for one in (await records.search(project, search_of(request))).memories:
            said.setdefault(normalised(one.text), one)
        memories = list(said.values())
        lines = "\n".join(f"- {on_one_line(one.text)} (ID: {on_one_line(one.id)})" for one in memories)
        messages.append(message("system", MEMORIES + (lines or "No relevant long-term memories found.")))
    messages.append(message("user", request.query))
    return Prompt(messages, memories or None)


def search_of(request: PromptRequest) -> RecordSearch:
    """Return the search for a prompt's memories, without those that the session already shows."""
    search, session = request.long_term_search, request.session
    user_id = None if session is None or not session.user_id else TextFilter(eq=session.user_id)
    if isinstance(search, RecordSearch):
        return structs.replace(search, text=request.query, user_id=search.user_id or user_id)
    others = None if session is None else TextFilter(ne=session.session_id)
    namespace = None if session is None or not session.namespace else TextFilter(eq=session.namespace)
    return RecordSearch(text=request.query, session_id=others, user_id=user_id, namespace=namespace, limit=20)


def message(role: Literal["system", "user", "assistant"], text: str) -> PromptMessage:
    return PromptMessage(role, TextContent(text))
