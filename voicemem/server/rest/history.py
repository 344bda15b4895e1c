"""Reading a memory: its history, its turns, and what it has besides messages; and the call as a document."""

import hashlib
from bisect import bisect_right
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import lru_cache, partial
from http import HTTPStatus
from operator import attrgetter
from typing import Annotated, Any, Literal, NamedTuple, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import asdict

from voicemem.config.session import parse_config
from voicemem.exports.formats import FORMATS, file_name
from voicemem.memory.exports import CallExportQuery, CallsExportQuery, CallsLine, export_calls, write_call
from voicemem.memory.statistics import MemoryDetails
from voicemem.protocol.pieces import object_parts
from voicemem.protocol.types import MAX_INTEGER, JsonObject, SessionId
from voicemem.runtime import Reader
from voicemem.security.audit import audit
from voicemem.server.http.request import (
    Answer,
    Request,
    answer_in_parts,
    get_stream,
    reader_of,
    stream_body,
    wait_for_slot,
)
from voicemem.server.http.routes import JSON, JSON_LINES, NOTHING, ResponseSpec, Routes, Tag
from voicemem.sessions.lifecycle import StateName, session_filter
from voicemem.sessions.read_models.read_model import ENCODED_AT_ONCE, LARGE_ROWS, ReadModel
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message, Role
from voicemem.transcript.packing import Items
from voicemem.transcript.turns import ToolMarks, TurnMarks

ROUTES = Routes()
KEPT_ETAGS = 500
FEW = 4
"""Up to this many messages are encoded on the spot, even while other requests wait."""


class HistoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a history: `limit` takes the newest messages; `open` adds replies and partials in progress."""

    fields: Literal["full", "standard"] = "full"
    open: bool = False
    after_turn: Annotated[int, Meta(ge=-1, le=MAX_INTEGER)] | None = None
    limit: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None


class Spoken(Struct, frozen=True):
    """A message with `fields=standard`."""

    role: Role
    content: str


class SessionMemory(Struct, frozen=True):
    """The session of a memory; times are Unix ms."""

    session_id: SessionId
    state: StateName
    started_at: int
    ended_at: int | None
    position: int


class History(SessionMemory, frozen=True):
    """A memory, with its messages in the order of the phone call."""

    contents: list[Message]


class StandardHistory(SessionMemory, frozen=True):
    """A memory with `fields=standard`."""

    contents: list[Spoken]


class TurnsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of turns; `marks` adds when the parts of each turn, and its tool calls, were."""

    marks: bool = False


class TurnStart(Struct, frozen=True):
    """The start of a turn: when it began, and what began it."""

    start_at: int
    type: Literal["voice_input", "greeting", "silence_timeout", "api_speak", "api_think", "message"]
    metadata: JsonObject


class TurnEnd(Struct, frozen=True):
    """The end of a turn: when and how it ended."""

    end_at: int
    type: Literal["ok", "interrupted", "error"]
    metadata: JsonObject


class SegmentLatency(Struct, frozen=True):
    """The newest latency of one stage of the pipeline, in ms."""

    name: str
    latency: float


class TurnMetrics(Struct, frozen=True):
    """The latencies of a turn, in ms."""

    segmented_latency_ms: list[SegmentLatency]
    e2e_latency_ms: float | UnsetType = UNSET


class AgoraTurn(Struct, frozen=True):
    """One turn in Agora's shape; `end` is null while it lasts, `start` as long as nothing was said in it."""

    agent_id: SessionId
    channel: str
    turn_id: int
    start: TurnStart | None
    end: TurnEnd | None
    metrics: TurnMetrics


class TurnReport(AgoraTurn, frozen=True):
    """One turn, with what Agora's shape lacks."""

    reply_after_ms: float | None
    """From the end of the caller's speech to the first audio of the reply; null where that is not known."""
    reply_after_by: Literal["marks", "reported", "estimate"] | None
    """The source: `marks`, the stack's own latency from end to end, or marks of which one is an estimate."""
    false_alarms: int
    marks: TurnMarks | UnsetType = UNSET
    """With `marks=true`."""
    tools: list[ToolMarks] | UnsetType = UNSET


class Turns(Struct, frozen=True):
    """The turns of a session."""

    turns: list[TurnReport]


