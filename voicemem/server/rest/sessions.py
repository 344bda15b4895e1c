"""Sessions: create, list, read, change, end, erase."""

from typing import Annotated, Literal

import msgspec
from aiohttp import web
from msgspec import Meta, Struct

from voicemem.config.session import SessionConfig, changes_outbound
from voicemem.errors import Refused
from voicemem.memory.search import Millis
from voicemem.protocol.checks import check_text
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import MAX_INTEGER, JsonObject, SessionId
from voicemem.security.audit import audit
from voicemem.server.http.openapi import reference
from voicemem.server.http.request import (
    GRANT,
    Label,
    check_session_id,
    get_stream,
    json_response,
    read_object,
    read_struct,
    services_of,
    session_filter,
)
from voicemem.server.http.routes import JSON, MergePatch, ResponseSpec, Routes, optional
from voicemem.server.rest.memories import token_reach
from voicemem.server.rest.session_lists import LiveListData, OverviewPage, answer_live, answer_overviews, answer_page
from voicemem.server.rest.tails import wants_tail
from voicemem.sessions.lifecycle import SessionInfo, info_of
from voicemem.store.scopes import NAMESPACE_LABEL
from voicemem.store.streams import Stream

ROUTES = Routes()
CONFIG_CODES = "invalid_field address_not_allowed"

PAGE = 20
"""Sessions that are read and written at a time: each may have a configuration of 256 KiB."""
WHAT_TOKENS_LIST = (
    "A session token lists sessions only if it reaches the memories of its user: then those of this user and its "
    "namespace, with fields=overview."
)
MAX_QUERY = 500


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`label` is `key:value` or `key=value`; the first of the two signs ends the key.

    With `fields=overview` the rows have no configuration, but figures of the memory. Only these have `total`, for
    `count=true`. `interrupted`, and `slow` in ms, go by the figures that were saved last; `webhook` means calls with
    any delivery in that state. `q` means words that were heard in one message, or the beginning
    of an id or a user.
    """

    fields: Literal["full", "overview"] = "full"
    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Label | None = None
    interrupted: bool | None = None
    slow: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    webhook: Literal["failed", "pending"] | None = None
    q: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)] | None = None
    count: bool = False
    started_after: Millis | None = None
    started_before: Millis | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class GivenConfig(SessionConfig, frozen=True, forbid_unknown_fields=True):
    """A configuration as callers give it; `system_messages` at the top is short for `llm.system_messages`."""

    system_messages: tuple[Annotated[JsonObject, Meta(extra_json_schema=reference("SystemMessage"))], ...] = ()


class NewSession(GivenConfig, frozen=True, forbid_unknown_fields=True):
    """A configuration, and an id; without one the server generates it."""

    session_id: SessionId | None = None


class Ending(Struct, frozen=True, forbid_unknown_fields=True):
    """Why a session ends."""

    reason: str | None = None


class SessionPage(Struct, frozen=True):
    """The newest sessions first; `next_cursor` is null on the last page."""

    sessions: list[SessionInfo]
    next_cursor: str | None


@ROUTES.add(
    "POST /v1/sessions",
    "ingest",
    dict.fromkeys((200, 201), ResponseSpec({JSON: SessionInfo}, id_field="session_id")),
    optional(MergePatch(NewSession)),
    f"{CONFIG_CODES} session_exists session_erased quota_exceeded",
)
async def create_session(request: web.Request) -> web.Response:
    """Create a session from its configuration.

    The answer is 200 if it exists with the same configuration, and 409 if it exists with another one.
    """
    config = await read_object(request)
    session_id = config.pop("session_id", None)
    if session_id is not None:
        session_id = check_session_id(session_id)
    check_outbound_change(request, config)
    grant = request[GRANT]
    stream, new = await services_of(request).sessions.create(grant.project, session_id, config, grant.key_id)
    if new:
        note_outbound_change(request, config, stream)
    return json_response(info_of(stream), 201 if new else 200)


def check_outbound_change(request: web.Request, config: JsonObject) -> None:
    """Require the scope `admin` for settings that make the service send requests. Raises `Refused`."""
    if changes_outbound(config):
        request[GRANT].require("admin")


def note_outbound_change(request: web.Request, config: JsonObject, stream: Stream) -> None:
    if changes_outbound(config):
        audit("calling_out_changed", request[GRANT], session=stream.id)


@ROUTES.add(
    "GET /v1/sessions",
    "read",
    {JSON: SessionPage | OverviewPage, EVENT_STREAM: LiveListData},
    codes="invalid_cursor draining",
    for_tokens=True,
)
async def list_sessions(request: web.Request, query: SessionsQuery) -> web.StreamResponse:
    """List the sessions of the project, the newest first.

    With `fields=overview` and `Accept: text/event-stream` the first rows are followed: `docs/tail.md`.

    A session token that reaches the memories of its user lists the user's, with `fields=overview`.
    """
    query = await within_reach(request, query)
    conditions = session_filter(request, query, slow_ms=query.slow)
    if query.q is not None:
        found = await services_of(request).finder.find_calls(conditions.project, query.user_id, query.q)
        conditions = msgspec.structs.replace(conditions, keys=found)
    if query.fields == "overview" and wants_tail(request):
        return await answer_live(request, conditions)
    if query.fields == "overview":
        return await answer_overviews(request, conditions, query.cursor, query.count)
    read = services_of(request).sessions.list
    return await answer_page(request, conditions, query.cursor, read, info_of, PAGE)


async def within_reach(request: web.Request, query: SessionsQuery) -> SessionsQuery:
    """Return the part of a query that its caller may list. Raises `Refused` (`forbidden`) where a token asks more."""
    reach = await token_reach(request)
    if reach is None:
        return query
    if reach.user_id is None or query.fields != "overview" or query.user_id not in (None, reach.user_id):
        raise Refused("forbidden", WHAT_TOKENS_LIST)
    label = query.label if reach.namespace is None else f"{NAMESPACE_LABEL}:{reach.namespace}"
    if query.label not in (None, label):
        raise Refused("forbidden", WHAT_TOKENS_LIST)
    return msgspec.structs.replace(query, user_id=reach.user_id, label=label)


@ROUTES.add("GET /v1/sessions/{id}", "read", SessionInfo)
async def read_session(request: web.Request) -> web.Response:
    """Read a session's state and configuration."""
    stream = await get_stream(request)
    return json_response(info_of(stream, await services_of(request).read_models.quarantined.find(stream.key)))


