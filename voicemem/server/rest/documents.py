"""Working memory over REST, whoever it belongs to: reading, updating, the tools of agents."""

from __future__ import annotations

import re
from collections.abc import Collection
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType

from voicemem.documents.document import DocumentFormat, Scope, check_form, form_of
from voicemem.documents.tools import GET_TOOL, ChatToolCall
from voicemem.errors import Refused
from voicemem.memory.working_memory import DocumentChange, DocumentOwner, DocumentView
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.server.http.request import GRANT, convert_body, json_response, read_object, services_of

TAG = re.compile(r'\s*(?:W/)?("?)(0|[1-9][0-9]{0,14})\1\s*')
"""A version as an ETag; without its quotes too, as people write it."""
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class VersionQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`version` is an earlier one, from 1 on."""

    version: Positive | None = None


class VersionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`before` is the lowest version of the page before."""

    before: Positive | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100


class ReplacedDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """What a document is to be. With `format`, `template` or `schema` it has this form from then on."""

    content: str | JsonObject | UnsetType = UNSET
    format: DocumentFormat | None = None
    template: str | None = None
    schema: JsonObject | None = None


class AppendedDocument(Struct, frozen=True, forbid_unknown_fields=True):
    """What is new in a document: an object if it is JSON, else a text."""

    content: str | JsonObject


class WorkingMemoryDocument(Struct, frozen=True):
    """A document; version 0, without content, is before the first update. `updated_at` is in Unix ms."""

    scope: Scope
    format: DocumentFormat
    template: str | None
    schema: JsonObject | None
    content: str | JsonObject | None
    version: int
    updated_at: int | None


class UpdatedDocument(Struct, frozen=True):
    """What a key that may not read gets to know of its update."""

    version: int
    updated_at: int | None


class DocumentVersion(Struct, frozen=True):
    """What made a version."""

    version: int
    operation: Literal["append", "replace", "clear", "form"]
    updated_at: int


class DocumentVersions(Struct, frozen=True):
    """The newest come first."""

    versions: list[DocumentVersion]


class Tools(Struct, frozen=True):
    """Tool definitions as OpenAI takes them."""

    tools: list[JsonObject]


class ToolMessage(Struct, frozen=True):
    """The message that answers a tool call."""

    role: Literal["tool"]
    tool_call_id: str
    content: str


def may_read(request: web.Request) -> bool:
    return request[GRANT].allows("read", request.match_info.get("id"))


def updated(request: web.Request, view: DocumentView) -> web.Response:
    """The document after an update, for those who may read it."""
    if may_read(request):
        return document_response(view)
    document = UpdatedDocument(version=view.version, updated_at=view.updated_ms)
    return json_response(document, headers={"ETag": f'"{view.version}"'})


def document_response(view: DocumentView) -> web.Response:
    form = view.form
    document = WorkingMemoryDocument(
        scope=view.owner.scope,
        format=form.format,
        template=form.template,
        schema=form.schema,
        content=view.content,
        version=view.version,
        updated_at=view.updated_ms,
    )
    return json_response(document, headers={"ETag": f'"{view.version}"'})


def expected_versions(request: web.Request) -> Collection[int] | None:
    """The versions that `If-Match` names, or 0 for `If-None-Match: *`; None when any will do."""
    given = request.headers.getall("If-Match", None)
    wanted = None
    if given is not None and "*" not in given:
        tags = map(TAG.fullmatch, ",".join(given).split(","))
        wanted = {int(tag[2]) for tag in tags if tag is not None}
    if request.headers.get("If-None-Match", "").strip() == "*":
        return {0} if wanted is None else wanted & {0}
    return wanted


async def read(request: web.Request, owner: DocumentOwner, query: VersionQuery) -> web.Response:
    return document_response(await services_of(request).working_memory.read_document(owner, query.version))


async def versions(request: web.Request, owner: DocumentOwner, query: VersionsQuery) -> web.Response:
    found = await services_of(request).working_memory.versions(owner, query.before, query.limit)
    return json_response(DocumentVersions([DocumentVersion(*one) for one in found]))


async def replace(request: web.Request, owner: DocumentOwner) -> web.Response:
    given = convert_body(await read_object(request), ReplacedDocument)
    form = form_of(given)
    if form is not None:
        request[GRANT].require_setting()
        check_form(given)
    content: Any = None if given.content is UNSET else given.content
    if content is None and form is None:
        raise Refused("missing_field", "The body has `content`, or a form: `format`, `template` or `schema`.")
    change = DocumentChange("form" if content is None else "replace", content, form)
    return updated(request, await services_of(request).working_memory.change(owner, change, expected_versions(request)))


async def append(request: web.Request, owner: DocumentOwner) -> web.Response:
    given = convert_body(await read_object(request), AppendedDocument)
    change = DocumentChange("append", given.content)
    return updated(request, await services_of(request).working_memory.change(owner, change, expected_versions(request)))


async def clear(request: web.Request, owner: DocumentOwner) -> web.Response:
    change = DocumentChange("clear")
    return updated(request, await services_of(request).working_memory.change(owner, change, expected_versions(request)))


async def list_tools(request: web.Request, owner: DocumentOwner) -> web.Response:
    return json_response(Tools(await services_of(request).working_memory.tool_definitions(owner)))


async def execute(request: web.Request, owner: DocumentOwner) -> web.Response:
    call = convert_body(await read_object(request), ChatToolCall)
    if call.function.name == GET_TOOL:
        request[GRANT].require("read", request.match_info.get("id"))
    message = await services_of(request).working_memory.execute_tool(owner, call)
    return json_response(msgspec.convert(message, ToolMessage))
