"""Keys of the caller's own project, tokens that open one session, and who the caller is."""

from typing import Annotated, Literal

from msgspec import UNSET, Meta, Struct, UnsetType, structs

from voicemem.protocol.codec import check_text
from voicemem.protocol.types import Natural, SessionId, fields_given, fields_of
from voicemem.security.access import ADMIN_KEY_ID, ANY_SCOPE
from voicemem.security.audit import audit
from voicemem.security.session_tokens import MAX_TOKEN_S, USER_MEMORIES
from voicemem.server.http.request import Request
from voicemem.server.http.routes import KeyId, Routes
from voicemem.store.directory import ApiKey, KeyLimits
from voicemem.store.streams import Stream
from voicemem.version import __version__

ROUTES = Routes()

Scopes = Annotated[tuple[Literal["ingest", "read", "admin"], ...], Meta(min_length=1, max_length=3)]


class NewKey(Struct, frozen=True, forbid_unknown_fields=True):
    """The purpose and the rights of a key; `admin` includes the other scopes. A limit of 0 is none of its own."""

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
    """A token to make, valid for so many seconds; `memories` lets it reach what is remembered of the session's user."""

    ttl_seconds: Annotated[int, Meta(ge=1, le=MAX_TOKEN_S)] = 600
    memories: Literal["user"] | None = None


class MadeToken(Struct, frozen=True):
    """A token for one session; `expires_at` is in Unix ms."""

    token: str
    session_id: SessionId
    expires_at: int


def key_view(key: ApiKey) -> ShownKey:
    return ShownKey(key.id, key.project, key.name, list(key.scopes), key.created_ms, key.revoked_ms, *key.limits)


@ROUTES.add("GET /v1/keys", "admin")
async def list_keys(request: Request) -> Keys:
    """List the keys of the project, revoked ones included, without their secrets."""
    keys = await request.services.access.list_keys(request.grant.project)
    return Keys([key_view(key) for key in keys])


@ROUTES.add("POST /v1/keys", "admin", codes="invalid_field text_too_long no_keys", status=201)
async def create_key(request: Request, body: NewKey) -> MadeKey:
    """Create a key of the project; its text is shown only this once.

    The first key of a service is made with its command line, since from then on every caller needs one.
    """
    grant, access = request.grant, request.services.access
    check_text(body.name)
    access.key_of(grant)
    limits = KeyLimits(**fields_of(ChangedLimits, body))
    key, text = await access.create_key(grant.project, body.name, body.scopes, limits)
    audit("key_created", grant, key=key.id, scopes=key.scopes)
    return MadeKey(**structs.asdict(key_view(key)), key=text)


@ROUTES.add("PATCH /v1/keys/{key_id}", "admin", codes="invalid_field unknown_key")
async def change_limits(request: Request, body: ChangedLimits) -> ShownKey:
    """Change the limits of a key of the project. They hold for what comes from then on, and on new connections."""
    grant, key_id = request.grant, request.in_path["key_id"]
    changes = fields_given(body)
    key = await request.services.access.change_limits(grant.project, key_id, changes)
    audit("key_limits_changed", grant, key=key_id, limits=changes)
    return key_view(key)


@ROUTES.add("DELETE /v1/keys/{key_id}", "admin", codes="unknown_key")
async def revoke_key(request: Request) -> None:
    """Revoke a key of the project: it is refused from now on, and its open connections are closed."""
    grant, key_id = request.grant, request.in_path["key_id"]
    await request.services.access.revoke_key(grant.project, key_id)
    audit("key_revoked", grant, key=key_id)


@ROUTES.add("POST /v1/sessions/{id}/tokens", "admin", codes="no_keys", status=201)
async def create_token(request: Request, stream: Stream, body: NewToken) -> MadeToken:
    """Create a session token: it allows events and reading for this session, for some minutes, and no settings.

    It is signed with the caller's key, and is revoked together with it.
    """
    grant, access = request.grant, request.services.access
    reach = {} if body.memories is None else {"memories": body.memories}
    token, expires_ms = await access.create_token(grant, stream.id, body.ttl_seconds, body.memories == USER_MEMORIES)
    audit("token_created", grant, session=stream.id, expires_at=expires_ms, **reach)
    return MadeToken(token, stream.id, expires_ms)


class Me(Struct, frozen=True):
    """The caller's key; `key_id` and `name` are null while no key is needed."""

    project: str
    scopes: tuple[str, ...]
    key_id: str | None
    name: str | None
    keys_required: bool
    version: str


@ROUTES.add("GET /v1/me", ANY_SCOPE)
async def read_me(request: Request) -> Me:
    """Read which key this is, of which project, and what it may do."""
    grant, access = request.grant, request.services.access
    key = None if grant.key_id in (None, ADMIN_KEY_ID) else await access.find_key(str(grant.key_id))
    name = None if key is None else key.name
    return Me(grant.project, grant.scopes, grant.key_id, name, await access.needs_key(), __version__)
