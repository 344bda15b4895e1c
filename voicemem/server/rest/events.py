"""Events over HTTP: a producer without a websocket, and the journal as JSON lines."""

from __future__ import annotations

from typing import Annotated, Any

import orjson
from aiohttp import web
from msgspec import Meta, Struct

from voicemem.errors import StoreUnavailable
from voicemem.events import MAX_INTEGER, Name
from voicemem.recorder import DEFAULT_PRODUCER, Line, Problem
from voicemem.server.rest.parts import GRANT, Route, answer, body_of, parts_of, query_of, stream_of
from voicemem.store.base import Row
from voicemem.wire import decode_lines

ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""Between the tokens of JSON only: inside strings there are none."""
PAGE = 1000


class AppendQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Without `epoch` it is not checked."""

    producer: Name = DEFAULT_PRODUCER
    epoch: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None


class JournalQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Entries of positions above `after`."""

    after: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    limit: Annotated[int, Meta(ge=1, le=MAX_INTEGER)] | None = None


async def append(request: web.Request) -> web.Response:
    query = query_of(request, AppendQuery)
    stream = await stream_of(request)
    parts = parts_of(request)
    line = Line(stream, query.producer, query.epoch, may_call_out=request[GRANT].allows("admin"))
    recorded = await parts.recorder.record(line, decode_lines(await body_of(request)))
    if recorded.ended:
        await parts.sessions.close_when_ended(line)
    return answer({"next_seq": recorded.next_seq, "errors": [problem_object(p) for p in recorded.problems]})


def problem_object(problem: Problem) -> dict[str, Any]:
    """How an error in a batch is told; `expected` is there with `seq_gap`."""
    return {key: value for key, value in problem._asdict().items() if key != "expected" or value is not None}


async def journal(request: web.Request) -> web.StreamResponse:
    query = query_of(request, JournalQuery)
    stream = await stream_of(request)
    store = parts_of(request).store
    response = web.StreamResponse(headers={"Content-Type": "application/x-ndjson"})
    await response.prepare(request)
    after, left = query.after, query.limit or MAX_INTEGER
    try:
        while left and (rows := await store.rows(stream.key, after, min(PAGE, left))):
            await response.write(b"".join(journal_line(row) for row in rows))
            after, left = rows[-1].position, left - len(rows)
        await response.write_eof()
    except StoreUnavailable:
        break_off(request)  # the answer has begun: only its being cut short can say that it is not whole
    except ConnectionResetError:
        pass  # the reader has hung up
    return response


def break_off(request: web.Request) -> None:
    if request.transport is not None:
        request.transport.abort()


def journal_line(row: Row) -> bytes:
    """One entry as a line of JSON, its event spliced in as it is in the journal."""
    return orjson.dumps(
        {
            "position": row.position,
            "producer": row.producer,
            "seq": row.seq,
            "received_ms": row.received_ms,
            "event": orjson.Fragment(row.payload.translate(ONE_LINE)),
        },
        option=orjson.OPT_APPEND_NEWLINE,
    )


ROUTES = (
    Route("POST", "/v1/sessions/{id}/events", append, "ingest"),
    Route("GET", "/v1/sessions/{id}/events", journal, "read"),
)
