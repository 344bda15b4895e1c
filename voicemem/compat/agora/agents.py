"""Agents on Agora's paths: join, list, update, leave; their history and turns; speak, think and interrupt."""

from collections.abc import Callable
from functools import partial
from operator import attrgetter
from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType
from msgspec.structs import astuple

from voicemem.compat.agora import requests
from voicemem.compat.agora.apps import ANY_CHANNEL
from voicemem.config.session import parse_config
from voicemem.errors import Refused
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import Interrupt, MessageEvent, ProducedEvent
from voicemem.protocol.types import JsonObject, matching
from voicemem.server.http.request import Request
from voicemem.server.http.routes import JSON, ResponseSpec, Routes
from voicemem.server.rest.history import AgoraTurn, HistoryQuery, Large, Spoken, answer_with, make_contents
from voicemem.server.rest.sessions import check_outbound_change, note_outbound_change
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message
from voicemem.transcript.packing import Items
from voicemem.transcript.turns import turn_object

ROUTES = Routes()
RECORD_CODES = "unknown_session session_ended seq_required"
SPEAK_CODES = f"{RECORD_CODES} missing_field invalid_field text_too_long reserved_metadata"
PROJECT = "/v2/projects/{appid}"
AGENT = PROJECT + "/agents/{id}"
STOP_CHANNEL = "stop"
"""The channel in the tokens with which Agora's SDK stops an agent when it knows only the agent's id."""
RUNNING, STOPPED = "2", "4"
CLOSE_MESSAGES = {"idle": "Idle for too long", "max_duration": "Task lifetime limit exceeded"}
"""By the reason of the close; any other reason gives OK."""
UnixSeconds = Annotated[float, Meta(ge=0, le=1e11)]
States = Annotated[str, matching(r"^[0-6](,[0-6])*\Z", "States must be numbers from 0 to 6, separated by commas")]


class AgentsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """A list of agents, by default of the last two hours; times are Unix seconds. `state`: 2 is running, 4 ended."""

    channel: str = ""
    from_time: UnixSeconds | None = None
    to_time: UnixSeconds | None = None
    state: States = RUNNING
    limit: Annotated[int, Meta(ge=1, le=1000)] = 20
    cursor: str = ""


class JoinedAgent(Struct, frozen=True):
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


class AgentSummary(Struct, frozen=True):
    """An agent in a list."""

    start_ts: int
    status: str
    agent_id: str


class AgentPage(Struct, frozen=True):
    """One page of agents, the newest first."""

    count: int
    list: tuple[AgentSummary, ...]


class PageInfo(Struct, frozen=True):
    """The cursor of the next page (empty on the last one), and the number of agents on all pages, 10,000 at most."""

    cursor: str
    total: int


class Agents(Struct, frozen=True):
    """A page of agents, and where the next one begins."""

    data: AgentPage
    meta: PageInfo
    status: str = "ok"


def agent_status(stream: Stream) -> str:
    return "RUNNING" if stream.state == "running" else "STOPPED"


