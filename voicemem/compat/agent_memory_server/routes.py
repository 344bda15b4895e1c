"""Routes of agent-memory-server: working memory, long-term memory and summary views.

A working memory is a session's messages, data and summary as one object.
"""

import time
from functools import partial
from typing import Annotated, Any, ClassVar

from aiohttp import web
from msgspec import Meta, Struct, structs

from voicemem.compat.agent_memory_server import long_term, views, working_memory
from voicemem.compat.agent_memory_server import records as forms
from voicemem.compat.agent_memory_server.finding import FoundRecords, RecordFinder, RecordSearch, check_filters, equal
from voicemem.compat.agent_memory_server.sessions import Given, OwnedSessions, checked_owner
from voicemem.protocol.arguments import converted
from voicemem.protocol.types import MAX_INTEGER
from voicemem.security.access import Gate
from voicemem.security.audit import audit
from voicemem.server.http.application import Application
from voicemem.server.http.request import SERVICES, Request, json_response, read_body, read_object
from voicemem.server.http.routes import Routes, optional
from voicemem.server.rest import add_routes
from voicemem.services import Services

ROUTES = Routes()
TIMES_MISSING = "messages[].created_at is missing; it will be required. Please provide the time of every message."
Positive = Annotated[int, Meta(ge=1, le=MAX_INTEGER)]
Ack = forms.AgentMemoryAck
OK = Ack("ok")


class AgentMemory:
    """The use cases of these routes, over those of the service."""

    def __init__(self, services: Services) -> None:
        self.finder = RecordFinder(services.long_term, services.vectors, services.finder.queue)
        self.owned = OwnedSessions(services)
        self.records = long_term.LongTermRecords(services.long_term, self.owned, self.finder)
        self.working = working_memory.WorkingMemories(services, self.records)
        self.views = views.SummaryViews(services.working_memory, self.finder, services.read_models.off_loop)


AGENT_MEMORY = web.AppKey("agent_memory", AgentMemory)


def service_of(request: Request) -> AgentMemory:
    return request.shared[AGENT_MEMORY]


class OwnerQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a session: its owner, if several sessions have this id."""

    user_id: Given | None = None
    namespace: Given | None = None


class SessionsQuery(OwnerQuery, frozen=True):
    """The query of a list of sessions: whose they are, and which page."""

    limit: Annotated[int, Meta(ge=1, le=100)] = 20
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0


class WorkingMemoryQuery(OwnerQuery, frozen=True):
    """The query of a working memory: its owner, if several have this id, and the client's model."""

    model_name: str | None = None
    context_window_max: Positive | None = None
    recent_messages_limit: Positive | None = None


class PutQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a PUT; its `user_id` overrides the body's; a model sets the size. `background` does nothing."""

    user_id: Given | None = None
    model_name: str | None = None
    context_window_max: Positive | None = None
    background: bool = False


WORKING_PATH = "/v1/working-memory/{session_id}"


@ROUTES.add(f"GET {WORKING_PATH}", "read", codes="invalid_field unknown_session session_set_aside")
async def get_working_memory(request: Request, query: WorkingMemoryQuery) -> forms.WorkingMemoryView:
    """Read a session's messages, data and summary; with the size of a model's window, the newest that fit."""
    owner = checked_owner(request.in_path["session_id"], query.namespace, query.user_id)
    window = working_memory.window_of(query.model_name, query.context_window_max)
    return await service_of(request).working.read(request.grant.project, owner, window, query.recent_messages_limit)


@ROUTES.add(
    f"PUT {WORKING_PATH}",
    "ingest",
    forms.WorkingMemoryView,
    codes="invalid_field text_too_long session_in_use session_ended session_set_aside"
    " quota_exceeded session_exists session_erased",
)
async def put_working_memory(request: Request, query: PutQuery, body: forms.GivenWorkingMemory) -> web.StreamResponse:
    """Replace a session's messages, data and summary, or begin the session.

    Existing messages are not written again. Messages that another client has added since this one's read stay, if the
    body has the `last_accessed` of that read.
    """
    service, grant, project = service_of(request), request.grant, request.grant.project
    owner = checked_owner(request.in_path["session_id"], body.namespace, query.user_id or body.user_id)
    admit = partial(request.services.limits.count_events, grant.principal)
    stream = await service.working.write(project, owner, body, grant.key_id, admit)
    view = await service.working.view(stream, working_memory.window_of(query.model_name, query.context_window_max))
    if not grant.allows("read"):  # none of its content
        nothing = ("context", "ttl_seconds", "context_percentage_total_used", "context_percentage_until_summarization")
        empty: dict[str, Any] = {"messages": [], "memories": [], "data": {}, "tokens": 0, **dict.fromkeys(nothing)}
        empty["long_term_memory_strategy"] = forms.StrategyConfig()
        view = structs.replace(view, **empty, **owner._asdict())
    undated = any(message.created_at is None for message in body.named_messages)
    return json_response(view, headers={"X-Deprecation-Warning": TIMES_MISSING} if undated else {})