@ROUTES.add(
    "PATCH /v1/sessions/{id}", "ingest", SessionInfo, optional(MergePatch(GivenConfig)), f"{CONFIG_CODES} session_ended"
)
async def change_session(request: web.Request) -> web.Response:
    """Change the configuration with a merge patch (RFC 7396); null removes a setting."""
    request[GRANT].require_setting()
    stream = await get_stream(request)
    patch = await read_object(request)
    check_outbound_change(request, patch)
    changed = await services_of(request).sessions.change(stream, patch)
    note_outbound_change(request, patch, stream)
    return json_response(info_of(changed))


@ROUTES.add("POST /v1/sessions/{id}/end", "ingest", SessionInfo, optional(Ending), "text_too_long")
async def end_session(request: web.Request) -> web.Response:
    """End a session and close it at once; one that is already closed stays as it is."""
    stream = await get_stream(request)
    ending = await read_struct(request, Ending)
    check_text(ending.reason)
    ended = await services_of(request).sessions.end(stream, ending.reason)
    if request[GRANT].via is not None:  # agents end calls all the time; a person at the page acts
        audit("session_ended", request[GRANT], session=stream.id)
    return json_response(info_of(ended))


@ROUTES.add("POST /v1/sessions/{id}/refold", "admin", SessionInfo, codes="session_set_aside")
async def refold_session(request: web.Request) -> web.Response:
    """Make the memory from the whole journal again; one that was quarantined is there again if it succeeds.

    Webhooks that have waited for it are sent then.
    """
    stream = await get_stream(request)
    services = services_of(request)
    await services.read_models.refold(stream)
    services.sessions.on_changed(stream)
    services.sessions.webhooks_due.set()
    return json_response(info_of(stream))


@ROUTES.add("DELETE /v1/sessions/{id}", "admin", None)
async def erase_session(request: web.Request) -> web.Response:
    """Erase a session: nothing of it can be read any more, and its id cannot be used again."""
    stream = await get_stream(request)
    services = services_of(request)
    await services.sessions.erase(stream)
    services.read_models.discard(stream.key)
    audit("session_erased", request[GRANT], session=stream.id)
    return web.Response(status=204)
