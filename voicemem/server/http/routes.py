"""Declarations of routes: each is above its handler, and is both served and documented.

To add a route, write a handler with a docstring that says what it does for the client, and declare it with `add` of its
file's `ROUTES`. Its signature says the rest: after the request it takes `query`, a struct; `stream`, the session that
the path names; and the body, by any other name. Its result is answered as JSON, None as 204. The guard, the decoding
and `/openapi.json` follow from that, and the tests compare the answers with it.
"""

from collections.abc import Awaitable, Callable, Mapping
from types import MappingProxyType, NoneType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar, get_type_hints

from aiohttp import web
from msgspec import Meta, Struct
from msgspec.structs import fields

from voicemem.errors import CODES
from voicemem.protocol.types import JsonObject, Name, SessionId, matching
from voicemem.server.http.problems import MEDIA_TYPE, Problem

KeyId = Annotated[str, matching("^[0-9a-z]{12}$", "The id of a key is 12 characters of 0-9a-z")]
Q = TypeVar("Q", bound=Struct)
H = TypeVar("H", bound=Callable[..., Awaitable[Any]])
Handler = Callable[[Any], Awaitable[web.StreamResponse]]
"""Answers a `Request`."""
JSON = "application/json"
JSON_LINES = "application/x-ndjson"
NOTHING: Mapping[str, Any] = MappingProxyType({})
DELIVERY_ID_PATTERN = r"^[0-9]{1,18}\Z"
DeliveryId = Annotated[str, matching(DELIVERY_ID_PATTERN, "The id of a delivery is 1 to 18 digits")]
ClientSessionId = Annotated[str, Meta(min_length=1, max_length=512)]
"""A session in agent-memory-server's paths: the client's own id of it."""
PLACEHOLDERS: Mapping[str, Any] = MappingProxyType(
    {
        "id": SessionId,
        "key_id": KeyId,
        "delivery": DeliveryId,
        "user_id": Name,
        "session_id": ClientSessionId,
        "view_id": Name,
        "task_id": Name,
        "memory_id": Name,
        "dialect": Name,
    }
)
KEY_SCHEME: Mapping[str, JsonObject] = MappingProxyType({"key": {"type": "http", "scheme": "bearer"}})


class NoQuery(Struct, forbid_unknown_fields=True, frozen=True):
    """The query of routes that take no parameters."""


class MergePatch(NamedTuple):
    """A merge patch (RFC 7396) of an object of this type: every field may be left out or be null."""

    of: type[Struct]


class BodySpec(NamedTuple):
    """The body that a route takes: types by media type; a union of structs and a `MergePatch` are types as well."""

    contents: Mapping[str, Any]
    required: bool = True


class ResponseSpec(NamedTuple):
    """The answer with one status: types by media type, none without a body.

    `id_field` names the field with the id of the created resource, which the paths below this one take.
    """

    contents: Mapping[str, Any] = NOTHING
    headers: tuple[str, ...] = ()
    id_field: str | None = None


class Tag(NamedTuple):
    """A group of operations, by which generated clients name their modules."""

    name: str
    description: str


class ErrorFormat(NamedTuple):
    """The form of a route's errors: the type of the body, and the HTTP status and `reason` for a code."""

    media_type: str
    kind: type[Struct]
    status_of: Callable[[str], int]
    reason_of: Callable[[str], str]


PROBLEMS = ErrorFormat(MEDIA_TYPE, Problem, lambda code: CODES[code].status, lambda code: code)


class Route(NamedTuple, Generic[Q]):
    """A path with its handler; with `scope` None it is open to every client that can reach the port.

    `codes` are the error codes that do not follow from the rest (`openapi.codes_of`). `servers` are the prefixes of
    the path, `schemes` the ways to present a key, `placeholders` the types of those that `PLACEHOLDERS` lacks.
    """

    method: str
    path: str
    handler: Callable[..., Awaitable[Any]]
    scope: str | None
    query: type[Q]
    answers: Mapping[int, ResponseSpec]
    parameters: Mapping[str, Any] = NOTHING
    """The types of the handler's parameters besides the request and the query: `stream`, and the body."""
    answers_itself: bool = False
    """True if it has no such parameters, and makes its response itself."""
    body: BodySpec | None = None
    codes: tuple[str, ...] = ()
    errors: ErrorFormat = PROBLEMS
    error_kinds: Mapping[int, type[Struct]] = MappingProxyType({})
    """Types of error bodies by status, where they differ from `errors.kind`."""
    servers: tuple[str, ...] = ("/",)
    schemes: Mapping[str, JsonObject] = KEY_SCHEME
    placeholders: Mapping[str, Any] = NOTHING
    operation_id: str = ""
    tag: Tag | None = None
    """By default the module of the handler is one, with its docstring."""
    for_tokens: bool = False
    """True if a session token may use it although the path is not one of its session's: the handler then keeps to its
    `token_scope`."""
    keys_only: bool = False
    """True if no session token may use it, not even one of the session that the path names."""
    outlives_store: bool = False
    """True if it answers while the store is away: then the last known answer says whether clients need a key."""
    takes_turn: bool = True
    """False if the handler itself waits in the fair queue, with `wait_for_slot`, unless its answer is ready."""
    about: str = ""
    """The operation's summary and description; by default the handler's docstring."""
    wrap: Callable[[Handler], Handler] | None = None
    """Changes how the guarded handler answers, errors included."""


def optional(kind: Any) -> BodySpec:
    return BodySpec({JSON: kind}, required=False)


def body_of(kind: Any) -> BodySpec:
    """Return the body that a handler takes; it may be left out if all of its fields may."""
    return BodySpec({JSON: kind}, required=any(field.required for field in fields(kind)))


class Routes(list[Route[Any]]):
    """The routes of a module, in the order of their handlers."""

    def add(
        self,
        name: str,
        scope: str | None,
        answer: Any = web.StreamResponse,
        body: Any = None,
        codes: str = "",
        *,
        status: int = 200,
        headers: tuple[str, ...] = (),
        id_field: str | None = None,
        **more: Any,
    ) -> Callable[[H], H]:
        """Declare the handler of a route, which `name` names by method and path.

        `answer` is for a handler that makes its response itself: the type of the JSON that is answered with `status`,
        types by media type, None for 204 without a body, or answers by status; `body` likewise for a body that the
        handler reads itself or that may not be left out. `codes` are separated by spaces.
        """
        method, path = name.split()

        def declare(handler: H) -> H:
            _, *hints = get_type_hints(handler, include_extras=True).items()
            parameters = dict(hints)
            returned = parameters.pop("return")
            query = parameters.pop("query", None) or parameters.pop("_", NoQuery)  # `_` where it says nothing
            taken = [kind for name, kind in parameters.items() if name != "stream"]
            spec = body_of(taken[0]) if body is None and taken else body
            if spec is not None and not isinstance(spec, BodySpec):
                spec = BodySpec(spec if isinstance(spec, dict) else {JSON: spec})
            kind = returned if answer is web.StreamResponse else answer
            if kind in (None, NoneType):
                answers: Mapping[int, ResponseSpec] = {204: ResponseSpec()}
            elif isinstance(kind, dict) and isinstance(next(iter(kind)), int):
                answers = kind
            else:
                answers = {status: ResponseSpec(kind if isinstance(kind, dict) else {JSON: kind}, headers, id_field)}
            plain = not parameters and returned is web.StreamResponse
            required = (method, path, handler, scope, query, answers, parameters, plain, spec, tuple(codes.split()))
            self.append(Route(*required, **more))
            return handler

        return declare