@ROUTES.add(f"DELETE {WORKING_PATH}", "admin", codes="invalid_field")
async def delete_working_memory(request: Request, query: OwnerQuery) -> Ack:
    """Erase a session with everything that came from it. The id can be used again, for a new session."""
    owner = checked_owner(request.in_path["session_id"], query.namespace, query.user_id)
    stream = await service_of(request).owned.delete(request.grant.project, owner)
    if stream is not None:
        audit("session_erased", request.grant, stream.project, stream.id)
    return OK


@ROUTES.add("GET /v1/working-memory/", "read")
async def list_working_memories(request: Request, query: SessionsQuery) -> forms.SessionList:
    """List the ids of sessions, the newest first."""
    page = slice(query.offset, query.offset + query.limit)
    return await service_of(request).owned.list_ids(request.grant.project, query.namespace, query.user_id, page)


@ROUTES.add("GET /v1/health", None)
async def health(request: Request) -> forms.ServerTime:
    """Report that the service answers."""
    return forms.ServerTime(int(time.time()))


class OptimizeQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a search: `optimize_query` would let an LLM rewrite it, and changes nothing here."""

    optimize_query: bool = False


class NamespaceQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The client's namespace, if any; memories without a namespace are included."""

    namespace: Given | None = None


class IdsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The memories to delete; `memory_ids` may be repeated. With a `namespace`, none of another."""

    REPEATED: ClassVar = ("memory_ids",)
    memory_ids: Annotated[tuple[str, ...], Meta(max_length=500)] = ()
    namespace: Given | None = None


LONG_TERM_PATH = "/v1/long-term-memory"
MEMORY_PATH = f"{LONG_TERM_PATH}/{{memory_id}}"
WRITE_CODES = "invalid_field text_too_long memory_exists session_set_aside quota_exceeded"


@ROUTES.add(f"POST {LONG_TERM_PATH}/search", "read", body=optional(RecordSearch), codes="invalid_field")
async def search_long_term_memory(request: Request, query: OptimizeQuery) -> FoundRecords:
    """Search memories; only those that pass the filters are found, however few there are."""
    body = await read_object(request)
    check_filters(body)
    return await service_of(request).finder.search(request.grant.project, converted(body, RecordSearch))


@ROUTES.add(f"POST {LONG_TERM_PATH}/", "ingest", codes=WRITE_CODES)
async def create_long_term_memory(request: Request, query: NamespaceQuery, body: long_term.GivenRecords) -> Ack:
    """Keep memories; the answer comes when they are on disk and can be found. The query's namespace is the default."""
    size = len(await read_body(request))
    request.services.limits.count_events(request.grant.principal, len(body.memories), size)
    await service_of(request).records.create(request.grant.project, body, query.namespace)
    return OK


@ROUTES.add(f"GET {MEMORY_PATH}", "read", codes="unknown_memory")
async def get_long_term_memory(request: Request, query: NamespaceQuery) -> forms.RecordView:
    """Read a memory."""
    service, project = service_of(request), request.grant.project
    return forms.view_of(await service.records.get(project, request.in_path["memory_id"], query.namespace))


@ROUTES.add(f"PATCH {MEMORY_PATH}", "ingest", body=forms.RecordPatch, codes=f"{WRITE_CODES} unknown_memory")
async def edit_long_term_memory(request: Request, patch: forms.RecordPatch) -> forms.RecordView:
    """Change a memory; null changes nothing."""
    id = request.in_path["memory_id"]
    memory = await service_of(request).records.edit(request.grant.project, id, patch)
    may_read = request.grant.allows("read")
    return forms.view_of(memory) if may_read else forms.echo_of(id, patch, memory.updated_at)


@ROUTES.add(f"DELETE {LONG_TERM_PATH}", "ingest")
async def delete_long_term_memories(request: Request, query: IdsQuery) -> Ack:
    """Delete memories by their ids; unknown ids are ignored."""
    count = await service_of(request).records.delete(request.grant.project, query.memory_ids, query.namespace)
    return Ack(f"ok, deleted {count} memories")


