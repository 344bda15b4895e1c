"""Requests and answers, shared by all routes: the guard before each handler, paths, queries, bodies, JSON."""

import asyncio
import re
import time
import zlib
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from contextlib import aclosing, closing
from email.utils import formatdate
from functools import lru_cache, partial
from http import HTTPStatus
from typing import Any, Literal, NamedTuple, TypeVar
from weakref import WeakValueDictionary

import msgspec
from aiohttp import HttpVersion10, HttpVersion11, web
from aiohttp.abc import AbstractStreamWriter
from aiohttp.web_request import BaseRequest
from yarl import URL

from voicemem.errors import InvalidFrame, Refused, SessionQuarantined, StoreUnavailable
from voicemem.protocol.arguments import converted
from voicemem.protocol.codec import decode_body
from voicemem.protocol.explanations import describe_error
from voicemem.protocol.types import MAX_FRAME_BYTES, SESSION_ID_PATTERN, SESSION_ID_RULE, JsonObject, Name
from voicemem.runtime import FairQueue, Reader
from voicemem.security.access import FULL_GRANT, Gate, Grant
from voicemem.server.http.connections import authenticated, connection_of
from voicemem.server.http.problems import SERVER
from voicemem.server.http.routes import NOTHING, Handler, NoQuery, Route
from voicemem.services import Services
from voicemem.sessions.gauges import STORE_S, Gauges
from voicemem.sessions.off_loop import BudgetExhausted
from voicemem.store.streams import Stream

T = TypeVar("T")


class Shared:
    """The objects that the handlers of a port share."""

    def __init__(self) -> None:
        self.shared: dict[web.AppKey[Any], Any] = {}

    def __getitem__(self, key: web.AppKey[T]) -> T:
        value: T = self.shared[key]
        return value

    def __setitem__(self, key: web.AppKey[T], value: T) -> None:
        self.shared[key] = value


class Request(web.Request):
    """A request; its values are kept where aiohttp's copies of the request have them too."""

    @property
    def shared(self) -> Shared:
        return self[APP]

    @property
    def services(self) -> Services:
        return self[APP][SERVICES]

    @property
    def grant(self) -> Grant:
        """The rights of the client, once it has sent a key or needs none."""
        return self[GRANT]

    @property
    def project(self) -> str | None:
        """The client's project; None before it has sent a key."""
        grant = self.get(GRANT)
        return None if grant is None else grant.project

    @property
    def in_path(self) -> dict[str, str]:
        """The values of the path's placeholders, by their names."""
        return self[FOUND].values


Finish = Callable[[Request, web.StreamResponse], Awaitable[None]]
"""Adds to an answer that is about to be sent."""


class Found(NamedTuple):
    """The route of a request, found by its method and path."""

    path: str
    """The path with placeholders, since ids may not appear in metrics; `none` if nothing is served there."""
    handler: Handler | None
    values: dict[str, str]
    allowed: tuple[str, ...]
    """The methods that the path allows, if it does not allow this one."""
    finish: Finish | None


SERVICES = web.AppKey("services", Services)
APP = web.RequestKey("app", Shared)
FOUND = web.RequestKey("found", Found)
GRANT = web.RequestKey("grant", Grant)


# Answers whose head and body are sent at once

EMPTY = HTTPStatus.NO_CONTENT, HTTPStatus.NOT_MODIFIED


@lru_cache(maxsize=1)
def http_date(seconds: int) -> str:
    """Return the value of a `Date` header at Unix seconds."""
    return formatdate(seconds, usegmt=True)


