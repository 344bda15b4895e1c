"""Long-term memory as agent-memory-server's clients know it."""

from __future__ import annotations

from typing import Annotated, Any, ClassVar

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.errors import RateLimited
from voicemem.memory.agent_memory.filters import Filters, TextFilter, check_filters
from voicemem.memory.agent_memory.finding import FoundRecords, RecordSearch
from voicemem.memory.agent_memory.forgetting import Forgotten, Looked, ToForget
from voicemem.memory.agent_memory.long_term import GivenRecords
from voicemem.memory.agent_memory.models import AgentMemoryAck, RecordView
from voicemem.memory.agent_memory.prompt import Prompt, PromptRequest
from voicemem.memory.agent_memory.records import RecordPatch, echo_of, view_of
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    json_response,
    read_body,
    read_object,
    services_of,
)
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok

Given = Annotated[str, Meta(min_length=1)]


class OptimizeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`optimize_query` would let an LLM rewrite the query; it changes nothing here."""

    optimize_query: bool = False


class ForgetQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which of the newest 1,000 memories are looked at; unless `dry_run` is false, nothing is deleted."""

    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None
    limit: Looked | None = None
    dry_run: bool | None = None


class CompactQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which memories are looked at."""

    namespace: str | None = None
    user_id: str | None = None


class NamespaceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The namespace of a client that has one; memories without any are its own too."""

    namespace: Given | None = None


class IdsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The memories to delete; `memory_ids` may be given several times. With a `namespace`, none of another."""

    REPEATED: ClassVar = ("memory_ids",)
    memory_ids: Annotated[tuple[str, ...], Meta(max_length=500)] = ()
    namespace: Given | None = None


async def create_long_term_memory(request: web.Request, query: NamespaceQuery) -> web.Response:
    """Keep memories; the answer comes when they are on disk and can be found. Those that name no namespace get it."""
    services, grant = services_of(request), request[GRANT]
    given = convert_body(await read_object(request), GivenRecords)
    wait_s = services.limits.take_events(grant.caller, len(given.memories), len(await read_body(request)))
    if wait_s:
        raise RateLimited(wait_s)
    await services.agent_records.create(grant.project, given.within(query.namespace))
    return json_response(AgentMemoryAck("ok"))


async def search_long_term_memory(request: web.Request, _: OptimizeQuery) -> web.Response:
    """Search memories; what the filters do not let through is never found, however few there are."""
    body = await read_object(request)
    check_filters(body)
    wanted = convert_body(body, RecordSearch)
    return json_response(await services_of(request).agent_records.finder.search(request[GRANT].project, wanted))


async def get_long_term_memory(request: web.Request, query: NamespaceQuery) -> web.Response:
    """Read a memory."""
    records = services_of(request).agent_records
    return json_response(
        view_of(await records.get(request[GRANT].project, request.match_info["memory_id"], query.namespace))
    )


async def edit_long_term_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Change a memory; null changes nothing."""
    patch = convert_body(await read_object(request), RecordPatch)
    id, project = request.match_info["memory_id"], request[GRANT].project
    memory = await services_of(request).agent_records.edit(project, id, patch)
    if request[GRANT].allows("read"):
        return json_response(view_of(memory))
    return json_response(echo_of(id, patch, memory.updated_at))


async def delete_long_term_memories(request: web.Request, query: IdsQuery) -> web.Response:
    """Delete memories by their ids; those that do not exist do not matter."""
    count = await services_of(request).agent_records.delete(request[GRANT].project, query.memory_ids, query.namespace)
    return json_response(AgentMemoryAck(f"ok, deleted {count} memories"))


async def forget_long_term_memories(request: web.Request, query: ForgetQuery) -> web.Response:
    """Delete what a policy forgets, or say what it would. What the query does not say, the body may."""
    given = convert_body(await read_object(request), ToForget)
    wanted = ForgetQuery(*(first_given(getattr(query, name), getattr(given, name)) for name in FORGET_FIELDS))
    filters = filters_of(wanted.namespace, wanted.user_id, wanted.session_id)
    records, limit = services_of(request).agent_records, wanted.limit or LOOKED_AT
    return json_response(
        await records.forget(request[GRANT].project, given, filters, limit, wanted.dry_run is not False)
    )


async def compact_long_term_memories(request: web.Request, query: CompactQuery) -> web.Response:
    """Delete memories that say the same as another one of the same owner."""
    filters = filters_of(query.namespace, query.user_id, None)
    left = await services_of(request).agent_records.compact(request[GRANT].project, filters)
    return json_response(AgentMemoryAck(f"ok, {left} memories remaining after compaction"))


async def make_memory_prompt(request: web.Request, _: OptimizeQuery) -> web.Response:
    """Make a prompt: the summary and the messages of a session, memories that fit the query, and the query."""
    body = await read_object(request)
    check_filters(body.get("long_term_search"))
    wanted = convert_body(body, PromptRequest)
    return json_response(await services_of(request).agent_prompts.make(request[GRANT].project, wanted))


def first_given(first: Any, second: Any) -> Any:
    return second if first is None else first


def filters_of(namespace: str | None, user_id: str | None, session_id: str | None) -> Filters:
    return Filters(
        namespace=None if namespace is None else TextFilter(eq=namespace),
        user_id=None if user_id is None else TextFilter(eq=user_id),
        session_id=None if session_id is None else TextFilter(eq=session_id),
    )


FORGET_FIELDS = ForgetQuery.__struct_fields__
LOOKED_AT = 1_000
PATH = "/v1/long-term-memory"
MEMORY_PATH = f"{PATH}/{{memory_id}}"
WRITE_CODES = ("invalid_field", "text_too_long", "memory_exists", "session_set_aside")
ROUTES = (
    Route(
        "POST", f"{PATH}/search", search_long_term_memory, "read", OptimizeQuery, json_ok(FoundRecords),
        BodySpec({JSON: RecordSearch}, required=False), ("invalid_field",),
    ),
    Route(
        "POST", f"{PATH}/", create_long_term_memory, "ingest", NamespaceQuery, json_ok(AgentMemoryAck),
        BodySpec({JSON: GivenRecords}), (*WRITE_CODES, "quota_exceeded"),
    ),
    Route(
        "GET", MEMORY_PATH, get_long_term_memory, "read", NamespaceQuery, json_ok(RecordView),
        codes=("unknown_memory",),
    ),
    Route(
        "PATCH", MEMORY_PATH, edit_long_term_memory, "ingest", NoQuery, json_ok(RecordView),
        BodySpec({JSON: RecordPatch}), (*WRITE_CODES, "unknown_memory"),
    ),
    Route("DELETE", PATH, delete_long_term_memories, "ingest", IdsQuery, json_ok(AgentMemoryAck)),
    Route(
        "POST", f"{PATH}/forget", forget_long_term_memories, "admin", ForgetQuery, json_ok(Forgotten),
        BodySpec({JSON: ToForget}), ("invalid_field",),
    ),
    Route("POST", f"{PATH}/compact", compact_long_term_memories, "admin", CompactQuery, json_ok(AgentMemoryAck)),
    Route(
        "POST", "/v1/memory/prompt", make_memory_prompt, "read", OptimizeQuery, json_ok(Prompt),
        BodySpec({JSON: PromptRequest}), ("invalid_field", "session_set_aside"),
    ),
)  # fmt: skip
