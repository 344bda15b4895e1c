"""Working memory: the documents of sessions and users, and the data of sessions."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from voicemem.documents.tools import ChatToolCall
from voicemem.memory.working_memory import DocumentOwner, owner_of_session
from voicemem.protocol.events import MemoryData
from voicemem.protocol.types import JsonObject
from voicemem.server.http.request import GRANT, NoQuery, get_stream, json_response, read_object, services_of
from voicemem.server.http.routes import JSON, BodySpec, ResponseSpec, Route, json_ok
from voicemem.server.rest import documents
from voicemem.server.rest.documents import (
    AppendedDocument,
    DocumentVersions,
    ReplacedDocument,
    ToolMessage,
    Tools,
    UpdatedDocument,
    VersionQuery,
    VersionsQuery,
    WorkingMemoryDocument,
)
from voicemem.server.rest.users import erase_user_memory, user_of


async def owner_of(request: web.Request) -> DocumentOwner:
    """Whose document the path is about. Raises `Refused`."""
    if "user_id" in request.match_info:
        return DocumentOwner("user", request[GRANT].project, user_of(request))
    return owner_of_session(await get_stream(request))


async def read_working_memory(request: web.Request, query: VersionQuery) -> web.Response:
    """The document that the session works on: its own, or that of its user."""
    return await documents.read(request, await owner_of(request), query)


async def list_working_memory_versions(request: web.Request, query: VersionsQuery) -> web.Response:
    """What made each version of the document, the newest first."""
    return await documents.versions(request, await owner_of(request), query)


async def replace_working_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Put a content, a form, or both into the place of what is there."""
    return await documents.replace(request, await owner_of(request))


async def append_working_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Add to the document: objects are merged deep, arrays take what is new, a text is put below."""
    return await documents.append(request, await owner_of(request))


async def clear_working_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Empty the document. Its versions stay, and its form."""
    return await documents.clear(request, await owner_of(request))


async def list_working_memory_tools(request: web.Request, _: NoQuery) -> web.Response:
    """The tools by which an LLM works on the document, as OpenAI takes them."""
    return await documents.list_tools(request, await owner_of(request))


async def call_working_memory_tool(request: web.Request, _: NoQuery) -> web.Response:
    """Do what a tool call says, and answer it. What is wrong with the call is told to the LLM in the answer."""
    return await documents.execute(request, await owner_of(request))


async def read_user_working_memory(request: web.Request, query: VersionQuery) -> web.Response:
    """The document of a user, which the user's sessions share."""
    return await documents.read(request, await owner_of(request), query)


async def list_user_working_memory_versions(request: web.Request, query: VersionsQuery) -> web.Response:
    """What made each version of a user's document, the newest first."""
    return await documents.versions(request, await owner_of(request), query)


async def replace_user_working_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Put a content, a form, or both into the place of a user's document."""
    return await documents.replace(request, await owner_of(request))


async def append_user_working_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Add to a user's document: objects are merged deep, arrays take what is new, a text is put below."""
    return await documents.append(request, await owner_of(request))


async def clear_user_working_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Empty a user's document. Its versions stay, and its form."""
    return await documents.clear(request, await owner_of(request))


async def list_user_working_memory_tools(request: web.Request, _: NoQuery) -> web.Response:
    """The tools by which an LLM works on a user's document, as OpenAI takes them."""
    return await documents.list_tools(request, await owner_of(request))


async def call_user_working_memory_tool(request: web.Request, _: NoQuery) -> web.Response:
    """Do what a tool call says with a user's document, and answer it."""
    return await documents.execute(request, await owner_of(request))


async def read_data(request: web.Request, _: NoQuery) -> web.Response:
    """The data of the session: any JSON object of the caller's."""
    return json_response(await services_of(request).working_memory.data(await get_stream(request)))


async def replace_data(request: web.Request, _: NoQuery) -> web.Response:
    """Put an object into the place of the session's data."""
    return await changed_data(request, MemoryData(operation="replace", content=await read_object(request)))


async def change_data(request: web.Request, _: NoQuery) -> web.Response:
    """Change the session's data by a merge patch (RFC 7396); null takes a field away."""
    return await changed_data(request, MemoryData(operation="patch", content=await read_object(request)))


async def changed_data(request: web.Request, event: MemoryData) -> web.Response:
    return json_response(await services_of(request).working_memory.change_data(await get_stream(request), event))


def document_routes(base: str, handlers: tuple[Any, ...], codes: tuple[str, ...]) -> tuple[Route[Any], ...]:
    """The routes of documents below a path."""
    read, versions, replace, append, clear, tools, call = handlers
    path = f"{base}/working-memory"
    shown = {200: ResponseSpec({JSON: WorkingMemoryDocument}, headers=("ETag",))}
    written = {200: ResponseSpec({JSON: WorkingMemoryDocument | UpdatedDocument}, headers=("ETag",))}
    racing = (*codes, "precondition_failed")
    return (
        Route("GET", path, read, "read", VersionQuery, shown, codes=(*codes, "unknown_version")),
        Route("GET", f"{path}/versions", versions, "read", VersionsQuery, json_ok(DocumentVersions), codes=codes),
        Route(
            "PUT",
            path,
            replace,
            "ingest",
            NoQuery,
            written,
            BodySpec({JSON: ReplacedDocument}),
            (*racing, "missing_field"),
        ),
        Route("PATCH", path, append, "ingest", NoQuery, written, BodySpec({JSON: AppendedDocument}), racing),
        Route("DELETE", path, clear, "ingest", NoQuery, written, codes=racing),
        Route("GET", f"{path}/tools", tools, "read", NoQuery, json_ok(Tools), codes=codes),
        Route(
            "POST",
            f"{path}/tools",
            call,
            "ingest",
            NoQuery,
            json_ok(ToolMessage),
            BodySpec({JSON: ChatToolCall}),
            codes,
        ),
    )


OF_SESSIONS = (
    read_working_memory,
    list_working_memory_versions,
    replace_working_memory,
    append_working_memory,
    clear_working_memory,
    list_working_memory_tools,
    call_working_memory_tool,
)
OF_USERS = (
    read_user_working_memory,
    list_user_working_memory_versions,
    replace_user_working_memory,
    append_user_working_memory,
    clear_user_working_memory,
    list_user_working_memory_tools,
    call_user_working_memory_tool,
)
DATA = "/v1/sessions/{id}/data"
ROUTES = (
    *document_routes("/v1/sessions/{id}", OF_SESSIONS, ("no_user",)),
    *document_routes("/v1/users/{user_id}", OF_USERS, ()),
    Route("GET", DATA, read_data, "read", NoQuery, json_ok(JsonObject)),
    Route(
        "PUT", DATA, replace_data, "ingest", NoQuery, json_ok(JsonObject), BodySpec({JSON: JsonObject}, required=False)
    ),
    Route(
        "PATCH", DATA, change_data, "ingest", NoQuery, json_ok(JsonObject), BodySpec({JSON: JsonObject}, required=False)
    ),
    Route("DELETE", "/v1/users/{user_id}", erase_user_memory, "admin", NoQuery, {204: ResponseSpec()}),
)
