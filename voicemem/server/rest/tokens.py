"""Session tokens over REST: for whoever must reach one session, and hold no key."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.protocol.types import SessionId
from voicemem.security.audit import audit
from voicemem.security.session_tokens import LONGEST_S
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    get_stream,
    json_response,
    read_object,
    services_of,
)
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok


class NewToken(Struct, frozen=True, forbid_unknown_fields=True):
    """How long it is to hold, in seconds."""

    ttl_seconds: Annotated[int, Meta(ge=1, le=LONGEST_S)] = 600


class MadeToken(Struct, frozen=True):
    """A token for one session; `expires_at` is in Unix ms."""

    token: str
    session_id: SessionId
    expires_at: int


async def create_token(request: web.Request, _: NoQuery) -> web.Response:
    """Make a session token: it opens this session for events and reading, for some minutes, and sets nothing.

    It is signed with the caller's key, and revoked with it.
    """
    grant, stream = request[GRANT], await get_stream(request)
    given = convert_body(await read_object(request), NewToken)
    token, expires_ms = await services_of(request).access.create_token(grant, stream.id, given.ttl_seconds)
    audit("token_created", grant.key_id, stream.project, stream.id, expires_at=expires_ms)
    return json_response(MadeToken(token, stream.id, expires_ms), 201)


ROUTES = (
    Route(
        "POST",
        "/v1/sessions/{id}/tokens",
        create_token,
        "admin",
        NoQuery,
        json_ok(MadeToken, 201),
        BodySpec({JSON: NewToken}, required=False),
        ("no_keys",),
    ),
)