@ROUTES.add(f"POST {LONG_TERM_PATH}/forget", "admin", body=long_term.RecordsToForget, codes="invalid_field")
async def forget_long_term_memories(request: Request, query: long_term.ForgetQuery) -> long_term.Forgotten:
    """Delete the memories that a policy forgets, or report them. The body may have the fields of the query too."""
    fields = await read_object(request)
    check_filters(fields)
    body = converted(fields, long_term.RecordsToForget)
    filters = {name: value for name, value in structs.asdict(query).items() if value is not None}
    return await service_of(request).records.forget(request.grant.project, structs.replace(body, **filters))


@ROUTES.add(f"POST {LONG_TERM_PATH}/compact", "admin")
async def compact_long_term_memories(request: Request, query: long_term.CompactQuery) -> Ack:
    """Delete memories that repeat another one of the same owner."""
    service, project = service_of(request), request.grant.project
    left = await service.records.compact(project, equal(namespace=query.namespace, user_id=query.user_id))
    return Ack(f"ok, {left} memories remaining after compaction")


@ROUTES.add(
    "POST /v1/memory/prompt", "read", body=working_memory.PromptRequest, codes="invalid_field session_set_aside"
)
async def make_memory_prompt(request: Request, query: OptimizeQuery) -> working_memory.Prompt:
    """Make a prompt: the summary and the messages of a session, memories that fit the query, and the query."""
    service, project = service_of(request), request.grant.project
    body = await read_object(request)
    check_filters(body.get("long_term_search"))
    return await working_memory.make_prompt(
        service.working, service.finder, project, converted(body, working_memory.PromptRequest)
    )


class PartitionsQuery(long_term.CompactQuery, frozen=True):
    """The query of groups: the values that they must have."""

    session_id: str | None = None
    memory_type: str | None = None


VIEWS_PATH = "/v1/summary-views"
VIEW_PATH = f"{VIEWS_PATH}/{{view_id}}"


@ROUTES.add(f"POST {VIEWS_PATH}", "ingest", codes="invalid_field quota_exceeded")
async def create_summary_view(request: Request, body: views.GivenView) -> views.SummaryView:
    """Keep a view: its memories, and the fields by which they are grouped."""
    return await service_of(request).views.create(request.grant.project, request.services.sessions.new_id(), body)


@ROUTES.add(f"GET {VIEWS_PATH}", "read")
async def list_summary_views(request: Request) -> list[views.SummaryView]:
    """List the views of the project."""
    return await service_of(request).views.list_views(request.grant.project)


@ROUTES.add(f"GET {VIEW_PATH}", "read", codes="not_found")
async def get_summary_view(request: Request) -> views.SummaryView:
    """Read a view."""
    return await service_of(request).views.get(request.grant.project, request.in_path["view_id"])


@ROUTES.add(f"DELETE {VIEW_PATH}", "ingest", codes="quota_exceeded")
async def delete_summary_view(request: Request) -> Ack:
    """Drop a view; the memories stay."""
    await service_of(request).views.delete(request.grant.project, request.in_path["view_id"])
    return OK


@ROUTES.add(f"POST {VIEW_PATH}/partitions/run", "read", body=views.Group, codes="invalid_field not_found")
async def run_summary_view_partition(request: Request, body: views.Group) -> views.Partition:
    """Read one group of a view."""
    return await service_of(request).views.partition(request.grant.project, request.in_path["view_id"], body.group)


@ROUTES.add(f"GET {VIEW_PATH}/partitions", "read", codes="not_found")
async def list_summary_view_partitions(request: Request, query: PartitionsQuery) -> list[views.Partition]:
    """List the groups of a view, with their memories."""
    values = {name: value for name, value in structs.asdict(query).items() if value is not None}
    return await service_of(request).views.partitions(request.grant.project, request.in_path["view_id"], values)


@ROUTES.add(f"POST {VIEW_PATH}/run", "read", codes="invalid_field not_found")
async def run_summary_view(request: Request, body: views.RunRequest) -> views.ViewTask:
    """Return a finished task: groups are made at each request."""
    return await service_of(request).views.run(request.grant.project, request.in_path["view_id"])


@ROUTES.add("GET /v1/tasks/{task_id}", "read", codes="not_found")
async def get_task(request: Request) -> views.ViewTask:
    """Read a task."""
    return await service_of(request).views.find_task(request.grant.project, request.in_path["task_id"])


def register_agent_memory_server(app: Application, gate: Gate) -> None:
    """Add the routes to the REST application, behind the same gate as its own."""
    app[AGENT_MEMORY] = AgentMemory(app[SERVICES])
    add_routes(app, gate, ROUTES)