@ROUTES.add(
    f"POST {PROJECT}/join",
    "ingest",
    body=requests.Join,
    codes="missing_field invalid_field session_exists quota_exceeded",
)
async def join(request: Request) -> JoinedAgent:
    """Start a session; its id is the agent's id, under which an engine sends events."""
    project = await requests.project_of(request)
    config = requests.session_config(await requests.body_as(request, requests.Join))
    requests.check_channel(request, config["channel"])
    check_outbound_change(request, config)
    stream = (await request.services.sessions.create(project, None, config, request.grant.key_id, takes_name=True))[0]
    note_outbound_change(request, config, stream)
    return JoinedAgent(stream.id, stream.started_ms // 1000, agent_status(stream))


@ROUTES.add(f"GET {PROJECT}/agents", "read", codes="invalid_cursor")
async def list_agents(request: Request, query: AgentsQuery) -> Agents:
    """List the agents of the project that meet all conditions, the newest first."""
    project = await requests.project_of(request)
    sessions = request.services.sessions
    bound = request.grant.channel  # a token of Agora's lists only the agents of its own channel
    if query.channel:
        requests.check_channel(request, query.channel)
    states = set(query.state.split(","))
    since = sessions.clock() // 1000 - 2 * 3600 if query.from_time is None else int(query.from_time)
    conditions = SessionFilter(  # both ends are included
        project=project,
        state=None if states >= {RUNNING, STOPPED} else "running" if RUNNING in states else "ended",
        channel=query.channel or (None if bound == ANY_CHANNEL else bound),
        started_after=since * 1000 - 1,
        started_before=None if query.to_time is None else int(query.to_time) * 1000 + 1000,
        limit=query.limit,
    )
    if states.isdisjoint({RUNNING, STOPPED}):
        return Agents(AgentPage(0, ()), PageInfo("", 0))
    page, cursor = await sessions.list(conditions, query.cursor or None)
    listed = tuple(AgentSummary(stream.started_ms // 1000, agent_status(stream), stream.id) for stream in page)
    count = await sessions.store.journal.count_sessions(conditions)
    return Agents(AgentPage(len(listed), listed), PageInfo(cursor or "", count))


@ROUTES.add(f"GET {AGENT}", "read", codes="unknown_session")
async def read_agent(request: Request) -> Agent:
    """Read the status of an agent, during and after its run."""
    stream = await requests.agent_of(request)
    has_ended = stream.state != "running"
    return Agent(
        message=CLOSE_MESSAGES.get(stream.reason or "", "OK") if has_ended else "",
        start_ts=stream.started_ms // 1000,
        stop_ts=(stream.ended_ms or 0) // 1000,
        status=agent_status(stream),
        name=parse_config(stream.config).name or "",
        agent_id=stream.id,
    )


@ROUTES.add(
    f"POST {AGENT}/update",
    "ingest",
    body=requests.Update,
    codes="unknown_session missing_field invalid_field quota_exceeded",
)
async def update_agent(request: Request) -> JoinedAgent:
    """Replace system messages and LLM parameters while the agent runs."""
    stream = await requests.running_agent_of(request)
    changes: JsonObject = requests.agora_update_patch(
        await requests.body_as(request, requests.Update), parse_config(stream.config).llm
    )
    if changes:
        stream = await request.services.sessions.change(stream, changes)
    return JoinedAgent(stream.id, stream.started_ms // 1000, agent_status(stream))


@ROUTES.add(f"POST {AGENT}/leave", "ingest", {200: ResponseSpec()}, codes="unknown_session")
async def leave(request: Request) -> web.StreamResponse:
    """End and close the session at once; the body is ignored."""
    stream = await requests.running_agent_of(request, STOP_CHANNEL)
    await request.services.sessions.end(stream, "api_leave")  # in Agora's words
    return web.Response(content_type=JSON)


AGORA_PRODUCER = "agora.rest"
"""The producer of events from these routes; they have no seq, so the name is reserved (`quotas.OWN_PRODUCERS`)."""


class TurnsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a page of turns; pages are counted from 1."""

    page_index: Annotated[int, Meta(ge=1, le=2**31)] = 1
    page_size: Annotated[int, Meta(ge=1, le=200)] = 50


class TimedMessage(Message, frozen=True, gc=False):
    """A message, and when it could be heard, if events say so (`docs/agora.md`)."""

    speech_start_ms: float | UnsetType = UNSET
    speech_end_ms: float | UnsetType = UNSET
    speech_algorithmic_delay: float | UnsetType = UNSET


class RunningAgent(Struct, frozen=True):
    """The first fields of a running agent's memory; `start_ts` is Unix seconds."""

    agent_id: str
    start_ts: int
    status: Literal["RUNNING"]


class AgoraHistory(RunningAgent, frozen=True):
    """The memory of a running agent."""

    contents: list[TimedMessage]


class StandardAgoraHistory(RunningAgent, frozen=True):
    """The memory of a running agent if a setting reduces messages to role and content."""

    contents: list[Spoken]


class Pagination(Struct, frozen=True):
    """The number of this page, and of all pages."""

    page_index: int
    total_pages: int
    is_last_page: bool


class AgoraTurns(Struct, frozen=True):
    """A page of the turns of an agent."""

    agent_id: str
    name: str
    channel: str
    total_turn_count: int
    pagination: Pagination
    turns: list[AgoraTurn]


class SpokenBody(Struct, frozen=True):
    """The answer to `speak`, `think` and `interrupt`; `start_ts` is Unix seconds."""

    agent_id: str
    channel: str
    start_ts: int


@ROUTES.add(f"GET {AGENT}/history", "read", AgoraHistory | StandardAgoraHistory, codes="unknown_session")
async def read_agent_history(request: Request) -> web.StreamResponse:
    """Read the memory of an agent, while it runs."""
    stream = await requests.running_agent_of(request)
    make: Callable[[ReadModel], bytes | Large] = timed_contents
    if request.services.settings.agora_contents == "standard":
        make = partial(make_contents, HistoryQuery(fields="standard"))

    def head(stream: Stream) -> RunningAgent:
        return RunningAgent(stream.id, stream.started_ms // 1000, "RUNNING")

    return await answer_with(request, stream, make, attrgetter("is_large"), "contents", head)


def timed_contents(read_model: ReadModel) -> bytes | Large:
    timed = (TimedMessage(*astuple(message), **times) for message, times in read_model.timed_messages())
    if read_model.has_large_answer:
        return Large(map(Raw, Items[bytes](bytes, map(msgspec.json.encode, timed))), read_model.folded_bytes)
    return msgspec.json.encode([*timed])


@ROUTES.add(f"GET {AGENT}/turns", "read", codes="unknown_session")
async def read_agent_turns(request: Request, query: TurnsQuery) -> AgoraTurns:
    """Read each turn's start, end, cause and latencies, during and after the agent's run."""
    stream = await requests.agent_of(request)
    first = (query.page_index - 1) * query.page_size

    def page(read_model: ReadModel) -> tuple[int, list[JsonObject]]:
        """Return the number of turns, and the page's turns without our own fields."""
        state = read_model.state
        shown = state.turn_numbers[first : first + query.page_size]
        return len(state.turn_numbers), [turn_object(state, turn) for turn in state.each_turn(shown)]

    count, turns = await request.services.read_models.read(stream, page)
    config = parse_config(stream.config)
    channel = config.channel or ""
    pages = -(-count // query.page_size) or 1
    return AgoraTurns(
        agent_id=stream.id,
        name=config.name or "",
        channel=channel,
        total_turn_count=count,
        pagination=Pagination(query.page_index, pages, query.page_index >= pages),
        turns=[AgoraTurn(stream.id, channel, **turn) for turn in turns],
    )


@ROUTES.add(f"POST {AGENT}/speak", "ingest", body=requests.Speak, codes=SPEAK_CODES)
async def speak(request: Request) -> SpokenBody:
    """Record a text that the agent is to say, in the newest turn; it interrupts nothing."""
    stream = await requests.running_agent_of(request)
    body = await requests.body_as(request, requests.Speak)
    if len(body.text.encode()) > requests.MAX_SPEECH_BYTES:
        raise Refused("text_too_long", f"The text may have at most {requests.MAX_SPEECH_BYTES} bytes.")
    newest = (await request.services.read_models.get_state(stream)).newest_turn
    return await record_event(
        request, stream, MessageEvent(role="assistant", text=body.text, source="command", turn_id=newest)
    )


@ROUTES.add(f"POST {AGENT}/think", "ingest", body=requests.Think, codes=SPEAK_CODES)
async def think(request: Request) -> SpokenBody:
    """Record a text that the agent is to take as the user's words, in the next turn."""
    stream = await requests.running_agent_of(request)
    body = await requests.body_as(request, requests.Think)
    metadata: dict[str, Any] | None = None if body.metadata is UNSET else dict(body.metadata)
    return await record_event(
        request, stream, MessageEvent(role="user", text=body.text, source="command", metadata=metadata)
    )


@ROUTES.add(f"POST {AGENT}/interrupt", "ingest", codes=RECORD_CODES)
async def interrupt(request: Request) -> SpokenBody:
    """Record that the agent was interrupted; the body is ignored."""
    return await record_event(request, await requests.running_agent_of(request), Interrupt(cause="api_interrupt"))


async def record_event(request: Request, stream: Stream, event: ProducedEvent) -> SpokenBody:
    """Record an event of the application; the answer comes once it is on disk. Raises `Refused`."""
    lease = ProducerLease(stream, AGORA_PRODUCER, None, may_call_out=False)
    await request.services.recorder.record(lease, [decode_event(msgspec.json.encode(event))], whole=True)
    channel = parse_config(stream.config).channel or ""
    return SpokenBody(stream.id, channel, request.services.sessions.clock() // 1000)
