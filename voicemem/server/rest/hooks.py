"""Webhooks of other stacks' platforms, which call this service (docs/dialects.md)."""

from __future__ import annotations

from aiohttp import web
from msgspec import UNSET, Struct, UnsetType

from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject, Name, Reason, SessionId
from voicemem.security.access import DEFAULT_PROJECT, bearer_token
from voicemem.security.hook_secrets import find_hooked
from voicemem.server.http.request import decode_large, json_response, read_body, services_of
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok
from voicemem.sessions.inbound_webhooks import MAX_HOOK_BYTES


class HookQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`session_id` is for webhooks that do not say it; `project` is whose secret signs, and is the key's otherwise."""

    session_id: SessionId | None = None
    project: Name | None = None


class HookTaken(Struct, frozen=True):
    """The session that the webhook is about, and how many frames of it were stored now: 0 for a repeat.

    There is no `session_id` for a webhook that says nothing about a call. `refused` is there if the session takes
    nothing any more: `session_ended`, `session_erased`.
    """

    session_id: SessionId | None
    stored: int
    refused: Reason | UnsetType = UNSET


async def take_hook(request: web.Request, query: HookQuery) -> web.Response:
    """Take a webhook of another stack's platform; the answer comes once it is on disk.

    It must be signed with a secret that the project or the operator has set for this dialect. Without one, a key with
    the scope `ingest` is needed, in `Authorization`.
    """
    services = services_of(request)
    dialect = find_hooked(request.match_info["dialect"])
    project = query.project or DEFAULT_PROJECT
    secrets = await services.hook_secrets.verifying(project, dialect.name)
    if not secrets:
        project = await project_of_key(request, query)
        body = await read_body(request, MAX_HOOK_BYTES)
    else:
        body = await read_body(request, MAX_HOOK_BYTES)
        try:
            services.inbound_webhooks.verify(dialect, body, request.headers, secrets)
        except Refused:
            services.limits.count_wrong_key(request.remote)
            raise
    reduced = await decode_large(request, len(body), lambda: services.inbound_webhooks.read(dialect, body))
    taken = await services.inbound_webhooks.record(project, dialect, reduced, query.session_id)
    refused = UNSET if taken.refused is None else taken.refused
    return json_response(HookTaken(taken.session_id, taken.stored, refused))


async def project_of_key(request: web.Request, query: HookQuery) -> str:
    """The project of the caller's key. Raises `Refused`."""
    services = services_of(request)
    authorization = request.headers.get("Authorization")
    needed = await services.access.needs_key()
    try:
        grant = await services.access.grant(bearer_token(authorization) if needed else None)
    except Refused as refused:
        if authorization is not None and refused.code == "unauthorized":
            services.limits.count_wrong_key(request.remote)
        raise
    grant.require("ingest", query.session_id)
    if query.project not in (None, grant.project):
        raise Refused("forbidden", "The key is of another project.")
    services.limits.count_request(grant.caller)
    return grant.project


ROUTES = (
    Route(
        "POST",
        "/v1/hooks/{dialect}",
        take_hook,
        None,
        HookQuery,
        json_ok(HookTaken),
        BodySpec({JSON: JsonObject}),
        (
            *("unauthorized", "token_expired", "forbidden", "rate_limited", "unknown_dialect", "malformed_frame"),
            *("missing_field", "seq_required"),
        ),
    ),
)