class Answer(web.StreamResponse):
    """A status, headers and a body of JSON in pieces, which may be empty.

    It writes its head itself: aiohttp's `Response` takes longer to make that than to send it. The service alone makes
    its headers, so none can break a line.
    """

    def __init__(self, *body: bytes, status: int = HTTPStatus.OK, headers: Mapping[str, str] = NOTHING) -> None:
        super().__init__(status=status)
        self.pieces = body
        self.own_headers = headers
        self.keeps_connection = False
        self.writer: AbstractStreamWriter | None = None

    @property
    def prepared(self) -> bool:
        return self.writer is not None

    @property
    def keep_alive(self) -> bool:
        return self.keeps_connection

    async def prepare(self, request: BaseRequest) -> AbstractStreamWriter:
        self.writer, self.keeps_connection = request.writer, request.keep_alive
        version, head = request.version, f"HTTP/1.1 {self.status} {self.reason}\r\n"
        if version != HttpVersion11:
            head = f"HTTP/{version.major}.{version.minor}{head[8:]}"
        if size := sum(map(len, self.pieces)):
            head += f"Content-Type: application/json\r\nContent-Length: {size}\r\n"
        elif self.status not in EMPTY:
            head += "Content-Length: 0\r\n"
        for name, value in self.own_headers.items():
            head += f"{name}: {value}\r\n"
        for name, value in self.headers.items():
            head += f"{name}: {value}\r\n"
        if version == HttpVersion11 and not self.keeps_connection:
            head += "Connection: close\r\n"
        elif version == HttpVersion10 and self.keeps_connection:
            head += "Connection: keep-alive\r\n"
        head += f"Date: {http_date(int(time.time()))}\r\nServer: {SERVER}\r\n\r\n"
        pieces = () if request.method == "HEAD" else self.pieces
        await self.writer.write(b"".join((head.encode(), *pieces)))
        return self.writer

    async def write_eof(self, data: bytes = b"") -> None:
        """Wait until the client has read so much that the next answer can be written."""
        assert self.writer is not None
        await self.writer.drain()


# Common to all routes

SESSION_ID = re.compile(SESSION_ID_PATTERN)

LARGE_BYTES = 16 * 1024
"""Bodies and frames up to this size are decoded at once: within a millisecond or two, mostly within a tenth of one."""
DECODING_THREADS = 2
"""So few that a flood of large bodies delays itself only, and not small bodies, the store or name servers."""
LARGE_BODIES = 16
"""Large bodies of a project that are received at a time: hundreds may come at once, and never end."""
LARGE_BODY_BYTES = 64 * 1024
"""Bodies up to this size, and the first so many bytes of larger ones, never wait."""
BROKEN_BODY = "The body is incomplete, or not encoded as its headers say."
KEPT_QUERY, KEPT_QUERIES = 200, 500
"""The most characters of a query that is cached as it was parsed, and the most cached queries of all routes."""
STARTED_PER_ROUND = 4
"""Requests that begin in one round of the event loop; each may work for a millisecond before it waits for something."""


class Decoding:
    """Decodes large bodies and frames in threads, so that others are served meanwhile, until it is closed."""

    def __init__(self) -> None:
        self.pool = ThreadPoolExecutor(DECODING_THREADS, "decoding")  # makes its threads when they are needed
        self.queue = FairQueue(DECODING_THREADS)
        self.resuming = asyncio.Lock()

    async def decode(self, size: int, decode: Callable[[], T], owner: str | None) -> T:
        """Return what `decode` returns or raises, for `size` bytes that a project has sent."""
        if size <= LARGE_BYTES:
            return decode()
        return await self.run(decode, owner)

    async def run(self, work: Callable[[], T], owner: str | None) -> T:
        """Return what `work` returns or raises, in a thread; the queue is fair to projects.

        Callers continue one at a time, each in an iteration of the event loop of its own: their next step may take some
        milliseconds, and dozens of them in one iteration would hold up everybody for their sum.
        """
        async with self.queue.slot(owner):
            done = await asyncio.get_running_loop().run_in_executor(self.pool, work)
        async with self.resuming:
            await asyncio.sleep(0)
        return done

    def close(self) -> None:
        """Let the threads end, without waiting for their work."""
        self.pool.shutdown(wait=False, cancel_futures=True)


