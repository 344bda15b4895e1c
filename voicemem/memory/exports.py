"""Exports: calls as documents (docs/exports.md), and all data of a user (docs/privacy.md).

Both write JSON lines, one session at a time (for a user, a few turns of a long one), so neither needs more memory than
the largest session.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import closing, suppress
from functools import partial
from typing import Annotated, Any, Literal
from urllib.parse import urlsplit

import msgspec
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, field, structs

from voicemem.config.session import parse_config
from voicemem.documents.document import Document, Form, Operation, apply_operation, form_of
from voicemem.errors import DamagedEntry, SessionQuarantined
from voicemem.exports.call import CallFacts, call_of
from voicemem.exports.formats import FORMATS, FormatName, file_name
from voicemem.memory.long_term.records import Memory, to_memory
from voicemem.memory.search import Millis
from voicemem.protocol import codec
from voicemem.protocol.codec import is_valid_json
from voicemem.protocol.events import MemoryCarried, MemoryDocument, MemorySummary
from voicemem.protocol.memories import Analysis
from voicemem.protocol.types import MAX_INTEGER, JsonObject, SessionId, fields_of
from voicemem.runtime import Clock, Reader
from voicemem.sessions.journal_pages import events_at
from voicemem.sessions.lifecycle import Label, StateName
from voicemem.sessions.off_loop import next_piece
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.memory_filters import AnyOf, MemoryFilter
from voicemem.store.port import Store
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream
from voicemem.transcript.history import turn_messages
from voicemem.transcript.messages import Role
from voicemem.transcript.state import State

SESSIONS_AT_ONCE = 20
"""Sessions listed at a time: each may have a configuration of 256 KiB."""
LOADING_BYTES = 32 * 1024 * 1024
"""The bytes that a session is expected to take while it is loaded."""


AnyJson = Annotated[Raw, Meta(extra_json_schema={})]
VERSION: Literal[1] = 1
ROWS_AT_ONCE = 500


class CallExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of an export: the format of the document."""

    format: FormatName = "vcon"


class CallsExportQuery(CallExportQuery, frozen=True, forbid_unknown_fields=True):
    """The query of an export of many calls; its conditions are those of the list of sessions."""

    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Label | None = None
    started_after: Millis | None = None
    started_before: Millis | None = None


class CallsBegin(Struct, frozen=True, tag="calls"):
    """The first line: the format, and the number of calls that match the conditions now."""

    format: FormatName
    sessions: int


class OfSession(Struct, frozen=True):
    """A line that is about a session."""

    session_id: SessionId


class ExportedCall(OfSession, frozen=True, tag="call"):
    """A call: a name for its file, and the document; a vCon is an object, any other format a text."""

    file: str
    document: AnyJson


class UnreadableCall(OfSession, frozen=True, tag="unreadable"):
    """A call that is stored, but cannot be read; an operator has to look at it."""


class CallsEnd(Struct, frozen=True, tag="end"):
    """The last line; an export without it is incomplete."""

    calls: int
    unreadable: int


CallsLine = CallsBegin | ExportedCall | UnreadableCall | CallsEnd


def write_call(name: FormatName, stream: Stream, read_model: ReadModel) -> Iterator[str]:
    """The document of a call as it is now, in parts that are written on demand."""
    config = parse_config(stream.config)
    facts = CallFacts(session_id=stream.id, **fields_of(CallFacts, stream), **fields_of(CallFacts, config))
    return FORMATS[name].write(call_of(facts, read_model.timed_messages(), read_model.state, read_model.messages()))


def write_call_up_to(name: FormatName, stream: Stream, read_model: ReadModel) -> Iterator[str] | None:
    """The parts of a call's document, as of the session's row; None if its journal has not come so far."""
    return None if read_model.position < stream.position else write_call(name, stream, read_model)


