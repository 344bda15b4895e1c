"""Agents on Agora's paths: join, list, query, update, leave."""

from __future__ import annotations

from typing import Annotated

from aiohttp import web
from msgspec import Meta, Struct

from voicemem.config.session import parse_config
from voicemem.protocol.types import JsonObject, matching
from voicemem.security.agora_tokens import ANY_CHANNEL
from voicemem.server.agora.auth import agent_of, check_channel, project_of, running_agent_of
from voicemem.server.agora.requests import Join, Update, agora_update_patch, body_as, session_config
from voicemem.server.http.request import GRANT, NoQuery, json_response, services_of
from voicemem.server.http.routes import JSON, BodySpec, ResponseSpec, Route, json_ok
from voicemem.server.rest.sessions import check_outbound_change, note_outbound_change
from voicemem.store.records import SessionFilter
from voicemem.store.streams import Stream

PROJECT = "/v2/projects/{appid}"
AGENT = PROJECT + "/agents/{id}"
LEAVE_REASON = "api_leave"
"""The reason of a session that ends by `leave`, in Agora's words."""
STOP_CHANNEL = "stop"
"""The channel of the tokens with which Agora's SDK stops an agent of which it knows the id only."""
RUNNING, STOPPED = "2", "4"
CLOSE_MESSAGES = {"idle": "Idle for too long", "max_duration": "Task lifetime limit exceeded"}
"""By the reason of the close; any other gives OK."""
DEFAULT_LOOKBACK_S = 2 * 3600
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
States = Annotated[str, matching(r"^[0-6](,[0-6])*\Z", "States must be numbers from 0 to 6, separated by commas")]


class AgentsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Times are Unix seconds, by default the last two hours. `state`: numbers separated by commas (2 runs, 4 ended)."""

    channel: str = ""
    from_time: UnixSeconds | None = None
    to_time: UnixSeconds | None = None
    state: States = RUNNING
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    cursor: str = ""


class Started(Struct, frozen=True):
    """An agent after `join` or `update`; times are Unix seconds."""

    agent_id: str
    create_ts: int
    status: str


class Agent(Struct, frozen=True):
    """The status of an agent; `stop_ts` is 0 while it runs."""

    message: str
    start_ts: int
    stop_ts: int
    status: str
    name: str
    agent_id: str


class Listed(Struct, frozen=True):
    """An agent in a list."""

    start_ts: int
    status: str
    agent_id: str


class Data(Struct, frozen=True):
    """One page of agents, the newest first."""

    count: int
    list: tuple[Listed, ...]


class Page(Struct, frozen=True):
    """The cursor of the next page (empty on the last one), and the number of agents on all pages, 10,000 at most."""

    cursor: str
    total: int


class Agents(Struct, frozen=True):
    """A page of agents, and where the next one begins."""

    data: Data
    meta: Page
    status: str = "ok"


def agent_status(stream: Stream) -> str:
    return "RUNNING" if stream.state == "running" else "STOPPED"


async def join(request: web.Request, _: NoQuery) -> web.Response:
    """Start a session; its id is the agent's id, under which an engine sends events."""
    project = await project_of(request)
    config = session_config(await body_as(request, Join))
    check_channel(request, config["channel"])
    check_outbound_change(request, config)
    stream = await services_of(request).sessions.join(project, config, request[GRANT].key_id)
    note_outbound_change(request, config, stream)
    return json_response(Started(stream.id, stream.started_ms // 1000, agent_status(stream)))


async def list_agents(request: web.Request, query: AgentsQuery) -> web.Response:
    """List the agents of the project that meet all conditions, the newest first."""
    project = await project_of(request)
    sessions = services_of(request).sessions
    states = set(query.state.split(","))
    channel = channel_to_list(request, query)
    conditions = agents_filter(project, query, channel, sessions.clock() // 1000)
    if states.isdisjoint({RUNNING, STOPPED}):
        return json_response(Agents(Data(0, ()), Page("", 0)))
    page, cursor = await sessions.list(conditions, query.cursor or None)
    listed = tuple(Listed(stream.started_ms // 1000, agent_status(stream), stream.id) for stream in page)
    return json_response(Agents(Data(len(listed), listed), Page(cursor or "", await sessions.count(conditions))))


def channel_to_list(request: web.Request, query: AgentsQuery) -> str | None:
    """Return the channel whose agents are wanted; a token of Agora's lists those of its own. Raises `Refused`."""
    if query.channel:
        check_channel(request, query.channel)
        return query.channel
    bound = request[GRANT].channel
    return None if bound == ANY_CHANNEL else bound


def agents_filter(project: str, query: AgentsQuery, channel: str | None, now_s: int) -> SessionFilter:
    """Turn a query into a filter; the first and the last second are included."""
    states = set(query.state.split(","))
    both = {RUNNING, STOPPED} <= states
    since = now_s - DEFAULT_LOOKBACK_S if query.from_time is None else int(query.from_time)
    return SessionFilter(
        project=project,
        state=None if both else "running" if RUNNING in states else "ended",
        channel=channel,
        started_after=since * 1000 - 1,
        started_before=None if query.to_time is None else int(query.to_time) * 1000 + 1000,
        limit=query.limit,
    )


async def read_agent(request: web.Request, _: NoQuery) -> web.Response:
    """Read the status of an agent, while it runs and after it."""
    stream = await agent_of(request)
    has_ended = stream.state != "running"
    return json_response(
        Agent(
            message=CLOSE_MESSAGES.get(stream.reason or "", "OK") if has_ended else "",
            start_ts=stream.started_ms // 1000,
            stop_ts=(stream.ended_ms or 0) // 1000,
            status=agent_status(stream),
            name=parse_config(stream.config).name or "",
            agent_id=stream.id,
        )
    )


async def update_agent(request: web.Request, _: NoQuery) -> web.Response:
    """Replace system messages and LLM parameters while the agent runs."""
    stream = await running_agent_of(request)
    changes: JsonObject = agora_update_patch(await body_as(request, Update), parse_config(stream.config).llm)
    if changes:
        stream = await services_of(request).sessions.change(stream, changes)
    return json_response(Started(stream.id, stream.started_ms // 1000, agent_status(stream)))


async def leave(request: web.Request, _: NoQuery) -> web.Response:
    """End and close the session at once; the body is ignored."""
    stream = await running_agent_of(request, STOP_CHANNEL)
    await services_of(request).sessions.end(stream, LEAVE_REASON)
    return web.Response(content_type=JSON)


UNKNOWN_AGENT = ("unknown_session",)
FIELD_CODES = ("missing_field", "invalid_field")

ROUTES = (
    Route(
        "POST",
        f"{PROJECT}/join",
        join,
        "ingest",
        NoQuery,
        json_ok(Started),
        BodySpec({JSON: Join}),
        (*FIELD_CODES, "session_exists", "quota_exceeded"),
    ),
    Route("GET", f"{PROJECT}/agents", list_agents, "read", AgentsQuery, json_ok(Agents), codes=("invalid_cursor",)),
    Route("GET", AGENT, read_agent, "read", NoQuery, json_ok(Agent), codes=UNKNOWN_AGENT),
    Route(
        "POST",
        f"{AGENT}/update",
        update_agent,
        "ingest",
        NoQuery,
        json_ok(Started),
        BodySpec({JSON: Update}),
        (*UNKNOWN_AGENT, *FIELD_CODES),
    ),
    Route("POST", f"{AGENT}/leave", leave, "ingest", NoQuery, {200: ResponseSpec()}, codes=UNKNOWN_AGENT),
)