DECODING = web.AppKey("decoding", Decoding)
FAIR_QUEUE = web.AppKey("fair_queue", FairQueue)
BODIES: web.AppKey[WeakValueDictionary[str | None, asyncio.Semaphore]] = web.AppKey("bodies")
"""By project, slots for large bodies that are being received; None for clients without a key."""
BODY = web.RequestKey("body", bytes)
GAUGES = web.AppKey("gauges", Gauges)
DOCUMENTED: web.AppKey[list[Route[Any]]] = web.AppKey("documented")
OPENAPI_DOCUMENT: web.AppKey[Callable[[], bytes]] = web.AppKey("document")
"""Makes /openapi.json at its first request, which takes a tenth of a second."""


def reader_of(request: Request, stream: Stream | None = None) -> closing[Reader]:
    """Return a reader for the client's project, until its answer ends; bytes of one memory are held once for all."""
    what = None if stream is None else (stream.key, stream.position)
    return closing(Reader(request.services.budget.reading, request.project, what))


def check_session_id(value: Any) -> str:
    """Return a session id as it was sent. Raises `Refused` for an invalid one."""
    if not isinstance(value, str) or not SESSION_ID.match(value):
        raise Refused("invalid_field", f"A session id is {SESSION_ID_RULE}")
    return value


def name_in_path(request: Request, placeholder: Literal["user_id", "memory_id"]) -> str:
    """Return the id of a user or a memory that the path names. Raises `Refused`."""
    try:
        return msgspec.convert(request.in_path[placeholder], Name)
    except msgspec.ValidationError:
        subject = "A user id" if placeholder == "user_id" else "The id of a memory"
        raise Refused("invalid_field", f"{subject} is 1 to 128 characters.") from None


async def get_stream(request: Request) -> Stream:
    """Return the session that the path names, in the client's project. Raises `Refused`."""
    session_id = check_session_id(request.in_path["id"])
    journal, project = request.services.store.journal, request.grant.project
    return journal.find_kept_session(project, session_id) or await journal.get_session(project, session_id)


def parse_query(request: Request, kind: type[T]) -> T:
    """Return the query parameters as a struct that forbids unknown ones.

    Those that the struct names in `REPEATED` are lists, and may be repeated. Raises `Refused` (`invalid_query`;
    `invalid_field` for a path with U+0000).
    """
    url = request.rel_url
    if "\0" in url.path_safe:
        raise Refused("invalid_field", "An id in a path may have no U+0000.")
    if len(url.raw_query_string) > KEPT_QUERY:
        return convert_query(url, kind)
    of_kind: Any = kind  # for mypy, a type in general cannot be hashed
    query: T = convert_kept_query(url.raw_query_string, of_kind)
    return query


@lru_cache(KEPT_QUERIES)
def convert_kept_query(text: str, kind: Any) -> Any:
    """Convert a short query, and cache it: clients send few different ones, and their structs never change."""
    return convert_query(URL.build(query_string=text, encoded=True), kind)


def convert_query(url: URL, kind: type[T]) -> T:
    if not url.raw_query_string:
        return kind()
    if "%00" in url.query_string:
        raise Refused("invalid_query", "A query may have no U+0000.")
    values: JsonObject = dict(url.query)
    repeated = {name: url.query.getall(name) for name in getattr(kind, "REPEATED", ()) if name in values}
    if len(values) < len(url.query) - sum(len(several) - 1 for several in repeated.values()):
        raise Refused("invalid_query", "A query parameter is given twice.")
    try:
        query = msgspec.convert(values | repeated, kind, strict=False)
    except msgspec.ValidationError as error:
        raise Refused("invalid_query", describe_error(error, kind)) from None
    for name, text in values.items():
        value = getattr(query, name)
        if value is None:  # msgspec takes the text "null" for a null
            raise Refused("invalid_query", f"A query has no null: leave `{name}` out.")
        if type(value) is int and str(value) != text:  # msgspec takes 1e1 for ten
            raise Refused("invalid_query", "A number must be written in plain digits.")
    return query


