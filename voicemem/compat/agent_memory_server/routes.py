"""Routes of agent-memory-server: working memory, long-term memory and summary views.

A working memory is a session's messages, data and summary as one object.
"""

from __future__ import annotations

import time
from functools import partial
from typing import Annotated, Any, ClassVar

from aiohttp import web
from msgspec import Meta, Struct, structs

from voicemem.compat.agent_memory_server.finding import (
    Filters,
    FoundRecords,
    RecordFinder,
    RecordSearch,
    TextFilter,
    check_filters,
)
from voicemem.compat.agent_memory_server.long_term import (
    Forgotten,
    GivenRecords,
    LongTermRecords,
    Looked,
    RecordsToForget,
)
from voicemem.compat.agent_memory_server.prompt import Prompt, PromptRequest, Prompts
from voicemem.compat.agent_memory_server.records import (
    AgentMemoryAck,
    GivenWorkingMemory,
    RecordPatch,
    RecordView,
    ServerTime,
    SessionList,
    StrategyConfig,
    WorkingMemoryView,
    echo_of,
    view_of,
)
from voicemem.compat.agent_memory_server.sessions import OwnedSessions, Owner, checked_owner
from voicemem.compat.agent_memory_server.views import (
    GivenView,
    Group,
    Partition,
    RunRequest,
    SummaryView,
    SummaryViews,
    ViewTask,
)
from voicemem.compat.agent_memory_server.working_memory import WorkingMemories, window_of
from voicemem.protocol.types import MAX_INTEGER
from voicemem.security.audit import audit
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    json_response,
    read_body,
    read_object,
    read_struct,
    services_of,
)
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok
from voicemem.services import Services

TIMES_MISSING = "messages[].created_at is missing; it will be required. Please provide the time of every message."
Given = Annotated[str, Meta(min_length=1)]
"""An empty text must not mean everybody."""
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]


class AgentMemory:
    """The use cases of these routes, over those of the service."""

    def __init__(self, services: Services) -> None:
        store, read_models, sessions = services.store, services.read_models, services.sessions
        finder = RecordFinder(services.long_term, services.vectors)
        self.records = LongTermRecords(services.long_term, OwnedSessions(store, read_models, sessions), finder)
        self.working = WorkingMemories(store, read_models, services.recorder, sessions, self.records)
        self.prompts = Prompts(self.working, finder)
        self.views = SummaryViews(services.working_memory, finder)


AGENT_MEMORY = web.AppKey("agent_memory", AgentMemory)


def agent_memory(request: web.Request) -> AgentMemory:
    return request.app[AGENT_MEMORY]


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Which sessions: of a namespace, of a user, and which page."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    namespace: Given | None = None
    user_id: Given | None = None


class WorkingMemoryQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose session it is, where that is needed to tell it from others, and how much the client's model takes."""

    user_id: Given | None = None
    namespace: Given | None = None
    model_name: str | None = None
    context_window_max: Positive | None = None
    recent_messages_limit: Positive | None = None


class PutQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """`user_id` goes before the one of the body; a model says how much it takes. `background` changes nothing."""

    user_id: Given | None = None
    model_name: str | None = None
    context_window_max: Positive | None = None
    background: bool = False


class OwnerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Whose session it is, where that is needed to tell it from others."""

    user_id: Given | None = None
    namespace: Given | None = None


async def health(request: web.Request, _: NoQuery) -> web.Response:
    """Say that the service answers."""
    return json_response(ServerTime(int(time.time())))


async def list_working_memories(request: web.Request, query: SessionsQuery) -> web.Response:
    """List the ids of sessions, the newest first."""
    page = slice(query.offset, query.offset + query.limit)
    found = await agent_memory(request).working.owned.list_ids(
        request[GRANT].project, query.namespace, query.user_id, page
    )
    return json_response(found)


async def get_working_memory(request: web.Request, query: WorkingMemoryQuery) -> web.Response:
    """Read a session's messages, data and summary; with the size of a model's window, the newest that fit."""
    owner = named_owner(request, query.namespace, query.user_id)
    window = window_of(query.model_name, query.context_window_max)
    view = await agent_memory(request).working.read(request[GRANT].project, owner, window, query.recent_messages_limit)
    return json_response(view)


async def put_working_memory(request: web.Request, query: PutQuery) -> web.Response:
    """Put a session's messages, data and summary in the place of what stood there, or begin the session.

    Messages that stand already are not written again. What another client has added since this one's read stays, if
    the body has the `last_accessed` of that read.
    """
    services, grant = services_of(request), request[GRANT]
    given = await read_struct(request, GivenWorkingMemory)
    owner = named_owner(request, given.namespace, query.user_id or given.user_id)

    admit = partial(services.limits.count_events, grant.caller)
    stream = await agent_memory(request).working.write(grant.project, owner, given, grant.key_id, admit)
    view = await agent_memory(request).working.view(stream, window_of(query.model_name, query.context_window_max))
    if not grant.allows("read"):
        view = unread(view, owner)
    undated = any(message.created_at is None for message in given.named_messages)
    return json_response(view, headers={"X-Deprecation-Warning": TIMES_MISSING} if undated else None)


async def delete_working_memory(request: web.Request, query: OwnerQuery) -> web.Response:
    """Erase a session with everything that came from it. The id can be used again, for a new session."""
    grant = request[GRANT]
    owner = named_owner(request, query.namespace, query.user_id)
    stream = await agent_memory(request).working.owned.delete(grant.project, owner)
    if stream is not None:
        audit("session_erased", grant, stream.project, stream.id)
    return json_response(AgentMemoryAck("ok"))


def unread(view: WorkingMemoryView, owner: Owner) -> WorkingMemoryView:
    """A working memory for a caller who may not read it: nothing of what stands in it."""
    return WorkingMemoryView(
        messages=[],
        memories=[],
        data={},
        context=None,
        user_id=owner.user_id,
        tokens=0,
        session_id=owner.session_id,
        namespace=owner.namespace,
        long_term_memory_strategy=StrategyConfig(),
        ttl_seconds=None,
        last_accessed=view.last_accessed,
        created_at=view.created_at,
        updated_at=view.updated_at,
    )


def named_owner(request: web.Request, namespace: str | None, user_id: str | None) -> Owner:
    """The owner of the working memory that the path names. Raises `Refused` (`invalid_field`)."""
    return checked_owner(request.match_info["session_id"], namespace, user_id)


WORKING_PATH = "/v1/working-memory/{session_id}"
WORKING_ROUTES = (
    Route(
        "GET",
        WORKING_PATH,
        get_working_memory,
        "read",
        WorkingMemoryQuery,
        json_ok(WorkingMemoryView),
        codes=("invalid_field", "unknown_session", "session_set_aside"),
    ),
    Route(
        "PUT",
        WORKING_PATH,
        put_working_memory,
        "ingest",
        PutQuery,
        json_ok(WorkingMemoryView),
        BodySpec({JSON: GivenWorkingMemory}, required=False),
        (
            *("invalid_field", "text_too_long", "session_in_use", "session_ended", "session_set_aside"),
            *("quota_exceeded", "session_exists", "session_erased"),
        ),
    ),
    Route(
        "DELETE",
        WORKING_PATH,
        delete_working_memory,
        "admin",
        OwnerQuery,
        json_ok(AgentMemoryAck),
        codes=("invalid_field",),
    ),
    Route("GET", "/v1/working-memory/", list_working_memories, "read", SessionsQuery, json_ok(SessionList)),
    Route("GET", "/v1/health", health, None, NoQuery, json_ok(ServerTime)),
)


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
    given = await read_struct(request, GivenRecords)
    services.limits.count_events(grant.caller, len(given.memories), len(await read_body(request)))
    await agent_memory(request).records.create(grant.project, given.within(query.namespace))
    return json_response(AgentMemoryAck("ok"))


async def search_long_term_memory(request: web.Request, _: OptimizeQuery) -> web.Response:
    """Search memories; what the filters do not let through is never found, however few there are."""
    body = await read_object(request)
    check_filters(body)
    wanted = convert_body(body, RecordSearch)
    return json_response(await agent_memory(request).records.finder.search(request[GRANT].project, wanted))


async def get_long_term_memory(request: web.Request, query: NamespaceQuery) -> web.Response:
    """Read a memory."""
    records = agent_memory(request).records
    return json_response(
        view_of(await records.get(request[GRANT].project, request.match_info["memory_id"], query.namespace))
    )


async def edit_long_term_memory(request: web.Request, _: NoQuery) -> web.Response:
    """Change a memory; null changes nothing."""
    patch = await read_struct(request, RecordPatch)
    id, project = request.match_info["memory_id"], request[GRANT].project
    memory = await agent_memory(request).records.edit(project, id, patch)
    if request[GRANT].allows("read"):
        return json_response(view_of(memory))
    return json_response(echo_of(id, patch, memory.updated_at))


async def delete_long_term_memories(request: web.Request, query: IdsQuery) -> web.Response:
    """Delete memories by their ids; those that do not exist do not matter."""
    count = await agent_memory(request).records.delete(request[GRANT].project, query.memory_ids, query.namespace)
    return json_response(AgentMemoryAck(f"ok, deleted {count} memories"))


async def forget_long_term_memories(request: web.Request, query: ForgetQuery) -> web.Response:
    """Delete what a policy forgets, or say what it would. What the query does not say, the body may."""
    given = await read_struct(request, RecordsToForget)
    wanted = ForgetQuery(*(first_given(getattr(query, name), getattr(given, name)) for name in FORGET_FIELDS))
    filters = filters_of(wanted.namespace, wanted.user_id, wanted.session_id)
    records, limit = agent_memory(request).records, wanted.limit or LOOKED_AT
    return json_response(
        await records.forget(request[GRANT].project, given, filters, limit, wanted.dry_run is not False)
    )


async def compact_long_term_memories(request: web.Request, query: CompactQuery) -> web.Response:
    """Delete memories that say the same as another one of the same owner."""
    filters = filters_of(query.namespace, query.user_id, None)
    left = await agent_memory(request).records.compact(request[GRANT].project, filters)
    return json_response(AgentMemoryAck(f"ok, {left} memories remaining after compaction"))


async def make_memory_prompt(request: web.Request, _: OptimizeQuery) -> web.Response:
    """Make a prompt: the summary and the messages of a session, memories that fit the query, and the query."""
    body = await read_object(request)
    check_filters(body.get("long_term_search"))
    wanted = convert_body(body, PromptRequest)
    return json_response(await agent_memory(request).prompts.make(request[GRANT].project, wanted))


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
LONG_TERM_PATH = "/v1/long-term-memory"
MEMORY_PATH = f"{LONG_TERM_PATH}/{{memory_id}}"
WRITE_CODES = ("invalid_field", "text_too_long", "memory_exists", "session_set_aside")
LONG_TERM_ROUTES = (
    Route(
        "POST", f"{LONG_TERM_PATH}/search", search_long_term_memory, "read", OptimizeQuery, json_ok(FoundRecords),
        BodySpec({JSON: RecordSearch}, required=False), ("invalid_field",),
    ),
    Route(
        "POST", f"{LONG_TERM_PATH}/", create_long_term_memory, "ingest", NamespaceQuery, json_ok(AgentMemoryAck),
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
    Route("DELETE", LONG_TERM_PATH, delete_long_term_memories, "ingest", IdsQuery, json_ok(AgentMemoryAck)),
    Route(
        "POST", f"{LONG_TERM_PATH}/forget", forget_long_term_memories, "admin", ForgetQuery, json_ok(Forgotten),
        BodySpec({JSON: RecordsToForget}), ("invalid_field",),
    ),
    Route(
        "POST", f"{LONG_TERM_PATH}/compact", compact_long_term_memories, "admin", CompactQuery,
        json_ok(AgentMemoryAck),
    ),
    Route(
        "POST", "/v1/memory/prompt", make_memory_prompt, "read", OptimizeQuery, json_ok(Prompt),
        BodySpec({JSON: PromptRequest}), ("invalid_field", "session_set_aside"),
    ),
)  # fmt: skip


class PartitionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Only the groups with these values."""

    user_id: str | None = None
    namespace: str | None = None
    session_id: str | None = None
    memory_type: str | None = None


