"""The HTTP application: finds the handler of a request and answers it, with one function around every route.

It builds on aiohttp's low-level server, without aiohttp's own router, middlewares and signals: for an answer that is
ready, these cost more than everything else.
"""

import asyncio
import logging
import time
from collections import defaultdict
from collections.abc import Iterable, Iterator
from functools import lru_cache
from typing import Any, NamedTuple, TypeVar

from aiohttp import web

from voicemem.errors import CODES, VoicememError
from voicemem.protocol.types import MAX_FRAME_BYTES
from voicemem.server.http.connections import answer_expect, check_repeated, connection_of
from voicemem.server.http.problems import SERVER, headers_of, problem_response
from voicemem.server.http.request import APP, FOUND, Answer, Finish, Found, Request, Shared
from voicemem.server.http.routes import Handler
from voicemem.telemetry import Telemetry
from voicemem.telemetry.metrics import METHODS

T = TypeVar("T")
LOG, FAULTS = logging.getLogger("voicemem.requests"), logging.getLogger("voicemem")
INGEST_ELSEWHERE = "This is the port of the REST API; websockets have a port of their own (--ingest)."
REST_OF_PATH = ":.+}"
"""The end of a placeholder that matches all remaining segments."""


class Endpoint(NamedTuple):
    """A path with its handlers by method; `names` are the names of its placeholders."""

    path: str
    names: tuple[str, ...]
    handlers: dict[str, Handler]


class Paths:
    """The endpoints of a port, by their segments, in which None is a placeholder."""

    def __init__(self) -> None:
        self.endpoints: dict[tuple[str | None, ...], Endpoint] = {}
        self.shapes: defaultdict[int, list[tuple[int, ...]]] = defaultdict(list)
        """By the number of segments: the places of placeholders in paths, those with literal beginnings first."""
        self.open_shapes: list[tuple[int, ...]] = []
        """The same for paths whose last placeholder matches all remaining segments, the longest first."""

    def add(self, path: str) -> Endpoint:
        """Return the endpoint of a path, which `{name}` segments make a pattern."""
        parts = path.split("/")
        places = tuple(at for at, part in enumerate(parts) if part.startswith("{"))
        if path.endswith(REST_OF_PATH):
            self.open_shapes = sorted({*self.open_shapes, places}, reverse=True)
        else:
            shapes = {*self.shapes[len(parts)], places}
            self.shapes[len(parts)] = sorted(shapes, key=lambda shape: [at in shape for at in range(len(parts))])
        names = (parts[at][1:].removesuffix(REST_OF_PATH).removesuffix("}") for at in places)
        return self.endpoints.setdefault(key_of(parts, places), Endpoint(path, tuple(names), {}))

    def matches(self, path: str) -> Iterator[tuple[Endpoint, list[str]]]:
        """Yield the endpoints of a path, and the values of their placeholders."""
        parts = path.split("/")
        candidates = [(parts, places) for places in self.shapes.get(len(parts), ())]
        candidates += [(path.split("/", places[-1]), places) for places in self.open_shapes if len(parts) > places[-1]]
        for some, places in candidates:
            endpoint = self.endpoints.get(key_of(some, places))
            if endpoint is not None and all(some[at] for at in places):
                yield endpoint, [some[at] for at in places]


def key_of(parts: list[str], places: Iterable[int]) -> tuple[str | None, ...]:
    key: list[str | None] = [*parts]
    for at in places:
        key[at] = None
    return tuple(key)


KEPT_PATH, KEPT_PATHS = 200, 2_000
"""The most characters of a path whose route is cached, and the most cached routes."""


