"""What a route is: one declaration next to its handler, which is both served and documented.

To add a route, write a handler that takes the request and a query struct, with a docstring that says what it does for
the caller, and add a `Route` with its scope, body, answers and own error codes to the `ROUTES` of its file. The guard,
the decoding of the query and `/openapi.json` follow from that, and the tests compare the answers with it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.errors import CODES
from voicemem.protocol.types import JsonObject, Name, SessionId, matching
from voicemem.server.http import problems

KeyId = Annotated[str, matching("^[0-9a-z]{12}$", "The id of a key is 12 characters of 0-9a-z")]
Q = TypeVar("Q", bound=Struct)
JSON = "application/json"
JSON_LINES = "application/x-ndjson"
NOTHING: Mapping[str, Any] = MappingProxyType({})
DELIVERY_ID_PATTERN = r"^[0-9]{1,18}\Z"
DeliveryId = Annotated[str, matching(DELIVERY_ID_PATTERN, "The id of a delivery is 1 to 18 digits")]
ClientSessionId = Annotated[str, Meta(min_length=1, max_length=512)]
"""In agent-memory-server's paths: whatever the client calls its session."""
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
"""The types of the placeholders in paths."""
KEY_SCHEME: Mapping[str, JsonObject] = MappingProxyType({"key": {"type": "http", "scheme": "bearer"}})


class MergePatch(NamedTuple):
    """A merge patch (RFC 7396) of an object of this type: every field may be left out or be null."""

    of: type[Struct]


class BodySpec(NamedTuple):
    """The body that a route takes: types by media type; a union of structs and a `MergePatch` are types as well."""

    contents: Mapping[str, Any]
    required: bool = True


class ResponseSpec(NamedTuple):
    """The answer with one status: types by media type, none without a body.

    `id_field` names the field with the id of what was created, which the paths below this one take.
    """

    contents: Mapping[str, Any] = NOTHING
    headers: tuple[str, ...] = ()
    id_field: str | None = None


class ErrorFormat(NamedTuple):
    """How a route reports errors: the type of the body, and the HTTP status and `reason` for a code."""

    media_type: str
    kind: type[Struct]
    status_of: Callable[[str], int]
    reason_of: Callable[[str], str]


PROBLEMS = ErrorFormat(problems.MEDIA_TYPE, problems.Problem, lambda code: CODES[code].status, lambda code: code)


class Route(NamedTuple, Generic[Q]):
    """A path with its handler; with `scope` None it is open to every caller that can reach the port.

    `codes` are the error codes that do not follow from the rest (`openapi.codes_of`). `servers` are the prefixes of
    the path, `schemes` the ways to present a key, `placeholders` the types of those that `PLACEHOLDERS` lacks.
    """

    method: str
    path: str
    handler: Callable[[web.Request, Q], Awaitable[web.StreamResponse]]
    scope: str | None
    query: type[Q]
    answers: Mapping[int, ResponseSpec]
    body: BodySpec | None = None
    codes: tuple[str, ...] = ()
    errors: ErrorFormat = PROBLEMS
    error_kinds: Mapping[int, type[Struct]] = MappingProxyType({})
    """Types of error bodies by status, where they are more than `errors.kind`."""
    servers: tuple[str, ...] = ("/",)
    schemes: Mapping[str, JsonObject] = KEY_SCHEME
    placeholders: Mapping[str, Any] = NOTHING
    operation_id: str = ""
    """By default the handler's name."""
    for_tokens: bool = False
    """Whether a session token may use it although the path is not one of its session's: the handler then keeps to what
    `token_reach` says."""
    outlives_store: bool = False
    """Whether it answers while the store is away: then the last known answer holds to whether callers need a key."""
    about: str = ""
    """The operation's summary and description; by default the handler's docstring."""


def json_ok(kind: Any, status: int = HTTPStatus.OK) -> Mapping[int, ResponseSpec]:
    """Return the answers of a route that succeeds in one way, with JSON of this type."""
    return {int(status): ResponseSpec({JSON: kind})}