async def create_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Keep a view: which memories, and by what they are grouped."""
    given = await read_struct(request, GivenView)
    view_id = services_of(request).sessions.new_id()
    return json_response(await agent_memory(request).views.create(request[GRANT].project, view_id, given))


async def list_summary_views(request: web.Request, _: NoQuery) -> web.Response:
    """List the views of the project."""
    return json_response(await agent_memory(request).views.list_views(request[GRANT].project))


async def get_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Read a view."""
    return json_response(await agent_memory(request).views.get(request[GRANT].project, view_id(request)))


async def delete_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Drop a view; the memories stay."""
    await agent_memory(request).views.delete(request[GRANT].project, view_id(request))
    return json_response(AgentMemoryAck("ok"))


async def run_summary_view_partition(request: web.Request, _: NoQuery) -> web.Response:
    """Read one group of a view."""
    given = await read_struct(request, Group)
    views = agent_memory(request).views
    return json_response(await views.partition(request[GRANT].project, view_id(request), given.group))


async def list_summary_view_partitions(request: web.Request, query: PartitionsQuery) -> web.Response:
    """List the groups of a view, with what is in each."""
    views = agent_memory(request).views
    return json_response(await views.partitions(request[GRANT].project, view_id(request), structs.asdict(query)))


async def run_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Answer a task that is done: groups are made whenever they are asked for."""
    await read_struct(request, RunRequest)
    return json_response(await agent_memory(request).views.run(request[GRANT].project, view_id(request)))