async def read_body(request: Request, most: int = MAX_FRAME_BYTES) -> bytes:
    """Read the whole body, of `most` bytes, and unpack it. Raises `TimeoutError` if it is too slow, `InvalidFrame`."""
    known: bytes | None = request.get(BODY)
    if known is not None:
        return known
    body = await receive_body(request, most, connection_of(request).deadlines.body)
    encoding = request.headers.get("Content-Encoding", "")
    unpack = partial(decompress, body, encoding, most)
    unpacked = await request.shared[DECODING].run(unpack, request.project) if encoding else unpack()
    request[BODY] = unpacked
    return unpacked


async def receive_body(request: Request, most: int, timeout_s: float) -> bytes:
    """Receive a body in its `Content-Encoding`. Raises `TimeoutError`, `InvalidFrame`.

    A large body waits, within the same time, while its project is sending many others.
    """
    slots = request.shared[BODIES].setdefault(request.project, asyncio.Semaphore(LARGE_BODIES))
    body, holds_slot = bytearray(), False
    try:
        async with asyncio.timeout(timeout_s):
            if (request.content_length or 0) > LARGE_BODY_BYTES:
                holds_slot = await slots.acquire()
            async for piece in request.content.iter_any():
                body += piece
                if len(body) > most:
                    raise InvalidFrame("too_big", f"A body may be at most {most // 1024**2} MiB.")
                if len(body) > LARGE_BODY_BYTES and not holds_slot:
                    holds_slot = await slots.acquire()
    except (web.RequestPayloadError, ConnectionResetError):
        raise InvalidFrame("invalid_http", BROKEN_BODY) from None
    finally:
        if holds_slot:
            slots.release()
    return bytes(body)


def decompress(body: bytes, encoding: str, most: int = MAX_FRAME_BYTES) -> bytes:
    """Undo the `Content-Encoding` of a body, which may be gzip or deflate. Raises `InvalidFrame`."""
    if encoding.lower() in ("", "identity"):
        return body
    if encoding.lower() not in ("gzip", "deflate"):
        raise InvalidFrame("invalid_http", "The Content-Encoding of a body must be gzip or deflate.")
    unpacking = zlib.decompressobj(wbits=47)  # the largest window, and either header
    try:
        text = unpacking.decompress(body, most + 1)
    except zlib.error:
        raise InvalidFrame("invalid_http", BROKEN_BODY) from None
    if len(text) > most:
        raise InvalidFrame("too_big", f"A body may be at most {most // 1024**2} MiB.")
    if not unpacking.eof or unpacking.unused_data:
        raise InvalidFrame("invalid_http", BROKEN_BODY)
    return text


async def read_json(request: Request, empty: bytes = b"") -> Any:
    """Read the body as JSON; an empty body is read as `empty`. Raises as `read_body`, and `Refused`."""
    body = await read_body(request)
    decode = partial(decode_body, body if body.strip() else empty)
    return await request.shared[DECODING].decode(len(body), decode, request.project)


async def read_object(request: Request) -> JsonObject:
    """Read the body as one JSON object; an empty body counts as `{}`. Raises as `read_body`, and `Refused`."""
    value = await read_json(request, b"{}")
    if not isinstance(value, dict):
        raise InvalidFrame("not_events", "The body must be one JSON object.")
    return value


async def read_struct(request: Request, kind: type[T]) -> T:
    """Read the body as a struct; null is allowed in patches only. Raises as `read_object`, and `Refused`."""
    return converted(await read_object(request), kind, nulls=request.method == "PATCH")


def json_response(value: Any, status: int = 200, headers: Mapping[str, str] = NOTHING) -> Answer:
    return Answer(msgspec.json.encode(value), status=status, headers=headers)


async def begin(request: Request, response: web.StreamResponse) -> None:
    """Send the head of an answer whose body follows."""
    response.headers["Server"] = SERVER
    if (finish := request[FOUND].finish) is not None:
        await finish(request, response)
    await response.prepare(request)


