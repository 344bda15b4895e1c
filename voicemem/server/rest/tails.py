"""Live tails as server-sent events: journals, or memories, while they grow (https://html.spec.whatwg.org, 9.2)."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Raw, Struct

from voicemem.errors import CODES, Refused, VoicememError
from voicemem.protocol import sse
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import Reason, SessionId
from voicemem.server.http.request import GRANT, services_of, stream_body
from voicemem.server.http.routes import ResponseSpec, Route
from voicemem.server.http.schemas import reference
from voicemem.server.rest.sessions import Label, parse_label
from voicemem.sessions.tails.session import Changed, End, Entry, Tail, Told, View
from voicemem.store.records import Row, StreamFilter
from voicemem.store.streams import Stream
from voicemem.transcript.diff import Upsert
from voicemem.transcript.messages import Message

KEEP_ALIVE_S = 15.0
"""Less than the minute after which proxies give up on a silent answer."""
CHUNK_BYTES = 64 * 1024
"""Bytes that are written at a time, before it is waited for the reader."""
PREAMBLE = sse.retry(ms=1_000)
TAIL_CODES = ("not_acceptable", "invalid_position", "other_incarnation", "draining")


class TailQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`view=messages` tells the memory; `open` adds replies and partials in progress."""

    view: Literal["journal", "messages"] = "journal"
    open: bool = False


class SessionTailsQuery(TailQuery, frozen=True, forbid_unknown_fields=True):
    """Which sessions are followed; `label` is `key:value` or `key=value`. Those that run, and those that begin later.

    With `state=ended` a session is told, whole, once it has ended. `view=messages` tells memories; `open` adds replies
    and partials in progress.
    """

    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Label | None = None


class MessageUpsert(Struct, frozen=True):
    """A message that is new, different, or elsewhere: it takes the place of what had its key, behind `after`."""

    key: str
    after: str | None
    message: Message


class MessageChanges(Struct, frozen=True):
    """How a memory has become that of a position: first `removed`, then `upserts` one by one."""

    session_id: SessionId
    position: int
    removed: list[str]
    upserts: list[MessageUpsert]


class EncodedChanges(Struct, frozen=True):
    """The same with messages that are JSON already."""

    session_id: SessionId
    position: int
    removed: list[str]
    upserts: list[Upsert]


class SessionOver(Struct, frozen=True):
    """Nothing more comes of this session."""

    session_id: SessionId
    state: Annotated[str, Meta(extra_json_schema={"enum": ["ended", "erased"]})]
    reason: str | None


class TailCut(Struct, frozen=True):
    """Why a tail ends before its session."""

    reason: Reason
    detail: str


class TailEntry(Struct, frozen=True):
    """An entry of the journal of a session that is followed."""

    session_id: SessionId
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    event: JournaledJson


TailData = TailEntry | MessageChanges | SessionOver | TailCut
"""What stands in `data`, by the name of the event: `entry`, `messages`, `end`, and `goaway` or `error`."""


def wants_tail(request: web.Request) -> bool:
    """Whether the caller takes server-sent events by name."""
    accepted = ",".join(request.headers.getall("Accept", ()))
    return any(part.partition(";")[0].strip().lower() == EVENT_STREAM for part in accepted.split(","))


async def tail_session(request: web.Request, query: TailQuery, stream: Stream, after: int = 0) -> web.StreamResponse:
    """Follow one session, from `Last-Event-ID` or else from a position."""
    tails = services_of(request).tails
    tail = await tails.of_one(stream, View(query.view == "messages", query.open), last_event_id(request), after)
    if last_event_id(request) is not None and tail.is_told:
        return web.Response(status=204)  # which ends a browser's trying again
    return await stream_tail(request, tail)