async def export_calls(
    store: Store, read_models: ReadModelCache, filter: SessionFilter, name: FormatName
) -> AsyncGenerator[bytes, None]:
    """Yield the calls that match conditions, the newest first, each as a line of JSON. Raises `StoreUnavailable`.

    Calls that begin meanwhile may be missing. It needs no more memory than the largest call.
    """
    yield line_of(CallsBegin(name, await store.journal.count_sessions(filter, MAX_INTEGER)))
    calls = unreadable = 0
    async for page in store.journal.list_pages(structs.replace(filter, limit=SESSIONS_AT_ONCE, after=None)):
        for stream in page:
            try:
                make = partial(write_call_up_to, name, stream)
                parts = await read_models.compute_as_of(
                    stream.key, stream.position, make, background=True, owner=stream.project
                )
            except (SessionQuarantined, DamagedEntry):
                unreadable += 1
                yield line_of(UnreadableCall(stream.id))
                continue
            if parts is None:
                continue  # it was erased meanwhile
            calls += 1
            line = call_line(stream, name, parts)
            async for piece in read_models.off_loop.pieces(line, stream.project, background=True):
                yield piece
    yield line_of(CallsEnd(calls, unreadable))


def call_line(stream: Stream, name: FormatName, parts: Iterator[str]) -> Iterator[bytes]:
    head = line_of(ExportedCall(stream.id, file_name(stream.id, name), Raw(b"0")))
    yield head.removesuffix(b"0}\n")
    if FORMATS[name].is_json:
        for part in parts:
            yield part.strip("\n").encode()
    else:
        yield b'"'
        for part in parts:
            yield msgspec.json.encode(part)[1:-1]
        yield b'"'
    yield b"}\n"