async def answer_in_parts(request: Request, headers: Mapping[str, str], parts: Iterator[bytes]) -> web.StreamResponse:
    """Send an answer that may be large: its next parts are made once the client has read the previous ones."""
    off_loop = request.services.read_models.off_loop
    return await stream_body(request, headers, off_loop.pieces(parts, request.project))


async def stream_body(
    request: Request, headers: Mapping[str, str], pieces: AsyncGenerator[bytes, None]
) -> web.StreamResponse:
    """Send pieces as they come, until they end or the client has hung up; other tasks run in between.

    An error aborts the connection: once the head is sent, only a truncated answer can show that it is incomplete.
    """
    response = web.StreamResponse(headers=headers)
    try:
        await begin(request, response)
        async with aclosing(pieces):
            if request.method == "HEAD":
                return response
            async for piece in pieces:
                await response.write(piece)
                await asyncio.sleep(0)
        await response.write_eof()
    except (StoreUnavailable, SessionQuarantined, BudgetExhausted):
        if request.transport is not None:
            request.transport.abort()
    except ConnectionError:
        pass  # the client has hung up, or was cut off because it did not read
    return response


def guard_route(route: Route[Any], gate: Gate) -> Handler:
    """Return the route's handler behind the checks of host, origin, key, scope and query."""
    for_its_session = route.path.startswith("/v1/sessions/{id}") and not route.keys_only

    async def handler(request: Request) -> web.StreamResponse:
        needed = await check_origin(request, route, gate)
        if route.scope is None:
            return await call_handler(request, route)
        authorization = request.headers.get("Authorization")
        grant = await gate.grant(authorization, needed, request.remote) if needed else FULL_GRANT
        if grant is not FULL_GRANT:
            session_id = request.in_path["id"] if for_its_session else None
            grant.require(route.scope, grant.session_id if route.for_tokens else session_id)
        return await answer_as(grant, request, route)

    return handler if route.wrap is None else route.wrap(handler)


async def answer_as(grant: Grant, request: Request, route: Route[Any]) -> web.StreamResponse:
    """Answer a client with these rights, once the fair queue has a slot for the project."""
    authenticated(request)
    request[GRANT] = grant
    if route.takes_turn:
        await wait_for_slot(request)
    return await call_handler(request, route)


def wait_for_slot(request: Request) -> Awaitable[None]:
    """Wait in the fair queue of projects for a slot to begin some work."""
    return request.shared[FAIR_QUEUE].enter_for_round(request.grant.project)


def call_handler(request: Request, route: Route[Any]) -> Awaitable[web.StreamResponse]:
    query = parse_query(request, route.query)
    if route.answers_itself:
        return route.handler(request) if route.query is NoQuery else route.handler(request, query)
    return answer_declared(request, route, {} if route.query is NoQuery else {"query": query})


async def answer_declared(request: Request, route: Route[Any], arguments: JsonObject) -> web.StreamResponse:
    """Call a handler with the session and the body that it takes, and answer with its result."""
    for name, kind in route.parameters.items():
        arguments[name] = await (get_stream(request) if kind is Stream else read_struct(request, kind))
    answer = await route.handler(request, **arguments)
    if isinstance(answer, web.StreamResponse):
        return answer
    (status,) = route.answers
    return web.Response(status=status) if answer is None else json_response(answer, status)


def check_origin(request: Request, route: Route[Any], gate: Gate) -> Awaitable[bool]:
    """Check the origin as `Gate.check_origin` does, and ask the store only if the route needs it."""
    host, origin = request.headers.get("Host"), request.headers.get("Origin")
    if not route.outlives_store:
        return gate.check_origin(host, origin, ask_store=route.scope is not None)
    return check_without_store(host, origin, gate)


async def check_without_store(host: str | None, origin: str | None, gate: Gate) -> bool:
    """Check the origin with the store, or without it while it is away."""
    try:
        async with asyncio.timeout(STORE_S):
            return await gate.check_origin(host, origin)
    except (StoreUnavailable, TimeoutError):
        return await gate.check_origin(host, origin, ask_store=False)
