"""Working memory: the documents of sessions and users, and the data of sessions."""

import inspect
import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.documents.document import GET_TOOL, ChatToolCall, DocumentFormat, Scope, check_form, form_of
from voicemem.errors import Refused
from voicemem.memory import working_memory
from voicemem.protocol.events import MemoryData
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.server.http.openapi import id_of
from voicemem.server.http.request import Request, get_stream, json_response, name_in_path, read_object, read_struct
from voicemem.server.http.routes import Route, Routes, optional
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.streams import Stream

ROUTES = Routes()
PATH = "/v1/sessions/{id}/working-memory"
DATA_PATH = "/v1/sessions/{id}/data"
READ_CODES = "no_user session_set_aside"
WRITE_CODES = f"{READ_CODES} precondition_failed quota_exceeded"

ETAG = re.compile(r'\s*(?:W/)?("?)(0|[1-9][0-9]{0,14})\1\s*')
"""A version as an ETag, with or without quotes."""
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class VersionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a document; `version` names an earlier version, from 1 on."""

    version: Positive | None = None


class VersionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of versions; `before` is the lowest version of the previous page."""

    before: Positive | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ReplacedDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """The new document. With `format`, `template` or `schema` it has this form from now on."""

    content: str | JsonObject | UnsetType = UNSET
    format: DocumentFormat | None = None
    template: str | None = None
    schema: JsonObject | None = None


class AppendedDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """An addition to a document: an object if it is JSON, or else a text."""

    content: str | JsonObject


class WorkingMemoryDocument(Struct, frozen=True):
    """A document; before the first update it has version 0 and no content. `updated_at` is Unix ms."""

    scope: Scope
    format: DocumentFormat
    template: str | None
    schema: JsonObject | None
    content: str | JsonObject | None
    version: int
    updated_at: int | None


class UpdatedDocument(Struct, frozen=True):
    """The answer to an update with a key that may not read."""

    version: int
    updated_at: int | None


Written = WorkingMemoryDocument | UpdatedDocument


class DocumentVersions(Struct, frozen=True):
    """The versions, the newest first."""

    versions: list[working_memory.DocumentVersion]


class Tools(Struct, frozen=True):
    """Tool definitions in OpenAI's form."""

    tools: list[JsonObject]


class ToolMessage(Struct, frozen=True):
    """The message that answers a tool call."""

    role: Literal["tool"]
    tool_call_id: str
    content: str


async def apply_to_document(
    request: Request, owner: working_memory.DocumentOwner, change: working_memory.DocumentChange
) -> web.StreamResponse:
    """Change a document; the answer shows it if the key may read it."""
    view = await request.services.working_memory.change(owner, change, expected_versions(request))
    if request.grant.allows("read", request.in_path.get("id")):
        return document_response(view)
    document = UpdatedDocument(version=view.version, updated_at=view.updated_ms)
    return json_response(document, headers={"ETag": f'"{view.version}"'})


def document_response(view: working_memory.DocumentView) -> web.StreamResponse:
    form = view.form.format, view.form.template, view.form.schema
    document = WorkingMemoryDocument(view.owner.scope, *form, view.content, view.version, view.updated_ms)
    return json_response(document, headers={"ETag": f'"{view.version}"'})


def expected_versions(request: Request) -> Collection[int] | None:
    """Return the versions that `If-Match` names, or 0 for `If-None-Match: *`; None if any version will do."""
    if_match = request.headers.getall("If-Match", None)
    versions = None
    if if_match is not None and "*" not in if_match:
        tags = map(ETAG.fullmatch, ",".join(if_match).split(","))
        versions = {int(tag[2]) for tag in tags if tag is not None}
    if request.headers.get("If-None-Match", "").strip() == "*":
        return {0} if versions is None else versions & {0}
    return versions


async def owner_of(request: Request) -> working_memory.DocumentOwner:
    if "user_id" in request.in_path:
        return working_memory.DocumentOwner("user", request.grant.project, name_in_path(request, "user_id"))
    return working_memory.owner_of_session(await get_stream(request))


@ROUTES.add(f"GET {PATH}", "read", WorkingMemoryDocument, codes=f"{READ_CODES} unknown_version", headers=("ETag",))
async def read_working_memory(request: Request, query: VersionQuery) -> web.StreamResponse:
    """Read the document, as it is now or at a version."""
    owner = await owner_of(request)
    return document_response(await request.services.working_memory.read_document(owner, query.version))


