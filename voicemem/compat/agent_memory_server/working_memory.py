"""Working memories as sessions: found, listed, read, replaced and deleted (docs/from-agent-memory-server.md).

A PUT is compared with what stands, at a position of the journal; what it changes is journaled right behind that
position, or everything is repeated. So it costs what it changes, and is the same when it is sent again.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from datetime import datetime
from itertools import islice
from typing import NamedTuple
from weakref import WeakValueDictionary

import msgspec
from msgspec import UNSET, structs

from voicemem.compat.agent_memory_server.long_term import LongTermRecords
from voicemem.compat.agent_memory_server.records import (
    GivenWorkingMemory,
    MessageView,
    StrategyConfig,
    WorkingMemoryView,
    check_record,
    draft_of,
    format_ms,
    format_time,
    parse_time,
    to_ms,
    view_of,
)
from voicemem.compat.agent_memory_server.sessions import Owner, extract_of, is_own, lifetime, owner_of, ttl_of
from voicemem.compat.agent_memory_server.working_messages import (
    KEPT_DATA,
    Change,
    Look,
    candidates,
    change_of,
    check_messages,
    data_event,
    events_of,
    fits,
    forgotten_event,
    look_at,
    remembered_orders,
    stamp,
    starts_with,
    summary_event,
)
from voicemem.errors import Refused, StoreUnavailable
from voicemem.llm.tokens import (
    UNKNOWN_WINDOW,
    TokenCounter,
    context_window_of,
    counter,
    encoding_of,
    estimate_tokens,
)
from voicemem.memory.add import API_PRODUCER
from voicemem.protocol.checks import check_text
from voicemem.protocol.codec import DecodedEvent, decode_event
from voicemem.protocol.events import Event, ServerEvent, SessionUpdate
from voicemem.protocol.types import JsonObject
from voicemem.redaction.runs import START
from voicemem.redaction.texts import redact_text, redact_value
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.port import Store
from voicemem.store.streams import Stream, may_reopen

SUMMARY_SHARE = 0.7
"""The share of a window at which agent-memory-server makes a summary; its clients get the distance to it."""
EXACT_CHARACTERS = 200_000
"""Tokens of longer lists are estimated."""
MOST_VERSIONS = 5
"""Positions at which the state is looked for that a writer has read."""
FRESH_MS = 30_000
"""How long after its begin the PUT with which clients begin a session takes nothing away: two that find none both make
an empty one, and the later one must not take away what the other has added by then."""
Admit = Callable[[int, int], None]
"""Called with the number and the bytes of what is to be journaled; raises `RateLimited`."""


class Window(NamedTuple):
    """How many tokens a client's model takes, and how they are counted."""

    tokens: int
    counter: TokenCounter


def window_of(model: str | None, tokens: int | None) -> Window | None:
    """How much a client's model takes; None if it says nothing of it."""
    if model is None and tokens is None:
        return None
    most = tokens or context_window_of(model, {}) or UNKNOWN_WINDOW
    return Window(most, counter(encoding_of(model)))


def count_tokens(messages: Sequence[MessageView], counter: TokenCounter) -> list[int]:
    """The tokens of each message, with its role."""
    length = sum(len(one.content) for one in messages)
    count = counter.count if length <= EXACT_CHARACTERS else estimate_tokens
    return [count(f"{one.role}: {one.content}") for one in messages]


def first_fitting(costs: Sequence[int], most: int) -> int:
    """The first of the newest messages that fit together; the last one is always among them."""
    total = 0
    for index in range(len(costs) - 1, -1, -1):
        total += costs[index]
        if total > most:
            return min(index + 1, len(costs) - 1)
    return 0


def percent(part: float, whole: float) -> float:
    return min(100.0, 100.0 * part / whole) if whole > 0 else 100.0


