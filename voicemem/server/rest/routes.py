"""What a route is: one declaration beside its handler, which is both served and documented.

To add a documented route, write a handler that takes the request and a query struct and says in its docstring what it
does, and put a `Route` with its scope, body, answers and own error codes into the `ROUTES` of its file. The guard, the
decoding of the query and `/openapi.json` follow from that, and the tests hold what is answered to it.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping
from http import HTTPStatus
from types import MappingProxyType
from typing import Annotated, Any, Generic, NamedTuple, TypeVar

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.events import Name, SessionId

KeyId = Annotated[str, Meta(pattern="^[0-9a-z]{12}$")]
Q = TypeVar("Q", bound=Struct)
JSON = "application/json"
JSON_LINES = "application/x-ndjson"
EVENT_STREAM = "text/event-stream"
NOTHING: Mapping[str, Any] = MappingProxyType({})
DELIVERY_ID_PATTERN = r"^[0-9]{1,18}\Z"
DeliveryId = Annotated[str, Meta(pattern=DELIVERY_ID_PATTERN)]
PLACEHOLDERS: Mapping[str, Any] = MappingProxyType(
    {"id": SessionId, "key_id": KeyId, "delivery": DeliveryId, "user_id": Name}
)
"""The types of what stands in braces in paths."""


class MergePatch(NamedTuple):
    """A patch (RFC 7396) of an object of this type: every field may be left out, or be null."""

    of: type[Struct]


class Body(NamedTuple):
    """What a route takes: types by media type. A union of structs, a `MergePatch` and what msgspec knows are types."""

    contents: Mapping[str, Any]
    required: bool = True


class Answer(NamedTuple):
    """What a route answers with one status: types by media type, none when there is no body.

    `id_field` names the field with the id of what was made, which the paths below this one take.
    """

    contents: Mapping[str, Any] = NOTHING
    headers: tuple[str, ...] = ()
    id_field: str | None = None


class Route(NamedTuple, Generic[Q]):
    """A path with its handler; `scope` None is open to everybody who can reach the port.

    `codes` are those of errors that do not follow from the rest (`openapi.codes_of`).
    """

    method: str
    path: str
    handler: Callable[[web.Request, Q], Awaitable[web.StreamResponse]]
    scope: str | None
    query: type[Q]
    answers: Mapping[int, Answer]
    body: Body | None = None
    codes: tuple[str, ...] = ()


def one(kind: Any, status: int = HTTPStatus.OK) -> Mapping[int, Answer]:
    """The answers of a route that succeeds in one way, with JSON of this type."""
    return {int(status): Answer({JSON: kind})}
