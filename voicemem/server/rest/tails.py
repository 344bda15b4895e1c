"""Live tails: journals or memories, as server-sent events while they grow."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Iterator
from contextlib import aclosing
from typing import Literal, TypeVar

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.errors import CODES, Refused, VoicememError
from voicemem.memory.statistics import MemoryDetails
from voicemem.protocol import sse
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import Reason, SessionId
from voicemem.server.http.request import Request, stream_body
from voicemem.server.http.routes import Routes
from voicemem.server.rest.history import TurnReport
from voicemem.sessions.lifecycle import Label, session_filter
from voicemem.sessions.tails.followed import CallState, TurnChange
from voicemem.sessions.tails.tail import JournaledJson, MemoryChange, SessionOver, Tail, TailEntry, TailItem, TailView
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message

ROUTES = Routes()
T = TypeVar("T")

KEEP_ALIVE_S = 15.0
"""The longest silence of an answer: less than the minute after which proxies give up on it."""
CHUNK_BYTES = 64 * 1024
"""How many bytes are written at a time, before waiting for the reader."""
TAIL_CODES = "not_acceptable invalid_position other_incarnation draining"


class SessionTailQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`view=messages` follows the memory instead of the journal; `open` adds replies and partials in progress.

    `view=call` follows the memory, what is in progress, the turns and the state.
    """

    view: Literal["journal", "messages", "call"] = "journal"
    open: bool = False


class SessionTailsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The sessions to follow: those that run, and those that begin later. `label` is `key:value` or `key=value`.

    With `state=ended` each session is sent as a whole once it has ended. `view=messages` follows memories instead of
    journals; `open` adds replies and partials in progress.
    """

    view: Literal["journal", "messages"] = "journal"
    open: bool = False
    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Label | None = None


class MessageUpsert(Struct, frozen=True):
    """A message that is new, changed, or moved: it replaces the message with its key, and is behind `after`."""

    key: str
    after: str | None
    message: Message


class MessageChanges(Struct, frozen=True):
    """The changes of the memory up to a position: first apply `removed`, then `upserts` one by one."""

    session_id: SessionId
    position: int
    removed: list[str]
    upserts: list[MessageUpsert]


class TurnUpdate(TurnReport, frozen=True, kw_only=True):
    """A turn as it is now, in place of what was sent of it before: a row of `…/turns?marks=true`."""

    session_id: SessionId
    position: int


class TailCut(Struct, frozen=True):
    """The reason for which a tail ends before its session."""

    reason: Reason
    detail: str


class JournalEntry(Struct, frozen=True):
    """An event with its position; the server's own events have neither producer nor seq."""

    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    event: JournaledJson


TailData = TailEntry | MessageChanges | SessionOver | TailCut
"""The `data` of the events `entry`, `messages`, `end`, and of `goaway` and `error`."""
CallData = TurnUpdate | MemoryDetails | CallState
"""The data of the events `turn`, `memory` and `state`."""
EVENT_NAMES: dict[type, str] = {
    TailEntry: "entry", MemoryChange: "messages", SessionOver: "end",
    TurnUpdate: "turn", MemoryDetails: "memory", CallState: "state",
}  # fmt: skip


def wants_tail(request: Request) -> bool:
    accepted = ",".join(request.headers.getall("Accept", ()))
    return any(part.partition(";")[0].strip().lower() == EVENT_STREAM for part in accepted.split(","))


async def tail_session(request: Request, query: SessionTailQuery, stream: Stream, after: int = 0) -> web.StreamResponse:
    """Follow one session, from `Last-Event-ID` or else from a position."""
    is_call = query.view == "call"
    view = TailView(query.view != "journal", query.open or is_call, is_call)
    tail = await request.services.tails.tail_session(stream, view, last_event_id(request), after)
    if last_event_id(request) is not None and tail.is_finished:
        return web.Response(status=204)  # a browser then stops connecting again
    return await stream_tail(request, tail)


@ROUTES.add("GET /v1/events", "read", {EVENT_STREAM: TailData}, codes=f"{TAIL_CODES} too_many_sessions")
async def tail_sessions(request: Request, query: SessionTailsQuery) -> web.StreamResponse:
    """Follow the sessions that match, as server-sent events: `docs/tail.md`.

    Needs `Accept: text/event-stream`.
    """
    if not wants_tail(request):
        raise Refused("not_acceptable")
    view, conditions = TailView(query.view == "messages", query.open), session_filter(request.grant.project, query)
    tail = await request.services.tails.tail_several(conditions, view, last_event_id(request))
    return await stream_tail(request, tail)


def last_event_id(request: Request) -> str | None:
    """Return the position of the reader; browsers send an empty header if they have none."""
    return request.headers.get("Last-Event-ID") or None


async def stream_tail(request: Request, tail: Tail) -> web.StreamResponse:
    batches = request.services.tails.watch(tail)
    return await stream_events(request, batches, encode_in_pieces, lambda: bool(tail.followed or tail.is_endless))


async def stream_events(
    request: Request,
    batches: AsyncGenerator[list[T], None],
    encode: Callable[[list[T]], Iterator[bytes]],
    is_cut: Callable[[], bool],
) -> web.StreamResponse:
    """Answer with batches as server-sent events, until the client has hung up, which an empty batch checks.

    If they end too early (`is_cut`), the last event says why. Raises `Refused` (`draining`).
    """
    if request.services.draining.is_set():
        raise Refused("draining")

    async def events() -> AsyncGenerator[bytes, None]:
        yield sse.retry(ms=1_000)
        time = asyncio.get_running_loop().time
        last_write = time()
        try:
            async with aclosing(batches):
                async for batch in batches:
                    is_idle = not batch
                    for piece in encode(batch):
                        yield piece
                        last_write = time()
                    if is_idle:
                        grant = request.grant
                        ended = await request.services.access.ended_grants([grant])
                        if grant in ended:
                            raise ended[grant]
                        if request.transport is None or request.transport.is_closing():
                            return
                        if time() - last_write >= KEEP_ALIVE_S:
                            yield sse.KEEP_ALIVE
                            last_write = time()
        except VoicememError as error:
            yield encode_event(None, "error", TailCut(error.code, error.detail))
        else:
            if is_cut():
                yield encode_event(None, "goaway", TailCut("draining", CODES["draining"].sentence))

    return await stream_body(request, sse.HEADERS, events())


def encode_in_pieces(items: list[TailItem]) -> Iterator[bytes]:
    """Encode items of a tail, in pieces of `CHUNK_BYTES`; empty the list, so that a slow reader costs one copy."""
    items.reverse()
    waiting = bytearray()
    while items:
        waiting += encode_item(items.pop())
        while len(waiting) >= CHUNK_BYTES:
            yield bytes(waiting[:CHUNK_BYTES])
            del waiting[:CHUNK_BYTES]
    if waiting:
        yield bytes(waiting)


def encode_item(item: TailItem) -> bytes:
    """Encode one item; an item without content only gives the cursor of the tail."""
    content = item.content
    if content is None:
        return sse.encode(id=item.cursor)
    if isinstance(content, TurnChange):
        stream, row = content
        channel = stream.config.get("channel") or ""
        content = TurnUpdate(stream.id, channel, **row, session_id=stream.id, position=stream.position)
    return encode_event(item.cursor, EVENT_NAMES[type(content)], content)


def encode_event(cursor: str | None, name: str, data: Struct) -> bytes:
    return sse.encode(msgspec.json.encode(data), event=name, id=cursor)
