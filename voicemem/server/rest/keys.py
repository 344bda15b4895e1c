"""Keys of the caller's own project, and tokens that open one session."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Struct, structs

from voicemem.errors import Refused
from voicemem.protocol.checks import check_text
from voicemem.protocol.types import SessionId
from voicemem.security.audit import audit
from voicemem.security.session_tokens import MAX_TOKEN_S
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    get_stream,
    json_response,
    read_object,
    services_of,
)
from voicemem.server.http.routes import JSON, BodySpec, KeyId, ResponseSpec, Route, json_ok
from voicemem.store.records import ApiKey

Scopes = Annotated[tuple[Literal["ingest", "read", "admin"], ...], Meta(min_length=1, max_length=3)]


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """What a key is for, and what it may do; `admin` includes the other scopes."""

    name: Annotated[str, Meta(max_length=128)] = ""
    scopes: Scopes = ("ingest", "read")


class ShownKey(Struct, frozen=True):
    """A key without its secret; times are Unix ms."""

    id: KeyId
    project: str
    name: str
    scopes: list[str]
    created_at: int
    revoked_at: int | None


class MadeKey(ShownKey, frozen=True):
    """A new key; `key` is its text, which is shown only this once."""

    key: str


class Keys(Struct, frozen=True):
    """The keys, the oldest first."""

    keys: list[ShownKey]


class NewToken(Struct, frozen=True, forbid_unknown_fields=True):
    """How long a token is valid, in seconds."""

    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_TOKEN_S)] = 600


class MadeToken(Struct, frozen=True):
    """A token for one session; `expires_at` is in Unix ms."""

    token: str
    session_id: SessionId
    expires_at: int


def key_view(key: ApiKey) -> ShownKey:
    return ShownKey(key.id, key.project, key.name, list(key.scopes), key.created_ms, key.revoked_ms)


async def list_keys(request: web.Request, _: NoQuery) -> web.Response:
    """List the keys of the project, revoked ones included, without their secrets."""
    keys = await services_of(request).access.list_keys(request[GRANT].project)
    return json_response(Keys([key_view(key) for key in keys]))


async def create_key(request: web.Request, _: NoQuery) -> web.Response:
    """Create a key of the project; its text is shown only this once.

    The first key of a service is made with its command line, since from then on every caller needs one.
    """
    grant = request[GRANT]
    body = convert_body(await read_object(request), NewKey)
    check_text(body.name)
    if grant.key_id is None:
        raise Refused("no_keys")
    key, text = await services_of(request).access.create_key(grant.project, body.name, body.scopes)
    audit("key_created", grant.key_id, key.project, key=key.id, scopes=key.scopes)
    return json_response(MadeKey(**structs.asdict(key_view(key)), key=text), 201)


async def revoke_key(request: web.Request, _: NoQuery) -> web.Response:
    """Revoke a key of the project: it is refused from now on, and its open connections are closed."""
    grant, key_id = request[GRANT], request.match_info["key_id"]
    await services_of(request).access.revoke_key(grant.project, key_id)
    audit("key_revoked", grant.key_id, grant.project, key=key_id)
    return web.Response(status=204)


async def create_token(request: web.Request, _: NoQuery) -> web.Response:
    """Create a session token: it allows events and reading for this session, for some minutes, and no settings.

    It is signed with the caller's key, and is revoked together with it.
    """
    grant, stream = request[GRANT], await get_stream(request)
    body = convert_body(await read_object(request), NewToken)
    token, expires_ms = await services_of(request).access.create_token(grant, stream.id, body.ttl_seconds)
    audit("token_created", grant.key_id, stream.project, stream.id, expires_at=expires_ms)
    return json_response(MadeToken(token, stream.id, expires_ms), 201)


ROUTES = (
    Route("GET", "/v1/keys", list_keys, "admin", NoQuery, json_ok(Keys)),
    Route(
        "POST",
        "/v1/keys",
        create_key,
        "admin",
        NoQuery,
        json_ok(MadeKey, 201),
        BodySpec({JSON: NewKey}, required=False),
        ("invalid_field", "text_too_long", "no_keys"),
    ),
    Route("DELETE", "/v1/keys/{key_id}", revoke_key, "admin", NoQuery, {204: ResponseSpec()}, codes=("unknown_key",)),
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