def line_of(line: CallsLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"


class Exporting(Struct):
    """An export in progress, with its counts."""

    store: Store
    read_models: ReadModelCache
    reader: Reader
    project: str
    user_id: str
    with_events: bool = False
    counts: Counter[type[Struct]] = field(default_factory=Counter)
    """The lines so far, by their kind."""

    def encode(self, lines: Iterable[ExportLine]) -> bytes:
        text = bytearray()
        for line in lines:
            text += msgspec.json.encode(line) + b"\n"
            self.counts[type(line)] += 1
        return bytes(text)

    async def load(self, stream: Stream) -> ReadModel:
        """Return a read model of the export's own, as soon as the project's readers leave room for it.

        How large it is shows once it is loaded.
        """

        async def load() -> tuple[ReadModel, int]:
            read_model = await self.read_models.load_as_of(
                stream.key, stream.position, background=True, owner=stream.project
            )
            return read_model, read_model.folded_bytes if read_model.is_large else 0

        await self.reader.reserve(LOADING_BYTES)
        return await self.reader.make(load)

    async def user(self) -> AsyncGenerator[bytes, None]:
        of_user = MemoryFilter(project=self.project, user_ids=AnyOf((self.user_id,)), with_superseded=True)
        async for piece in self.kept(of_user):
            yield piece
        for stream in await self.store.journal.find_person(self.project, self.user_id):
            try:
                read_model = await self.load(stream)
                async for piece in self.documents(stream, None, read_model.state.document):
                    yield piece
            except (SessionQuarantined, DamagedEntry):
                yield self.encode([Unreadable(None, "memory")])

    async def kept(self, filter: MemoryFilter) -> AsyncGenerator[bytes, None]:
        while rows := await self.store.memories.list_memories(filter):
            yield self.encode(ExportedMemory(**structs.asdict(to_memory(row))) for row in rows)
            filter = structs.replace(filter, after=(rows[-1].created_ms, rows[-1].id))

    async def session(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        """Yield a session with all that belongs to it; nothing if it was erased meanwhile."""
        head = ExportedSession(
            stream.id, stream.state, stream.reason, stream.started_ms, stream.ended_ms, stream.position, stream.config
        )
        read_model = None
        with suppress(SessionQuarantined, DamagedEntry):
            read_model = await self.load(stream)
            if read_model.position < stream.position:
                return
        yield self.encode([head])
        is_readable = False
        with suppress(SessionQuarantined, DamagedEntry):  # a snapshot may be readable although its journal is not
            if read_model is not None:
                async for piece in self.memory(stream, read_model):
                    yield piece
                is_readable = True
        if not is_readable:
            yield self.encode([Unreadable(stream.id, "memory")])
        of_no_one = MemoryFilter(  # the user's are written, and this user may not see another's
            project=self.project, user_ids=AnyOf((None,)), session_ids=AnyOf((stream.id,)), with_superseded=True
        )
        async for piece in self.kept(of_no_one):
            yield piece
        deliveries = await self.store.deliveries.list_deliveries(stream.key)
        for one in deliveries:  # only the host of the URL, since the rest may be secret
            state: Any = one.state
            receiver = urlsplit(one.url).hostname or ""
            yield self.encode([ExportedDelivery(stream.id, receiver, one.event_type, state, len(one.attempts))])
        if self.with_events or not is_readable:
            async for piece in self.events(stream):
                yield piece

    async def memory(self, stream: Stream, read_model: ReadModel) -> AsyncGenerator[bytes, None]:
        state = read_model.state
        lines = partial(next_piece, (self.encode([line]) for line in transcript_lines(stream.id, state)))
        while piece := await self.read_models.perform(
            stream.key, read_model, lines, read_model.is_large, background=True
        ):
            yield piece
        async for _, event in events_at(self.store.journal, stream.key, [*state.memory_positions]):
            if isinstance(event, MemorySummary):  # including what contexts leave out
                yield self.encode([ExportedSummary(stream.id, event.through_turn, event.text, event.model)])
            elif isinstance(event, MemoryCarried):
                yield self.encode(ExportedCarriedSession(stream.id, one.session_id, one.text) for one in event.sessions)
        if state.data:
            yield self.encode([ExportedData(stream.id, state.data)])
        if state.analysis:
            yield self.encode([ExportedAnalysis(stream.id, state.analysis)])
        async for piece in self.documents(stream, stream.id, state.document):
            yield piece

    async def documents(
        self, stream: Stream, session_id: str | None, document: Document | None
    ) -> AsyncGenerator[bytes, None]:
        """Yield every version of a stream's document, made from the changes in its journal."""
        content: Any = None
        form: Form | None = None
        version, positions = 0, () if document is None else [*document.positions]
        async for row, event in events_at(self.store.journal, stream.key, positions):
            assert isinstance(event, MemoryDocument)
            version += 1
            content = apply_operation(content, event.operation, event.content)
            form = form_of(event) or form
            kind = None if form is None else form.format
            yield self.encode([ExportedDocument(session_id, version, event.operation, row.received_ms, kind, content)])

    async def events(self, stream: Stream) -> AsyncGenerator[bytes, None]:
        position = 0
        try:
            while position < stream.position:
                rows = await self.store.journal.read_rows(
                    stream.key, position, min(ROWS_AT_ONCE, stream.position - position)
                )
                if not rows:
                    return
                if not all(is_valid_json(row.payload) for row in rows):
                    raise DamagedEntry
                yield self.encode(
                    ExportedEvent(
                        stream.id, row.position, row.producer, row.received_ms, codec.on_one_line(row.payload)
                    )
                    for row in rows
                )
                position = rows[-1].position
        except DamagedEntry:
            yield self.encode([Unreadable(stream.id, "events")])


async def export_user(
    store: Store, read_models: ReadModelCache, project: str, user_id: str, clock: Clock, with_events: bool = False
) -> AsyncGenerator[bytes, None]:
    """Yield everything stored about a user, in pieces of whole lines (`ExportLine`). Raises `StoreUnavailable`.

    Sessions that begin meanwhile may be missing. With `with_events`, journals are included.
    """
    with closing(Reader(read_models.budget.reading, project)) as reader:
        export = Exporting(store, read_models, reader, project, user_id, with_events)
        filter = SessionFilter(project=project, user_id=user_id, limit=SESSIONS_AT_ONCE)
        count = await store.journal.count_sessions(filter, MAX_INTEGER)
        linked = await store.users.find_linked(project, user_id)
        begin = ExportBegin(VERSION, user_id, project, clock(), count, UNSET if linked is None else linked)
        yield export.encode([begin])
        async for piece in export.user():
            yield piece
        async for page in store.journal.list_pages(filter):
            for stream in page:
                async for piece in export.session(stream):
                    if piece:
                        yield piece
        counts = [export.counts[kind] for kind in (ExportedSession, ExportedMessage, ExportedMemory, Unreadable)]
        yield export.encode([ExportEnd(export.counts.total(), *counts)])


def transcript_lines(session_id: str, state: State) -> Iterator[ExportLine]:
    """Yield the messages of each turn, including those in progress and forgotten ones, and its tool calls."""
    for turn in state.each_turn():
        for one in turn_messages(state, turn, unfinished=True):
            yield ExportedMessage(session_id, one.role, one.content, one.turn_id, one.timestamp, one.metadata)
        for call in turn.tool_calls or ():
            if call.name is not None:
                values = Raw(call.arguments), Raw(call.result)
                yield ExportedToolCall(session_id, turn.number, call.ts, call.call_id, call.name, *values)


class ExportBegin(Struct, frozen=True, tag="export"):
    """The first line: the user, the time of the export (Unix ms), and the number of sessions.

    `same_as` is the other id of the same person, whose data the export has too.
    """

    version: Literal[1]
    user_id: str
    project: str
    made_at: int
    sessions: int
    same_as: str | UnsetType = UNSET


class ExportedDocument(Struct, frozen=True, tag="document"):
    """A version of a working memory document, and its operation; without a session it is the user's own."""

    session_id: SessionId | None
    version: int
    operation: Operation
    updated_at: int
    format: str | None
    content: str | JsonObject | None


class ExportedSession(OfSession, frozen=True, tag="session"):
    """A session; the lines up to the next one of this type belong to it."""

    state: StateName
    reason: str | None
    started_at: int
    ended_at: int | None
    position: int
    config: Annotated[JsonObject, Meta(extra_json_schema={"type": "object"})]


class ExportedMessage(OfSession, frozen=True, tag="message"):
    """A message of its history. `content` is the heard text; `metadata.original` has the unheard text as well."""

    role: Role
    content: str
    turn_id: int
    timestamp: int
    metadata: JsonObject


class ExportedToolCall(OfSession, frozen=True, tag="tool_call"):
    """A tool call; `result` is null until one has arrived."""

    turn_id: int
    timestamp: int
    call_id: str
    name: str
    arguments: AnyJson
    result: AnyJson


class ExportedSummary(OfSession, frozen=True, tag="summary"):
    """A summary that an LLM wrote of the turns up to `through_turn`, even if another one has replaced it."""

    through_turn: int
    text: str
    model: str | None


class ExportedCarriedSession(OfSession, frozen=True, tag="carried"):
    """The text of an earlier session (`from`) that was carried over; that session may have been erased since."""

    earlier: SessionId = field(name="from")
    text: str


class ExportedMemory(Memory, frozen=True, kw_only=True, rename={"evidence": "from"}, tag="memory"):
    """A long-term memory in the form of its REST route, even if it is obsolete or expired."""


class ExportedData(OfSession, frozen=True, tag="data"):
    """The data of a session."""

    content: JsonObject


class ExportedAnalysis(OfSession, frozen=True, tag="analysis"):
    """The values of the analysis of a call, each with the words that show it."""

    values: Analysis


class ExportedDelivery(OfSession, frozen=True, tag="delivery"):
    """A webhook event about a session: its receiver, and the outcome."""

    receiver: str
    event_type: int
    state: Literal["pending", "delivered", "failed"]
    attempts: int


class ExportedEvent(OfSession, frozen=True, tag="event"):
    """An entry of the journal, as it was received."""

    position: int
    producer: str | None
    received_ms: int
    event: AnyJson


class Unreadable(Struct, frozen=True, tag="unreadable"):
    """A part of the user's data that is stored, but cannot be read; an operator has to look at it."""

    session_id: SessionId | None
    part: Literal["memory", "events"]


class ExportEnd(Struct, frozen=True, tag="end"):
    """The last line; an export without it is incomplete. `lines` counts those before it."""

    lines: int
    sessions: int
    messages: int
    memories: int
    unreadable: int


ExportLine = (
    ExportBegin
    | ExportedDocument
    | ExportedSession
    | ExportedMessage
    | ExportedToolCall
    | ExportedSummary
    | ExportedCarriedSession
    | ExportedMemory
    | ExportedData
    | ExportedAnalysis
    | ExportedDelivery
    | ExportedEvent
    | Unreadable
    | ExportEnd
)
