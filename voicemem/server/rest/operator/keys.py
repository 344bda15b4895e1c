"""Keys and apps of Agora's of the caller's own project, and tokens that open one session."""

from __future__ import annotations

from typing import Annotated, Literal

from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.errors import Refused
from voicemem.protocol.checks import check_text
from voicemem.protocol.types import Natural, SessionId, matching
from voicemem.security.agora_apps import CERTIFICATE_RULE
from voicemem.security.audit import audit
from voicemem.security.session_tokens import MAX_TOKEN_S, USER_MEMORIES
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    fields_given,
    get_stream,
    json_response,
    read_object,
    services_of,
)
from voicemem.server.http.routes import HEX_32, JSON, AgoraAppId, BodySpec, KeyId, ResponseSpec, Route, json_ok
from voicemem.store.records import AgoraApp, ApiKey, KeyLimits

Scopes = Annotated[tuple[Literal["ingest", "read", "admin"], ...], Meta(min_length=1, max_length=3)]
Certificate = Annotated[str, matching(HEX_32, CERTIFICATE_RULE)]


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """What a key is for, and what it may do; `admin` includes the other scopes. A limit of 0 is none of its own."""

    name: Annotated[str, Meta(max_length=128)] = ""
    scopes: Scopes = ("ingest", "read")
    events_per_second: Natural = 0
    bytes_per_second: Natural = 0
    open_sessions: Natural = 0
    sessions_per_day: Natural = 0


class ChangedLimits(Struct, frozen=True, forbid_unknown_fields=True):
    """Limits of a key; those that are not given stay, and 0 is none of its own."""

    events_per_second: Natural | UnsetType = UNSET
    bytes_per_second: Natural | UnsetType = UNSET
    open_sessions: Natural | UnsetType = UNSET
    sessions_per_day: Natural | UnsetType = UNSET


class ShownKey(Struct, frozen=True):
    """A key without its secret; times are Unix ms. A limit of 0 is none of its own."""

    id: KeyId
    project: str
    name: str
    scopes: list[str]
    created_at: int
    revoked_at: int | None
    events_per_second: Natural
    bytes_per_second: Natural
    open_sessions: Natural
    sessions_per_day: Natural


class MadeKey(ShownKey, frozen=True):
    """A new key; `key` is its text, which is shown only this once."""

    key: str


class Keys(Struct, frozen=True):
    """The keys, the oldest first."""

    keys: list[ShownKey]


class NewToken(Struct, frozen=True, forbid_unknown_fields=True):
    """How long a token is valid, in seconds; `memories` lets it also reach what is remembered of the session's user."""

    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_TOKEN_S)] = 600
    memories: Literal["user"] | None = None


class MadeToken(Struct, frozen=True):
    """A token for one session; `expires_at` is in Unix ms."""

    token: str
    session_id: SessionId
    expires_at: int


class NewAgoraApp(Struct, frozen=True, forbid_unknown_fields=True):
    """An app of Agora's, and what tokens signed with its certificate may do on Agora's paths."""

    app_id: AgoraAppId
    certificate: Certificate
    scopes: Scopes = ("ingest", "read", "admin")


class NewCertificate(Struct, frozen=True, forbid_unknown_fields=True):
    """The certificate that is to sign from now on."""

    certificate: Certificate


class ShownAgoraApp(Struct, frozen=True):
    """An app without its certificates; `has_old_certificate` until the one before the last rotation is retired."""

    app_id: AgoraAppId
    project: str
    scopes: list[str]
    created_at: int
    has_old_certificate: bool


class AgoraApps(Struct, frozen=True):
    """The apps, the oldest first."""

    agora_apps: list[ShownAgoraApp]


def key_view(key: ApiKey) -> ShownKey:
    return ShownKey(key.id, key.project, key.name, list(key.scopes), key.created_ms, key.revoked_ms, *key.limits)


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
    limits = KeyLimits(body.events_per_second, body.bytes_per_second, body.open_sessions, body.sessions_per_day)
    key, text = await services_of(request).access.create_key(grant.project, body.name, body.scopes, limits)
    audit("key_created", grant, key.project, key=key.id, scopes=key.scopes)
    return json_response(MadeKey(**structs.asdict(key_view(key)), key=text), 201)


async def change_limits(request: web.Request, _: NoQuery) -> web.Response:
    """Change the limits of a key of the project. They hold for what comes from then on, and on new connections."""
    grant, key_id = request[GRANT], request.match_info["key_id"]
    given = fields_given(convert_body(await read_object(request), ChangedLimits))
    key = await services_of(request).access.change_limits(grant.project, key_id, given)
    audit("key_limits_changed", grant, grant.project, key=key_id, limits=given)
    return json_response(key_view(key))