@ROUTES.add(
    "GET /v1/sessions/{id}/history",
    "read",
    {200: ResponseSpec({JSON: History | StandardHistory}, headers=("ETag",)), 304: ResponseSpec(headers=("ETag",))},
    codes="session_set_aside",
    takes_turn=False,
)
async def read_history(request: Request, query: HistoryQuery, stream: Stream) -> web.StreamResponse:
    """Read the memory, during the phone call and after it: all of it, unless the query says otherwise."""
    services = request.services
    # One position of one journal gives one memory. A restored store has another incarnation, since its positions may
    # mean other events. The key distinguishes sessions with one id; the query chooses what is shown.
    version = f"{services.store.directory.incarnation}/{stream.key}/{stream.position}?{request.query_string}"
    etag, known = etag_of(version), request.headers.get("If-None-Match")
    if known is not None and any(tag.strip().removeprefix("W/") in (etag, "*") for tag in known.split(",")):
        return Answer(status=HTTPStatus.NOT_MODIFIED, headers={"ETag": etag})
    read_model = services.read_models.find_ready(stream)
    if read_model is not None and read_model.position == stream.position:
        question = f"history?{request.rel_url.raw_query_string}"
        body = read_model.kept_answer(question, stream)
        if body is None and is_at_hand(query, read_model):
            first = first_shown(query, read_model.all_messages)
            contents = read_model.encode_messages(query.fields, first)
            body = b"".join((msgspec.json.encode(memory_of(stream))[:-1], b',"contents":', contents, b"}"))
            services.read_models.keep_answer(question, stream, body)
        if body is not None:
            return Answer(body, headers={"ETag": etag})
    await wait_for_slot(request)
    make, is_large = partial(make_contents, query), partial(has_large_contents, query)
    return await answer_with(request, stream, make, is_large, "contents", memory_of, {"ETag": etag})


@lru_cache(KEPT_ETAGS)
def etag_of(version: str) -> str:
    return f'"{hashlib.blake2b(version.encode(), digest_size=16).hexdigest()}"'


def memory_of(stream: Stream) -> SessionMemory:
    return SessionMemory(stream.id, stream.state, stream.started_ms, stream.ended_ms, stream.position)


class Large(NamedTuple):
    """A large answer: its parts, and its approximate size."""

    parts: Iterable[Any]
    size: int


Made = TypeVar("Made", bound=bytes | Large)


async def read_at_once(
    request: Request,
    stream: Stream,
    make: Callable[[ReadModel], Made],
    is_large: Callable[[ReadModel], bool],
    reader: Reader,
) -> tuple[Stream, Made]:
    """Return the session's row, and the result of `make` for the read model of the same moment."""

    async def look() -> tuple[tuple[Stream, Made], int]:
        row = stream
        position, made = await request.services.read_models.read(
            row, lambda read_model: (read_model.position, make(read_model)), is_large
        )
        if position > row.position:  # more was committed since
            row = await get_stream(request)
            made = await request.services.read_models.read(row, make, is_large)
        return (row, made), made.size if isinstance(made, Large) else 0

    return await reader.make(look)


async def answer_with(
    request: Request,
    stream: Stream,
    make: Callable[[ReadModel], bytes | Large],
    is_large: Callable[[ReadModel], bool],
    name: str,
    head: Callable[[Stream], Struct] | None = None,
    headers: Mapping[str, str] = NOTHING,
) -> web.StreamResponse:
    """Answer with the fields of `head`, then the JSON array from `make` in the field `name`."""
    with reader_of(request, stream) as reader:
        stream, made = await read_at_once(request, stream, make, is_large, reader)
        fields = {} if head is None else asdict(head(stream))
        if isinstance(made, bytes):
            return Answer(msgspec.json.encode(fields | {name: Raw(made)}), headers=headers)
        parts = object_parts(fields | {name: iter(made.parts)})
        return await answer_in_parts(request, {"Content-Type": JSON, **headers}, parts)


def make_contents(query: HistoryQuery, read_model: ReadModel) -> bytes | Large:
    """Return the messages that a query selects, as JSON unless they are large."""
    if not (query.open or read_model.has_large_answer):
        return read_model.encode_messages(query.fields, first_shown(query, read_model.current_messages()))
    messages = read_model.messages(unfinished=query.open)  # a list of its own: it is sent while the memory changes
    messages = messages[first_shown(query, messages) :]
    shown = iter(messages) if query.fields == "full" else (Spoken(one.role, one.content) for one in messages)
    if read_model.has_large_answer:
        return Large(shown, sum(len(message.content) for message in messages))
    return msgspec.json.encode([*shown])