@ROUTES.add(f"GET {PATH}/versions", "read", codes=READ_CODES)
async def list_working_memory_versions(request: Request, query: VersionsQuery) -> DocumentVersions:
    """List the versions of the document and the operations that made them, the newest first."""
    owner = await owner_of(request)
    versions = await request.services.working_memory.versions(owner, query.before, query.limit)
    return DocumentVersions(versions)


@ROUTES.add(f"PUT {PATH}", "ingest", Written, ReplacedDocument, f"{WRITE_CODES} missing_field", headers=("ETag",))
async def replace_working_memory(request: Request) -> web.StreamResponse:
    """Replace the content of the document, its form, or both."""
    owner = await owner_of(request)
    body = await read_struct(request, ReplacedDocument)
    form = form_of(body)
    if form is not None:
        request.grant.require_setting()
        check_form(body)
        if form.schema is not None:
            await SCHEMA_WORKER.check(form.schema)
    content: Any = None if body.content is UNSET else body.content
    if content is None and form is None:
        raise Refused("missing_field", "The body must have `content`, or a form: `format`, `template` or `schema`.")
    return await apply_to_document(
        request, owner, working_memory.DocumentChange("form" if content is None else "replace", content, form)
    )


@ROUTES.add(f"PATCH {PATH}", "ingest", Written, AppendedDocument, WRITE_CODES, headers=("ETag",))
async def append_working_memory(request: Request) -> web.StreamResponse:
    """Add to the document: objects are merged deeply, new items are added to arrays, a text is appended."""
    owner = await owner_of(request)
    body = await read_struct(request, AppendedDocument)
    return await apply_to_document(request, owner, working_memory.DocumentChange("append", body.content))


@ROUTES.add(f"DELETE {PATH}", "ingest", Written, codes=WRITE_CODES, headers=("ETag",))
async def clear_working_memory(request: Request) -> web.StreamResponse:
    """Empty the document. Its versions and its form stay."""
    return await apply_to_document(request, await owner_of(request), working_memory.DocumentChange("clear"))


@ROUTES.add(f"GET {PATH}/tools", "read", codes=READ_CODES)
async def list_working_memory_tools(request: Request) -> Tools:
    """List the tools with which an LLM works on the document, in OpenAI's form."""
    owner = await owner_of(request)
    return Tools(await request.services.working_memory.tool_definitions(owner))


@ROUTES.add(f"POST {PATH}/tools", "ingest", body=ChatToolCall, codes=READ_CODES)
async def call_working_memory_tool(request: Request) -> ToolMessage:
    """Execute a tool call on the document, and answer it. Errors of the LLM are in the answer."""
    owner = await owner_of(request)
    tool_call = await read_struct(request, ChatToolCall)
    if tool_call.function.name == GET_TOOL:
        request.grant.require("read", request.in_path.get("id"))
    message = await request.services.working_memory.execute_tool(owner, tool_call)
    return msgspec.convert(message, ToolMessage)


@ROUTES.add(f"GET {DATA_PATH}", "read", codes="session_set_aside")
async def read_data(request: Request, stream: Stream) -> JsonObject:
    """Read the data of the session: any JSON object of the caller's."""
    return await request.services.working_memory.data(stream)


@ROUTES.add(f"PUT {DATA_PATH}", "ingest", body=optional(JsonObject), codes="session_set_aside quota_exceeded")
async def replace_data(request: Request) -> JsonObject:
    """Replace the session's data with an object."""
    return await apply_to_data(request, MemoryData(operation="replace", content=await read_object(request)))


@ROUTES.add(f"PATCH {DATA_PATH}", "ingest", body=optional(JsonObject), codes="session_set_aside quota_exceeded")
async def change_data(request: Request) -> JsonObject:
    """Change the session's data with a merge patch (RFC 7396); null removes a field."""
    return await apply_to_data(request, MemoryData(operation="patch", content=await read_object(request)))


async def apply_to_data(request: Request, event: MemoryData) -> JsonObject:
    return await request.services.working_memory.change_data(await get_stream(request), event)


def of_user(route: Route[Any]) -> Route[Any]:
    """Return the route of a session's document as that of a user's, which the user's sessions share."""
    return route._replace(
        path=route.path.replace("/sessions/{id}/", "/users/{user_id}/"),
        codes=tuple(code for code in route.codes if code != "no_user"),
        operation_id=id_of(route).replace("working_memory", "user_working_memory"),
        about=str(inspect.getdoc(route.handler)).replace("the document", "a user's document", 1),
    )


ROUTES += [of_user(route) for route in ROUTES if route.path.startswith(PATH)]
