"""Calls as documents: one, or all for which conditions hold (docs/exports.md)."""

from functools import partial
from typing import Any, Literal

from aiohttp import web
from msgspec import Struct

from voicemem.exports.formats import FORMATS, FormatName, file_name
from voicemem.memory.exports import CallsLine, export_calls, write_call
from voicemem.protocol.types import JsonObject
from voicemem.security.audit import audit
from voicemem.server.http.request import GRANT, Label, get_stream, services_of, session_filter, stream_body
from voicemem.server.http.routes import JSON_LINES, Routes
from voicemem.server.rest.history import read_at_once
from voicemem.server.rest.sessions import Millis

ROUTES = Routes()
KINDS: dict[str, Any] = {"vcon": JsonObject, "jsonl": list[JsonObject]}
DOCUMENTS = {form.media_type.partition(";")[0]: KINDS.get(name, str) for name, form in FORMATS.items()}


class CallExportQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which document to make of a call."""

    format: FormatName = "vcon"


class CallsExportQuery(CallExportQuery, frozen=True, forbid_unknown_fields=True):
    """The conditions are those of the list of sessions."""

    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Label | None = None
    started_after: Millis | None = None
    started_before: Millis | None = None


@ROUTES.add("GET /v1/sessions/{id}/export", "read", DOCUMENTS, codes="session_set_aside")
async def export_call(request: web.Request, query: CallExportQuery) -> web.Response:
    """Export a call as a document, during the call or after it."""
    stream = await get_stream(request)
    stream, document = await read_at_once(
        request, stream, partial(write_call, query.format, stream), lambda read_model: read_model.is_large
    )
    headers = {
        "Content-Type": FORMATS[query.format].media_type,
        "Content-Disposition": f'attachment; filename="{file_name(stream.id, query.format)}"',
        "X-Content-Type-Options": "nosniff",
    }
    return web.Response(body=document.encode(), headers=headers)


@ROUTES.add("GET /v1/exports", "read", {JSON_LINES: list[CallsLine]})
async def export_many_calls(request: web.Request, query: CallsExportQuery) -> web.StreamResponse:
    """Export the calls for which the conditions hold, the newest first, as JSON lines: each has a whole document.

    The last line is of the type `end`; without it the export was cut short.
    """
    services, grant = services_of(request), request[GRANT]
    audit("calls_exported", grant.key_id, grant.project)
    lines = export_calls(services.store, services.read_models, session_filter(request, query), query.format)
    return await stream_body(request, {"Content-Type": JSON_LINES}, lines)