async def revoke_key(request: web.Request, _: NoQuery) -> web.Response:
    """Revoke a key of the project: it is refused from now on, and its open connections are closed."""
    grant, key_id = request[GRANT], request.match_info["key_id"]
    await services_of(request).access.revoke_key(grant.project, key_id)
    audit("key_revoked", grant, grant.project, key=key_id)
    return web.Response(status=204)


async def create_token(request: web.Request, _: NoQuery) -> web.Response:
    """Create a session token: it allows events and reading for this session, for some minutes, and no settings.

    It is signed with the caller's key, and is revoked together with it.
    """
    grant, stream = request[GRANT], await get_stream(request)
    body = convert_body(await read_object(request), NewToken)
    access = services_of(request).access
    reach = {} if body.memories is None else {"memories": body.memories}
    token, expires_ms = await access.create_token(grant, stream.id, body.ttl_seconds, body.memories == USER_MEMORIES)
    audit("token_created", grant, stream.project, stream.id, expires_at=expires_ms, **reach)
    return json_response(MadeToken(token, stream.id, expires_ms), 201)


def app_view(app: AgoraApp) -> ShownAgoraApp:
    return ShownAgoraApp(app.app_id, app.project, list(app.scopes), app.created_ms, app.old_certificate is not None)


async def list_agora_apps(request: web.Request, _: NoQuery) -> web.Response:
    """List the apps of Agora's of the project, without their certificates."""
    apps = await services_of(request).agora_apps.list(request[GRANT].project)
    return json_response(AgoraApps([app_view(app) for app in apps]))


async def add_agora_app(request: web.Request, _: NoQuery) -> web.Response:
    """Register an app of Agora's: tokens signed with its certificate open the project on Agora's paths."""
    grant = request[GRANT]
    body = convert_body(await read_object(request), NewAgoraApp)
    if grant.key_id is None:
        raise Refused("no_keys")
    app = await services_of(request).agora_apps.add(grant.project, body.app_id, body.certificate, body.scopes)
    audit("agora_app_added", grant, app.project, app=app.app_id, scopes=app.scopes)
    return json_response(app_view(app), 201)


async def rotate_agora_certificate(request: web.Request, _: NoQuery) -> web.Response:
    """Give an app a new certificate; the one before stays valid until it is retired, or the next rotation."""
    grant, app_id = request[GRANT], request.match_info["app_id"]
    body = convert_body(await read_object(request), NewCertificate)
    app = await services_of(request).agora_apps.rotate(grant.project, app_id, body.certificate)
    audit("agora_certificate_rotated", grant, grant.project, app=app_id)
    return json_response(app_view(app))


async def retire_agora_certificate(request: web.Request, _: NoQuery) -> web.Response:
    """Refuse from now on what is signed with the certificate before the last rotation."""
    grant, app_id = request[GRANT], request.match_info["app_id"]
    app = await services_of(request).agora_apps.retire(grant.project, app_id)
    audit("agora_certificate_retired", grant, grant.project, app=app_id)
    return json_response(app_view(app))


async def remove_agora_app(request: web.Request, _: NoQuery) -> web.Response:
    """Remove an app of Agora's and its certificates: its tokens are refused from now on."""
    grant, app_id = request[GRANT], request.match_info["app_id"]
    await services_of(request).agora_apps.remove(grant.project, app_id)
    audit("agora_app_removed", grant, grant.project, app=app_id)
    return web.Response(status=204)


AGORA_APPS = "/v1/agora-apps"
AGORA_APP = AGORA_APPS + "/{app_id}"
UNKNOWN_APP = ("unknown_agora_app",)
ROUTES = (
    Route("GET", AGORA_APPS, list_agora_apps, "admin", NoQuery, json_ok(AgoraApps)),
    Route(
        "POST",
        AGORA_APPS,
        add_agora_app,
        "admin",
        NoQuery,
        json_ok(ShownAgoraApp, 201),
        BodySpec({JSON: NewAgoraApp}),
        ("invalid_field", "agora_app_exists", "no_keys"),
    ),
    Route("DELETE", AGORA_APP, remove_agora_app, "admin", NoQuery, {204: ResponseSpec()}, codes=UNKNOWN_APP),
    Route(
        "POST",
        f"{AGORA_APP}/rotate-certificate",
        rotate_agora_certificate,
        "admin",
        NoQuery,
        json_ok(ShownAgoraApp),
        BodySpec({JSON: NewCertificate}),
        UNKNOWN_APP,
    ),
    Route(
        "POST",
        f"{AGORA_APP}/retire-certificate",
        retire_agora_certificate,
        "admin",
        NoQuery,
        json_ok(ShownAgoraApp),
        codes=UNKNOWN_APP,
    ),
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
    Route(
        "PATCH",
        "/v1/keys/{key_id}",
        change_limits,
        "admin",
        NoQuery,
        json_ok(ShownKey),
        BodySpec({JSON: ChangedLimits}, required=False),
        ("invalid_field", "unknown_key"),
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