class Application(Shared):
    """The routes of a port, and what their handlers share."""

    def __init__(self, telemetry: Telemetry) -> None:
        super().__init__()
        self.metrics, self.tracer = telemetry
        self.paths = Paths()
        self.find_kept = lru_cache(KEPT_PATHS)(self.find)
        self.finishing: dict[str, Finish] = {}
        """By the first segment of a path."""

    def add_route(self, method: str, path: str, handler: Handler) -> None:
        """Serve a path, whose placeholders are whole segments (`/v1/sessions/{id}`); GET includes HEAD."""
        handlers = self.paths.add(path).handlers
        handlers[method] = handler
        if method == "GET":
            handlers["HEAD"] = handler

    def served(self) -> Iterator[tuple[str, str]]:
        return ((method, one.path) for one in self.paths.endpoints.values() for method in one.handlers)

    def server(self) -> web.Server:
        """Return the server, for the running event loop."""
        loop = asyncio.get_running_loop()

        def make(message: Any, payload: Any, protocol: Any, writer: Any, task: Any) -> Request:
            return Request(message, payload, protocol, writer, task, loop, client_max_size=MAX_FRAME_BYTES)

        return web.Server(self.answer, request_factory=make)  # type: ignore[arg-type]  # requests are `Request`

    async def answer(self, request: Request) -> web.StreamResponse:
        """Answer a request, and make metrics, a span and a log line of it."""
        began, connection = time.monotonic(), connection_of(request)
        method = request.method if request.method in METHODS else "other"
        path = request.rel_url.path_safe
        is_usual = len(path) <= KEPT_PATH and method == request.method
        route = self.find_kept(method, path) if is_usual else self.find(request.method, path)
        request[APP], request[FOUND] = self, route
        status = 499  # the client has closed the connection, as in nginx
        connection.requests += 1
        connection.working = True
        with self.tracer.request_span(method, route.path, request.headers) as span:
            try:
                try:
                    check_repeated(request)
                    refusal = await answer_expect(request) if "Expect" in request.headers else None
                    if refusal is not None:
                        response = refusal
                    elif route.handler is None:
                        response = not_served(request, route.allowed)
                    else:
                        response = await route.handler(request)
                except Exception as error:  # the outermost edge
                    response = answer_error(request, error)
                if not response.prepared:
                    if not isinstance(response, Answer):
                        response.headers["Server"] = SERVER
                    if (finish := route.finish) is not None:
                        await finish(request, response)
                status = response.status
                if status >= 500:
                    span.fail(str(status))
                return response
            finally:
                connection.working = False
                seconds = time.monotonic() - began
                span.set_attribute("http.response.status_code", status)
                self.metrics.requests.observe(method, route.path, status, seconds)
                if LOG.isEnabledFor(logging.DEBUG):
                    fields = {"method": method, "route": route.path, "status": status, "ms": round(seconds * 1000, 1)}
                    LOG.debug("%s %s %d", method, route.path, status, extra=fields)

    def find(self, method: str, path: str) -> Found:
        finish, others = self.finishing.get(path.split("/", 2)[1] if "/" in path else ""), list[Endpoint]()
        for endpoint, values in self.paths.matches(path):
            if method in endpoint.handlers:
                if "%" in path:  # only these two are still encoded
                    values = [value.replace("%2F", "/").replace("%25", "%") for value in values]
                in_path = dict(zip(endpoint.names, values, strict=True))
                return Found(endpoint.path, endpoint.handlers[method], in_path, (), finish)
            others.append(endpoint)
        # A literal path may also match as the id of another path.
        allowing = others[:1] if others and not others[0].names else others
        allowed = sorted({method for endpoint in allowing for method in endpoint.handlers})
        return Found("none", None, {}, tuple(allowed), finish)


def not_served(request: Request, allowed: tuple[str, ...]) -> web.StreamResponse:
    if allowed:
        methods = ", ".join(allowed)
        return problem_response("method_not_allowed", f"The path takes {methods}.", {"Allow": methods})
    detail = INGEST_ELSEWHERE if request.path == "/v1/ingest" else CODES["not_found"].sentence
    return problem_response("not_found", detail)


async def with_problems(handler: Handler, request: Request) -> web.StreamResponse:
    """Turn whatever a handler raises into a problem document."""
    try:
        return await handler(request)
    except Exception as error:  # `answer_error` logs those that are faults of ours
        return answer_error(request, error)


def answer_error(request: Request, error: Exception) -> web.Response:
    """Return the problem document of a handler's exception; clients never see a traceback."""
    if isinstance(error, VoicememError):
        return problem_response(error.code, error.detail, headers_of(error))
    if isinstance(error, TimeoutError):
        return problem_response("timeout", "The request's body did not arrive in time.", {"Connection": "close"})
    # The client gets a plain 500, the operator the traceback.
    FAULTS.error("%s request failed", request.method, exc_info=error)
    return problem_response("internal", CODES["internal"].sentence)