class WorkingMemories:
    """The working memories of all projects."""

    def __init__(
        self,
        store: Store,
        read_models: ReadModelCache,
        recorder: Recorder,
        sessions: Sessions,
        records: LongTermRecords,
    ) -> None:
        self.store = store
        self.read_models = read_models
        self.recorder = recorder
        self.sessions = sessions
        self.clock = sessions.clock
        self.records = records
        self.owned = records.owned
        self.locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By project and client's id: writers of one process do not get in each other's way."""

    # Reading

    async def read(
        self, project: str, wanted: Owner, window: Window | None = None, newest: int | None = None
    ) -> WorkingMemoryView:
        """A working memory: all messages, the newest, or as many as fit. Raises `Refused` (`unknown_session`)."""
        return await self.view(await self.owned.get(project, wanted), window, newest, fits=True)

    async def view(
        self, stream: Stream, window: Window | None, newest: int | None = None, fits: bool = False
    ) -> WorkingMemoryView:
        look = await self.read_models.read(stream, look_at)
        last_ms, now_ms, owner = await self.received_ms(stream, look.position), self.clock(), owner_of(stream)
        messages = [one.view for one in look.messages]
        if newest is not None and newest > 0:
            messages = sorted(messages, key=lambda one: parse_time(one.created_at, "created_at"))[-newest:]
        costs = [] if window is None else count_tokens(messages, window.counter)
        if window is not None and fits:
            messages = messages[first_fitting(costs, window.tokens) :]
            costs = costs[len(costs) - len(messages) :]
        used = sum(costs)
        return WorkingMemoryView(
            messages=messages,
            memories=[view_of(one) for one in await self.records.find_all(stream.project, look.kept.memories)],
            data=look.data,
            context=look.context,
            user_id=owner.user_id,
            tokens=look.kept.tokens,
            session_id=owner.session_id,
            namespace=owner.namespace,
            long_term_memory_strategy=look.kept.strategy,
            ttl_seconds=ttl_of(stream),
            last_accessed=format_time(stamp(now_ms, last_ms, look.position)),
            created_at=format_ms(stream.started_ms),
            updated_at=format_ms(last_ms),
            context_percentage_total_used=None if window is None else percent(used, window.tokens),
            context_percentage_until_summarization=None
            if window is None
            else percent(used, window.tokens * SUMMARY_SHARE),
        )

    async def received_ms(self, stream: Stream, position: int) -> int:
        """When an entry of the journal came; of position 0, when the session began."""
        rows = await self.store.journal.read_rows(stream.key, position - 1, 1) if position else []
        return rows[0].received_ms if rows else stream.started_ms

    # Writing

    async def write(
        self,
        project: str,
        wanted: Owner,
        given: GivenWorkingMemory,
        key_id: str | None = None,
        admit: Admit = lambda events, size: None,
    ) -> Stream:
        """Replace a working memory, or begin one; the session then.

        Raises `Refused`: `invalid_field`, `too_big`, `session_in_use` while a producer is connected, `session_ended`
        for a call that is over, and what is refused of any session or event.
        """
        now_ms = self.clock()
        check_messages(given.named_messages, now_ms)
        check_text(given.context)
        given = self.redacted(given)
        check_data(given)
        async with self.locks.setdefault((project, wanted.session_id), asyncio.Lock()):
            for _ in range(MAX_APPEND_ATTEMPTS):
                stream = await self.owned.find(project, wanted)
                if stream is None:
                    stream = await self.owned.create(project, wanted, given.ttl_seconds, key_id)
                named = structs.replace(given, memories=await self.records.known_as(stream, given.memories))
                written = await self.replace(stream, named, key_id, admit)
                if written is not None:
                    await self.records.keep_in(written, named.memories)
                    return written
        raise StoreUnavailable("The session changes faster than this change can be stored; try again.")

    def redacted(self, given: GivenWorkingMemory) -> GivenWorkingMemory:
        """The same with its summary and strategy as they are kept."""
        rules = self.sessions.rules
        if rules is None:
            return given
        context = redact_text(given.context, START, rules)[0] if given.context else given.context
        strategy: JsonObject = redact_value(msgspec.to_builtins(given.long_term_memory_strategy), rules)
        kept = msgspec.convert(strategy, StrategyConfig)
        return structs.replace(given, context=context, long_term_memory_strategy=kept)

    async def replace(
        self, stream: Stream, given: GivenWorkingMemory, key_id: str | None, admit: Admit
    ) -> Stream | None:
        """Make a session what is given; None when something else was journaled meanwhile."""
        if stream.state == "running" and stream.silent_since_ms is None:
            raise Refused("session_in_use")
        now_ms = self.clock()
        look = await self.read_models.read(stream, look_at)
        if now_ms < stream.started_ms + FRESH_MS and begins_one(given) and not look.is_empty:
            return stream
        change = await self.change_of(stream, look, given)
        update = config_update(stream, given, renew=not change.add)
        check_forgotten(stream, look, change)
        if (change.add or change.forget or update) and stream.state == "ended" and not may_reopen(stream, now_ms):
            raise Refused("session_ended")
        state = await self.read_models.get_state(stream)
        if state.position != look.position:
            return None
        events: list[Event] = [SessionUpdate(**update)] if update else []
        events += events_of(state, change.add, now_ms, self.sessions.new_id, fresh=change.forget > 0)
        after = stream
        if events:
            recorded = await self.record(stream, events, look.position, key_id, admit)
            if recorded is None:
                return None
            after = recorded
        elif look.position != stream.position:
            after = structs.replace(stream, position=look.position)
        return await self.derive(after, look, change, given)

    async def record(
        self, stream: Stream, events: Sequence[Event], expected: int, key_id: str | None, admit: Admit
    ) -> Stream | None:
        """Journal events right behind a position, all or none; None when something else was there first."""
        arrivals = [decode_event(msgspec.json.encode(event)) for event in events]
        decoded = [one for one in arrivals if isinstance(one, DecodedEvent)]
        for arrival in arrivals:
            if not isinstance(arrival, DecodedEvent):
                raise Refused(arrival.code, arrival.detail)
        admit(len(decoded), sum(len(one.payload) for one in decoded))
        lease = ProducerLease(stream, API_PRODUCER, None, may_call_out=False, key_id=key_id)
        recorded = await self.recorder.record(lease, decoded, expected_position=expected)
        if recorded.position_taken:
            return None
        for problem in recorded.problems:
            raise Refused(problem.code, problem.detail)
        if recorded.reopened:
            self.sessions.webhooks_due.set()
        return recorded.stream

    async def derive(self, stream: Stream, look: Look, change: Change, given: GivenWorkingMemory) -> Stream | None:
        """Journal what the service itself says of the change: what is forgotten, the summary, the data."""
        after: Stream | None = stream
        makers: tuple[Callable[[ReadModel], ServerEvent | None], ...] = (
            lambda read_model: forgotten_event(read_model, look, change),
            lambda read_model: summary_event(read_model, look, change, given),
            lambda read_model: data_event(read_model, given, self.sessions.rules),
        )
        for make in makers:
            assert after is not None
            read_model = await self.read_models.get(after)
            if read_model.position != after.position:
                return None
            event = make(read_model)
            if event is not None:
                payload = msgspec.json.encode(event)
                after = await self.store.journal.append_server_event(
                    stream.key, payload, read_model.position, self.clock()
                )
                if after is None:
                    return None
                self.sessions.on_changed(after)
        return after

    async def change_of(self, stream: Stream, look: Look, given: GivenWorkingMemory) -> Change:
        """What a PUT changes in the list of messages."""
        blurred = self.sessions.rules is not None
        if given.messages is UNSET:
            return Change(0, ())
        if given.last_accessed is None or starts_with(given.messages, look.messages, blurred):
            return change_of(look.messages, given.messages, None, blurred)
        seen = await self.find_seen(stream, look, parse_time(given.last_accessed, "last_accessed"))
        return change_of(look.messages, given.messages, seen, blurred)

    async def find_seen(self, stream: Stream, look: Look, stamped: datetime) -> int | None:
        """How many of the messages that stand its sender has read; None where the time of his read says nothing."""
        for position in islice(candidates(stamped, look.position), MOST_VERSIONS):
            rows = await self.store.journal.read_rows(stream.key, max(position - 1, 0), 2 if position else 1)
            received_ms = rows.pop(0).received_ms if position and rows else stream.started_ms
            next_ms = rows[0].received_ms if rows and position < look.position else None
            if fits(stamped, received_ms, next_ms):
                orders = await self.read_models.read(stream, remembered_orders)
                return sum(order <= position for order in orders[look.hidden : look.hidden + len(look.messages)])
            if received_ms <= to_ms(stamped):
                return None
        return None


def begins_one(given: GivenWorkingMemory) -> bool:
    """Whether a client may have made this because it found no session: empty, with `data` if it says when it was made.

    Of a memory that clears what stands, the client in Python sends no `data`.
    """
    is_empty = not (given.named_messages or given.memories or given.data or given.context)
    return is_empty and (given.data is not None or given.last_accessed is None)


def check_forgotten(stream: Stream, look: Look, change: Change) -> None:
    """Refuse to take away what was recorded of a call, and not put here. Raises `Refused`."""
    if not all(one.was_put for one in look.messages[: change.forget]):
        code = "session_ended" if stream.state == "ended" else "session_in_use"
        raise Refused(code, "What was said in a call can be added to, but not replaced: send its messages first.")


def check_data(given: GivenWorkingMemory) -> None:
    """Refuse a key of our own in the data, and memories without id or text. Raises `Refused`."""
    if KEPT_DATA in (given.data or {}):
        raise Refused("invalid_field", f"The key `{KEPT_DATA}` of `data` is voicemem's own; use another one.")
    for record in given.memories:
        check_record(record)
        draft_of(record, None, "message")


def config_update(stream: Stream, given: GivenWorkingMemory, renew: bool) -> JsonObject:
    """The configuration to change: another lifetime, or the same one from now on, and another strategy."""
    if not is_own(stream):
        return {}
    stays = given.ttl_seconds == ttl_of(stream) and not (renew and given.ttl_seconds)
    update = {} if stays else lifetime(given.ttl_seconds)
    extract = extract_of(given.long_term_memory_strategy)
    if extract != (stream.config.get("memory") or {}).get("extract"):
        update["memory"] = {"extract": extract}
    return update