async def tail_sessions(request: web.Request, query: SessionTailsQuery) -> web.StreamResponse:
    """Follow the sessions that match, as server-sent events: `docs/tail.md`.

    Needs `Accept: text/event-stream`.
    """
    if not wants_tail(request):
        raise Refused("not_acceptable")
    wanted = StreamFilter(
        project=request[GRANT].project, state=query.state, user_id=query.user_id, label=parse_label(query.label)
    )
    view = View(query.view == "messages", query.open)
    return await stream_tail(request, await services_of(request).tails.of_several(wanted, view, last_event_id(request)))


def last_event_id(request: web.Request) -> str | None:
    """Where the reader stands. A browser sends an empty one when it has none."""
    return request.headers.get("Last-Event-ID") or None


async def stream_tail(request: web.Request, tail: Tail) -> web.StreamResponse:
    """Answer with a tail until it is over, or its reader is gone."""
    if services_of(request).draining.is_set():
        raise Refused("draining")
    return await stream_body(request, sse.HEADERS, tail_events(request, tail))


async def tail_events(request: web.Request, tail: Tail) -> AsyncGenerator[bytes, None]:
    """Yield the tail as server-sent events; its last one says why it ends before its session."""
    yield PREAMBLE
    time = asyncio.get_running_loop().time
    last_write = time()
    try:
        async with aclosing(services_of(request).tails.tell(tail)) as telling:
            async for told in telling:
                for piece in pieces(told):
                    yield piece
                    last_write = time()
                if not told:
                    await check_reader(request)
                    if time() - last_write >= KEEP_ALIVE_S:
                        yield sse.KEEP_ALIVE
                        last_write = time()
    except VoicememError as error:
        yield event(None, "error", TailCut(error.code, error.detail))
    else:
        if tail.followed or tail.endless:
            yield event(None, "goaway", TailCut("draining", CODES["draining"].sentence))


async def check_reader(request: web.Request) -> None:
    """Whether the reader is still there, and still allowed. Raises `ConnectionResetError`, `Refused`."""
    grant = request[GRANT]
    over = await services_of(request).access.over([grant])
    if grant in over:
        raise over[grant]
    if request.transport is None or request.transport.is_closing():
        raise ConnectionResetError


def pieces(told: list[Told]) -> list[bytes]:
    """Server-sent events, some at a time."""
    found, piece = [], bytearray()
    for one in told:
        piece += encoded(one)
        if len(piece) >= CHUNK_BYTES:
            found.append(bytes(piece))
            piece.clear()
    return [*found, bytes(piece)] if piece else found


def encoded(told: Told) -> bytes:
    match told.what:
        case Entry(session_id, row):
            entry = TailEntry(session_id, row.position, row.producer, row.seq, row.received_ms, event_json(row))
            return event(told.place, "entry", entry)
        case Changed(session_id, position, changes):
            return event(told.place, "messages", EncodedChanges(session_id, position, changes.removed, changes.upserts))
        case End(session_id, state, reason):
            return event(told.place, "end", SessionOver(session_id, state, reason))
    return sse.encode(id=told.place)


def event(place: str | None, name: str, data: Struct) -> bytes:
    return sse.encode(msgspec.json.encode(data), event=name, id=place)


ROUTES = (
    Route(
        "GET",
        "/v1/events",
        tail_sessions,
        "read",
        SessionTailsQuery,
        {200: ResponseSpec({EVENT_STREAM: TailData})},
        codes=(*TAIL_CODES, "too_many_sessions"),
    ),
)
NO_LINE_BREAKS = bytes.maketrans(b"\r\n", b"  ")
"""Between the tokens of JSON only: inside strings there are none."""
JournaledJson = Annotated[Raw, Meta(extra_json_schema=reference("JournaledEvent"))]


class JournalEntry(Struct, frozen=True):
    """An event at its place; those of the server's own have neither producer nor seq."""

    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    event: JournaledJson


def event_json(row: Row) -> Raw:
    """The event of an entry as it is in the journal, on one line."""
    return Raw(row.payload.translate(NO_LINE_BREAKS))
