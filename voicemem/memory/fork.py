"""Forks: new sessions that remember another session up to a turn."""

from collections.abc import Iterator
from typing import Any

import msgspec

from voicemem.config.session import SessionPatch, apply_patch, parse_config, validate_config
from voicemem.errors import Refused
from voicemem.protocol import events
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.sessions.journal_pages import events_at
from voicemem.sessions.lifecycle import Sessions
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.journal import Journal
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import Stream
from voicemem.transcript.history import begun_items, restored_interruptions, turn_entries
from voicemem.transcript.messages import WANTED_BACK, Forgotten, Message, Summary
from voicemem.transcript.state import State, Turn


async def fork(
    sessions: Sessions,
    read_models: ReadModelCache,
    stream: Stream,
    at_turn: int,
    session_id: str | None,
    patch: JsonObject,
    key_id: str | None = None,
) -> Stream:
    """Create a running session with everything up to a turn, and with the configuration after a merge patch.

    Raises `Refused` (`unknown_turn`, `session_exists`, `session_erased`, `invalid_field`).
    """
    state = await read_models.get_state(stream)
    if (at_turn and at_turn not in state.turns) or at_turn > MAX_INTEGER:
        raise Refused("unknown_turn")  # turn 0 always exists, even if it is empty
    changes = validate_config(patch)
    await SCHEMA_WORKER.check_config(changes.public)
    session_patch = SessionPatch(apply_patch(stream.config, changes.public), changes.secrets)
    now = sessions.clock()
    summary = await summary_at(read_models.store.journal, stream, state, at_turn)
    same_user = parse_config(session_patch.public).user_id == parse_config(stream.config).user_id

    def encode_events(read_model: ReadModel) -> list[bytes]:
        left_out = () if same_user else (events.MemoryCarried,)
        forked = fork_events(read_model.state, stream.id, at_turn, summary)
        return [msgspec.json.encode(event) for event in forked if not isinstance(event, left_out)]

    payloads = await read_models.read(stream, encode_events)
    rows = [JournalRow(position, None, None, now, payload) for position, payload in enumerate(payloads, 1)]
    restored = RestoredSession(rows=rows, started_ms=now, secrets_of=stream.key)
    return await sessions.restore(stream.project, session_id, session_patch, restored, key_id)


async def summary_at(journal: Journal, stream: Stream, state: State, at_turn: int) -> Summary | None:
    """Return the newest summary that covers nothing after a turn, and nothing that was forgotten since."""
    newest = state.summary
    if newest is None or newest.through_turn <= at_turn:
        return newest
    newest = None
    async for _, event in events_at(journal, stream.key, [*state.memory_positions]):
        if isinstance(event, events.MemoryForgotten):
            newest = None
        elif isinstance(event, events.MemorySummary) and event.through_turn <= at_turn:
            newest = Summary(event.through_turn, event.text, event.messages, event.model)
    return newest


def fork_events(state: State, session_id: str, at_turn: int, summary: Summary | None = None) -> Iterator[events.Event]:
    """Yield the events that recreate the memory of a session up to a turn: each message whole, as in the history.

    Events that the history does not show, such as deltas, are not copied.
    """
    forgotten, position = state.forgotten or Forgotten(), 0
    kept: list[int] = []
    gone = sorted(state.forgotten_items)
    for turn in state.each_turn():
        number = turn.number
        if number > at_turn:
            break
        # Later events for the items of forgotten parts of a turn must not restore these.
        for begun, items in begun_items(state, turn):
            gone += items if forgotten.covers(number, begun) else ()
        for event, begun in turn_events(state, turn):
            position += 1
            if number == forgotten.turn and not forgotten.covers(number, begun):
                kept.append(position)
            yield event
    if state.forgotten is not None:
        through = min(forgotten.through_turn, at_turn)
        since = forgotten.turn if (forgotten.turn or 0) <= at_turn else None
        yield events.MemoryForgotten(through_turn=None if through < 0 else through, turn=since, kept=tuple(kept))
    if summary is not None:
        yield events.MemorySummary(
            through_turn=summary.through_turn, text=summary.text, messages=summary.messages, model=summary.model
        )
    if state.document is not None:
        # The working memory as it is now: it does not belong to turns.
        content, form = state.document.content, state.document.form
        yield events.MemoryDocument(
            ts=state.document.updated_ms,
            operation="clear" if content is None else "replace",
            content=content,
            format=None if form is None else form.format,
            template=None if form is None else form.template,
            schema=None if form is None else form.schema,
        )
    if state.data:
        yield events.MemoryData(operation="replace", content=state.data)
    if state.carried:
        yield events.MemoryCarried(sessions=state.carried)
    yield events.SessionForked(from_session=session_id, at_turn=at_turn, forgotten_items=tuple(gone))


def turn_events(state: State, turn: Turn) -> Iterator[tuple[events.Event, int]]:
    """Yield the events of a turn, each with the journal position at which its message or tool call began."""
    for entry in turn_entries(state, turn):
        # The first interruption of a reply matters if it has a cause; the message has everything else about it.
        interruption = entry.interruption or next(iter(restored_interruptions(state, entry)), None)
        if interruption is None or interruption.cause is None:
            yield to_message_event(entry.message), entry.position
        else:
            # A reply whose interruption has a cause gets a new item, and the interruption right after it. Late events
            # name the original item, so they cannot change this copy.
            item = f"forked.{entry.position}"
            yield msgspec.structs.replace(to_message_event(entry.message), item=item), entry.position
            yield events.Interrupt(item=item, ts=interruption.ts, cause=interruption.cause), entry.position
    for tool_call in turn.tool_calls or ():
        if tool_call.name is not None:
            arguments = msgspec.json.decode(tool_call.arguments)
            named = {"call_id": tool_call.call_id, "name": tool_call.name, "arguments": arguments}
            metadata = tool_call.wanted_back and {WANTED_BACK: tool_call.wanted_back}
            call = events.ToolCall(turn_id=turn.number, ts=tool_call.ts, metadata=metadata, **named)
            yield call, tool_call.order
        if tool_call.answered:
            answer: Any = {"ts": tool_call.answered_ts, "call_id": tool_call.call_id}
            result = msgspec.json.decode(tool_call.result)
            yield events.ToolResult(turn_id=turn.number, result=result, **answer), tool_call.order
    for latency in turn.latencies or ():
        yield events.Metric(turn_id=turn.number, ts=latency.ts, name=latency.name, latency_ms=latency.latency_ms), 0


def to_message_event(message: Message) -> events.MessageEvent:
    metadata = dict(message.metadata)
    return events.MessageEvent(
        role=message.role,
        text=message.content,
        source=metadata.pop("source"),
        turn_id=message.turn_id,
        ts=message.timestamp,
        metadata=metadata or None,
    )
