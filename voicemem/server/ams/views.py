"""Summary views as agent-memory-server's clients know them."""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct, structs

from voicemem.memory.agent_memory.models import AgentMemoryAck
from voicemem.memory.agent_memory.views import GivenView, Group, Partition, RunRequest, SummaryView, ViewTask
from voicemem.server.http.request import (
    GRANT,
    NoQuery,
    convert_body,
    json_response,
    read_object,
    services_of,
)
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok


class PartitionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Only the groups with these values."""

    user_id: str | None = None
    namespace: str | None = None
    session_id: str | None = None
    memory_type: str | None = None


async def create_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Keep a view: which memories, and by what they are grouped."""
    services = services_of(request)
    given = convert_body(await read_object(request), GivenView)
    view_id = services.sessions.new_id()
    return json_response(await services.agent_views.create(request[GRANT].project, view_id, given))


async def list_summary_views(request: web.Request, _: NoQuery) -> web.Response:
    """List the views of the project."""
    return json_response(await services_of(request).agent_views.list_views(request[GRANT].project))


async def get_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Read a view."""
    return json_response(await services_of(request).agent_views.get(request[GRANT].project, view_id(request)))


async def delete_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Drop a view; the memories stay."""
    await services_of(request).agent_views.delete(request[GRANT].project, view_id(request))
    return json_response(AgentMemoryAck("ok"))


async def run_summary_view_partition(request: web.Request, _: NoQuery) -> web.Response:
    """Read one group of a view."""
    given = convert_body(await read_object(request), Group)
    views = services_of(request).agent_views
    return json_response(await views.partition(request[GRANT].project, view_id(request), given.group))


async def list_summary_view_partitions(request: web.Request, query: PartitionsQuery) -> web.Response:
    """List the groups of a view, with what is in each."""
    views = services_of(request).agent_views
    return json_response(await views.partitions(request[GRANT].project, view_id(request), structs.asdict(query)))


async def run_summary_view(request: web.Request, _: NoQuery) -> web.Response:
    """Answer a task that is done: groups are made whenever they are asked for."""
    convert_body(await read_object(request), RunRequest)
    return json_response(await services_of(request).agent_views.run(request[GRANT].project, view_id(request)))


async def get_task(request: web.Request, _: NoQuery) -> web.Response:
    """Read a task."""
    task_id = request.match_info["task_id"]
    return json_response(await services_of(request).agent_views.find_task(request[GRANT].project, task_id))


def view_id(request: web.Request) -> str:
    return request.match_info["view_id"]


PATH = "/v1/summary-views"
VIEW_PATH = f"{PATH}/{{view_id}}"
NOT_FOUND = ("not_found",)
ROUTES = (
    Route(
        "POST", PATH, create_summary_view, "ingest", NoQuery, json_ok(SummaryView), BodySpec({JSON: GivenView}),
        ("invalid_field",),
    ),
    Route("GET", PATH, list_summary_views, "read", NoQuery, json_ok(list[SummaryView])),
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