async def get_task(request: web.Request, _: NoQuery) -> web.Response:
    """Read a task."""
    task_id = request.match_info["task_id"]
    return json_response(await agent_memory(request).views.find_task(request[GRANT].project, task_id))


def view_id(request: web.Request) -> str:
    return request.match_info["view_id"]


VIEWS_PATH = "/v1/summary-views"
VIEW_PATH = f"{VIEWS_PATH}/{{view_id}}"
NOT_FOUND = ("not_found",)
VIEW_ROUTES = (
    Route(
        "POST", VIEWS_PATH, create_summary_view, "ingest", NoQuery, json_ok(SummaryView), BodySpec({JSON: GivenView}),
        ("invalid_field",),
    ),
    Route("GET", VIEWS_PATH, list_summary_views, "read", NoQuery, json_ok(list[SummaryView])),
    Route("GET", VIEW_PATH, get_summary_view, "read", NoQuery, json_ok(SummaryView), codes=NOT_FOUND),
    Route("DELETE", VIEW_PATH, delete_summary_view, "ingest", NoQuery, json_ok(AgentMemoryAck)),
    Route(
        "POST", f"{VIEW_PATH}/partitions/run", run_summary_view_partition, "read", NoQuery, json_ok(Partition),
        BodySpec({JSON: Group}), ("invalid_field", *NOT_FOUND),
    ),
    Route(
        "GET", f"{VIEW_PATH}/partitions", list_summary_view_partitions, "read", PartitionsQuery,
        json_ok(list[Partition]), codes=NOT_FOUND,
    ),
    Route(
        "POST", f"{VIEW_PATH}/run", run_summary_view, "read", NoQuery, json_ok(ViewTask),
        BodySpec({JSON: RunRequest}, required=False), ("invalid_field", *NOT_FOUND),
    ),
    Route("GET", "/v1/tasks/{task_id}", get_task, "read", NoQuery, json_ok(ViewTask), codes=NOT_FOUND),
)  # fmt: skip

ROUTES = (*WORKING_ROUTES, *LONG_TERM_ROUTES, *VIEW_ROUTES)
