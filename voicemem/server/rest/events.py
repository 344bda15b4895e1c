"""Events over HTTP: producers without a websocket, and the journal as JSON lines or as a live tail."""

from collections.abc import AsyncGenerator, Sequence
from contextlib import aclosing
from functools import partial
from typing import Annotated

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.dialects.dialect import MalformedFrame
from voicemem.dialects.registry import DIALECTS, decode_message, no_such_dialect, split_frame
from voicemem.errors import CODES, InvalidFrame, Refused
from voicemem.protocol.codec import DecodedEvent, RawJson, RejectedEvent, decode_events, on_one_line, split_lines
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import MAX_INTEGER, JsonObject, Name, Reason, SequenceNumber, matching
from voicemem.runtime import Reader
from voicemem.server.http.openapi import reference
from voicemem.server.http.problems import MEDIA_TYPE, Problem, problem_document
from voicemem.server.http.request import DECODING, Request, json_response, read_body, reader_of, stream_body
from voicemem.server.http.routes import JSON, JSON_LINES, ResponseSpec, Routes
from voicemem.server.rest import tails
from voicemem.sessions.journal_pages import JournalFilter, native_rows, pages_after, pages_before, parts_of
from voicemem.sessions.off_loop import next_piece
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import DEFAULT_PRODUCER, FLOOD_LIMIT, YIELD_EVERY
from voicemem.store.journal import Journal
from voicemem.store.quotas import check_producer
from voicemem.store.records import JournalRow
from voicemem.store.streams import EXPECTED_BACK_MS, Stream

ROUTES = Routes()

OVER = ("superseded", "session_ended", "session_erased")
"""The refusals that hold for every new event of a producer, not for one event."""


class AppendQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Without `epoch` the producer's epoch is not checked. `from_seq` is the lowest seq that can still be sent.

    `producer` is `main` by default, or the dialect's name with one.
    """

    producer: Name | None = None
    epoch: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None
    from_seq: SequenceNumber | None = None
    dialect: Name | None = None
    """The body holds frames of this stack, bare or in envelopes, instead of events."""


Types = Annotated[
    str,
    matching(
        r"^[a-z_]+(?:\.[a-z_]+)*(?:\.\*)?(?:,[a-z_]+(?:\.[a-z_]+)*(?:\.\*)?){0,63}\Z",
        "Types must be types of events, or the beginnings of some with .*, separated by commas",
    ),
]


class JournalQuery(tails.SessionTailQuery, frozen=True, forbid_unknown_fields=True):
    """The query of the journal: entries at positions above `after`; with `before`, those below it, the newest first.

    `types` are types of events, separated by commas; `memory.*` means all with this prefix. `turn_id` leaves what is
    known to be of a turn. With `native` there are events in place of other stacks' frames, at the positions of
    these. All but `after` are for JSON lines, `view` and `open` for a live tail.
    """

    after: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None
    native: bool = False
    types: Types | None = None
    turn_id: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    before: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None


EventObject = Annotated[JsonObject, Meta(extra_json_schema={"anyOf": [reference("ProducedEvent"), {"type": "object"}]})]
"""An object that is not a valid event is reported in the answer; it does not fail the request."""
EventLines = Annotated[list[EventObject], Meta(min_length=1)]


class EventError(Struct, frozen=True):
    """An event that was not stored; `expected` comes with `seq_gap`."""

    seq: int | None
    code: Reason
    detail: str
    expected: int | UnsetType = UNSET


class Appended(Struct, frozen=True):
    """The answer: every event below `next_seq` is on disk. `errors` is empty, as everything was stored or had been."""

    next_seq: int
    errors: list[EventError]


class AppendProblem(Problem, frozen=True):
    """The problem that some events were not stored: those in `errors`. Every other below `next_seq` is on disk."""

    next_seq: int
    errors: list[EventError]


@ROUTES.add(
    "POST /v1/sessions/{id}/events",
    "ingest",
    Appended,
    body={JSON: EventObject | list[EventObject], JSON_LINES: EventLines},
    codes=f"flood events_refused unknown_dialect {' '.join(OVER)}",
    error_kinds={CODES[code].status: AppendProblem for code in ("events_refused", *OVER)},
)
async def append_events(request: Request, query: AppendQuery, stream: Stream) -> web.StreamResponse:
    """Add events to an existing session; the answer comes once they are on disk.

    An event that cannot be stored does not affect the others. The answer is then a 422 that reports it in `errors`; or,
    if the session or the producer takes no events any more and nothing is stored, a 410 or 409.
    """
    services = request.services
    if query.dialect is not None and query.dialect not in DIALECTS:
        raise Refused("unknown_dialect", no_such_dialect(query.dialect))
    producer = check_producer(query.producer or query.dialect or DEFAULT_PRODUCER)
    grant = request.grant
    lease = ProducerLease(stream, producer, query.epoch, grant.allows("admin"), grant.session_id is None, grant.key_id)
    body = await read_body(request)
    decoding = request.shared[DECODING]
    pieces = await decoding.decode(len(body), lambda: split_lines(body), grant.project)
    services.limits.count_events(grant.principal, len(pieces), len(body))
    errors: list[EventError] = []
    taken = ended = False
    for first in range(0, max(1, len(pieces)), YIELD_EVERY):
        part = pieces[first : first + YIELD_EVERY]
        decode = decode_events if query.dialect is None else partial(decode_frames, query.dialect)
        arrivals = await decoding.decode(sum(map(len, part)), partial(decode, part), grant.project)
        # A producer that numbers its events has a buffer, which may hold more.
        until = services.runtime.clock() + EXPECTED_BACK_MS
        for place in range(0, max(1, len(arrivals)), YIELD_EVERY):  # messages of other stacks may have many frames
            some, from_seq = arrivals[place : place + YIELD_EVERY], None if first or place else query.from_seq
            if query.dialect is not None:
                reduce = partial(services.recorder.reduce_frames, lease, some)
                some = await decoding.decode(len(body), reduce, grant.project)
            result = await services.recorder.record(lease, some, from_seq, until)
            for one in result.problems:
                expected = UNSET if one.expected is None else one.expected
                errors.append(EventError(one.seq, one.code, one.detail, expected))
            taken, ended = taken or result.taken, ended or result.ended

        if ended:
            await services.presence.close_when_ended(lease)
        if len(errors) == first + YIELD_EVERY > FLOOD_LIMIT:
            raise InvalidFrame("flood")
    if not errors:
        return json_response(Appended(result.next_seq, errors))
    over = None if taken else next((error.code for error in errors if error.code in OVER), None)
    code = over or "events_refused"
    problem = msgspec.structs.asdict(problem_document(code, CODES[code].sentence))
    body = msgspec.json.encode(AppendProblem(**problem, next_seq=result.next_seq, errors=errors))
    return web.Response(status=CODES[code].status, body=body, content_type=MEDIA_TYPE)


def decode_frames(dialect: str, texts: Sequence[RawJson]) -> list[DecodedEvent | RejectedEvent]:
    arrivals: list[DecodedEvent | RejectedEvent] = []
    for text in map(bytes, texts):
        try:
            frame = decode_message(text, False, dialect)
        except MalformedFrame as malformed:
            frame = RejectedEvent("malformed_frame", str(malformed), None, None, None)
        if isinstance(frame, RejectedEvent):
            arrivals.append(frame)
        else:
            arrivals += [DecodedEvent(part, text) for part in split_frame(frame)]
    return arrivals


@ROUTES.add(
    "GET /v1/sessions/{id}/events",
    "read",
    {
        200: ResponseSpec({JSON_LINES: list[tails.JournalEntry], EVENT_STREAM: tails.TailData | tails.CallData}),
        204: ResponseSpec(),
    },
    codes=f"{tails.TAIL_CODES} session_set_aside",
)
async def read_journal(request: Request, query: JournalQuery, stream: Stream) -> web.StreamResponse:
    """Read the journal as JSON lines: every event as it came, with its position.

    With `Accept: text/event-stream` it is a live tail, which ends with the session: `docs/tail.md`.
    """
    if tails.wants_tail(request):
        if any((query.limit, query.native, query.types, query.turn_id is not None, query.before)):
            raise Refused("invalid_query", "A live tail takes none of limit, native, types, turn_id and before.")
        return await tails.tail_session(request, query, stream, query.after)
    if query.view != "journal" or query.open:
        raise Refused("not_acceptable", "view and open are for a live tail; send Accept: text/event-stream.")
    if query.native and query.before is not None:
        raise Refused("invalid_query", "What frames mean is read forwards; leave before out.")
    services = request.services
    journal_filter = await filter_of(services.read_models, stream, query)
    with reader_of(request) as reader:
        if query.native:
            lines = native_lines(services.read_models, stream, query, journal_filter, reader)
        else:
            lines = journal_lines(services.store.journal, stream, query, journal_filter, reader)
        return await stream_body(request, {"Content-Type": JSON_LINES}, lines)


async def filter_of(read_models: ReadModelCache, stream: Stream, query: JournalQuery) -> JournalFilter:
    types = () if query.types is None else tuple(query.types.split(","))
    turn = None if query.turn_id is None else parts_of(await read_models.get_state(stream), query.turn_id)
    return JournalFilter(types, turn)


async def journal_lines(
    journal: Journal, stream: Stream, query: JournalQuery, journal_filter: JournalFilter, reader: Reader
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a page of entries at a time, which the reader holds. Raises `StoreUnavailable`."""
    limit = query.limit or MAX_INTEGER
    if query.before is None:
        pages = pages_after(journal, stream.key, query.after, journal_filter, limit, reader)
    else:
        bounds = query.after, min(query.before, stream.position + 1)
        pages = pages_before(journal, stream.key, bounds, journal_filter, limit, reader)
    async for rows in pages:
        for piece in iter(partial(next_piece, map(journal_line, rows)), b""):
            yield piece


async def native_lines(
    read_models: ReadModelCache, stream: Stream, query: JournalQuery, journal_filter: JournalFilter, reader: Reader
) -> AsyncGenerator[bytes, None]:
    """Yield the lines of a page with events in place of frames. Raises `SessionQuarantined`, `StoreUnavailable`."""
    left = query.limit or MAX_INTEGER
    async with aclosing(native_rows(read_models, stream, query.after, reader)) as pages:
        async for page in pages:
            rows = journal_filter.matching(page)[:left]
            for piece in iter(partial(next_piece, map(journal_line, rows)), b""):
                yield piece
            left -= len(rows)
            if not left:
                return


def journal_line(row: JournalRow) -> bytes:
    entry = tails.JournalEntry(row.position, row.producer, row.seq, row.received_ms, on_one_line(row.payload))
    return msgspec.json.encode(entry) + b"\n"