def first_shown(query: HistoryQuery, messages: Sequence[Message]) -> int:
    first = 0
    if query.after_turn is not None:
        first = bisect_right(messages, query.after_turn, key=attrgetter("turn_id"))
    return first if query.limit is None else max(first, len(messages) - query.limit)


def is_at_hand(query: HistoryQuery, read_model: ReadModel) -> bool:
    """Return whether nearly all messages that a query selects were encoded before."""
    if query.open or read_model.has_large_answer:
        return False
    few = FEW if read_model.characters <= ENCODED_AT_ONCE else 0
    return read_model.has_encoded(query.fields, first_shown(query, read_model.all_messages), but=few)


def has_large_contents(query: HistoryQuery, read_model: ReadModel) -> bool:
    if query.open:
        return read_model.is_large
    if read_model.has_large_answer:
        return query.limit is None or query.limit > LARGE_ROWS
    return read_model.has_large_encoding(query.fields, first_shown(query, read_model.current_messages()))


@ROUTES.add("GET /v1/sessions/{id}/turns", "read", Turns, codes="session_set_aside")
async def read_turns(request: Request, query: TurnsQuery, stream: Stream) -> web.StreamResponse:
    """Read each turn's start, end, cause and latencies, in Agora's form."""
    channel = parse_config(stream.config).channel or ""

    def make(read_model: ReadModel) -> bytes | Large:
        turns = read_model.turns(query.marks)
        encode = msgspec.json.encode
        reports = Items[bytes](bytes, (encode(TurnReport(stream.id, channel, **turn)) for turn in turns))
        if read_model.has_large_answer:
            return Large(map(Raw, reports), sum(map(len, reports)))
        return b"[%b]" % b",".join(reports)

    return await answer_with(request, stream, make, attrgetter("is_large"), "turns")


@ROUTES.add("GET /v1/sessions/{id}/memory", "read", codes="session_set_aside")
async def read_session_memory(request: Request, stream: Stream) -> MemoryDetails:
    """Read what the memory has besides its messages: summaries, what was forgotten, what was carried over."""
    return await request.services.memory_details.read(stream)


EXPORTS = Tag("exports", "Calls as documents: one, or all for which conditions hold (docs/exports.md).")
KINDS: dict[str, Any] = {"vcon": JsonObject, "jsonl": list[JsonObject]}
DOCUMENTS = {form.media_type.partition(";")[0]: KINDS.get(name, str) for name, form in FORMATS.items()}


@ROUTES.add("GET /v1/sessions/{id}/export", "read", DOCUMENTS, codes="session_set_aside", tag=EXPORTS)
async def export_call(request: Request, query: CallExportQuery, stream: Stream) -> web.StreamResponse:
    """Export a call as a document, during the call or after it."""
    headers = {
        "Content-Type": FORMATS[query.format].media_type,
        "Content-Disposition": f'attachment; filename="{file_name(stream.id, query.format)}"',
        "X-Content-Type-Options": "nosniff",
    }

    def write(read_model: ReadModel) -> Large:
        return Large(write_call(query.format, stream, read_model), read_model.folded_bytes)

    with reader_of(request, stream) as reader:
        _, made = await read_at_once(request, stream, write, lambda read_model: read_model.is_large, reader)
        return await answer_in_parts(request, headers, map(str.encode, made.parts))


@ROUTES.add("GET /v1/exports", "read", {JSON_LINES: list[CallsLine]}, tag=EXPORTS)
async def export_many_calls(request: Request, query: CallsExportQuery) -> web.StreamResponse:
    """Export the calls for which the conditions hold, the newest first, as JSON lines: each has a whole document.

    The last line is of the type `end`; without it the export was cut short.
    """
    services, grant = request.services, request.grant
    audit("calls_exported", grant.key_id, grant.project)
    lines = export_calls(services.store, services.read_models, session_filter(grant.project, query), query.format)
    return await stream_body(request, {"Content-Type": JSON_LINES}, lines)
