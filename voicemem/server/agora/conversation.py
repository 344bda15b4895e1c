"""Conversations on Agora's paths: history and turns; and what an application adds to them: speak, think, interrupt."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct, UnsetType
from msgspec.structs import astuple

from voicemem.config.session import parse_config
from voicemem.errors import Refused
from voicemem.protocol.codec import decode_event
from voicemem.protocol.events import Interrupt, MessageEvent, ProducedEvent
from voicemem.protocol.types import JsonObject
from voicemem.server.agora.agents import AGENT, FIELD_CODES, UNKNOWN_AGENT
from voicemem.server.agora.auth import agent_of, running_agent_of
from voicemem.server.agora.requests import MAX_SPEECH_BYTES, Speak, Think, body_as
from voicemem.server.http.request import NoQuery, json_response, services_of
from voicemem.server.http.routes import JSON, BodySpec, Route, json_ok
from voicemem.server.rest.history import AgoraTurn, Spoken
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Message
from voicemem.transcript.turns.report import turn_object

CONTENTS_KEY = web.AppKey("agora_contents", str)
AGORA_PRODUCER = "agora.rest"
"""The producer of events that come in here; they have no seq, so the name is reserved (`batches.OWN_PRODUCERS`)."""
INTERRUPT_CAUSE = "api_interrupt"
MAX_PAGE_SIZE = 200


class TurnsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pages are counted from 1."""

    page_index: Annotated[int, Meta(ge=1, le=2**31)] = 1
    page_size: Annotated[int, Meta(ge=1, le=MAX_PAGE_SIZE)] = 50


class TimedMessage(Message, frozen=True, gc=False):
    """A message, and when it could be heard, if events say so (`docs/agora.md`)."""

    speech_start_ms: float | UnsetType = UNSET
    speech_end_ms: float | UnsetType = UNSET
    speech_algorithmic_delay: float | UnsetType = UNSET


class AgoraHistory(Struct, frozen=True):
    """The memory of a running agent; `start_ts` is Unix seconds."""

    agent_id: str
    start_ts: int
    status: Literal["RUNNING"]
    contents: list[TimedMessage]


class StandardAgoraHistory(Struct, frozen=True):
    """The same with a setting that leaves only role and content."""

    agent_id: str
    start_ts: int
    status: Literal["RUNNING"]
    contents: list[Spoken]


class Pagination(Struct, frozen=True):
    """The number of this page, and how many there are."""

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


async def read_agent_history(request: web.Request, _: NoQuery) -> web.Response:
    """Read the memory of an agent, while it runs."""
    stream = await running_agent_of(request)
    memories = services_of(request).memories
    start_ts = stream.started_ms // 1000
    if request.app[CONTENTS_KEY] == "standard":
        spoken = [Spoken(message.role, message.content) for message in (await memories.get(stream)).messages()]
        return json_response(StandardAgoraHistory(stream.id, start_ts, "RUNNING", spoken))
    timed_messages = await memories.read(stream, ReadModel.timed_messages)
    timed = [TimedMessage(*astuple(message), **times) for message, times in timed_messages]
    return json_response(AgoraHistory(stream.id, start_ts, "RUNNING", timed))


def agora_turns(memory: ReadModel) -> list[JsonObject]:
    """The turns without what is ours."""
    return [turn_object(memory.state, memory.state.turns[number]) for number in memory.state.turn_numbers]


async def read_agent_turns(request: web.Request, query: TurnsQuery) -> web.Response:
    """Read each turn's start, end, cause and latencies, while the agent runs and after it."""
    stream = await agent_of(request)
    all_turns = await services_of(request).memories.read(stream, agora_turns)
    config = parse_config(stream.config)
    channel = config.channel or ""
    pages = -(-len(all_turns) // query.page_size) or 1
    first = (query.page_index - 1) * query.page_size
    return json_response(
        AgoraTurns(
            agent_id=stream.id,
            name=config.name or "",
            channel=channel,
            total_turn_count=len(all_turns),
            pagination=Pagination(query.page_index, pages, query.page_index >= pages),
            turns=[AgoraTurn(stream.id, channel, **turn) for turn in all_turns[first : first + query.page_size]],
        )
    )


async def speak(request: web.Request, _: NoQuery) -> web.Response:
    """Record a text that the agent is to say, in the newest turn; it interrupts nothing."""
    stream = await running_agent_of(request)
    body = await body_as(request, Speak)
    if len(body.text.encode()) > MAX_SPEECH_BYTES:
        raise Refused("text_too_long", f"The text may have at most {MAX_SPEECH_BYTES} bytes.")
    newest = (await services_of(request).memories.get_state(stream)).newest_turn
    return await record_event(
        request, stream, MessageEvent(role="assistant", text=body.text, source="command", turn_id=newest)
    )


async def think(request: web.Request, _: NoQuery) -> web.Response:
    """Record a text that the agent is to take as the user's words, in the next turn."""
    stream = await running_agent_of(request)
    body = await body_as(request, Think)
    metadata: dict[str, Any] | None = None if body.metadata is UNSET else dict(body.metadata)
    return await record_event(
        request, stream, MessageEvent(role="user", text=body.text, source="command", metadata=metadata)
    )


async def interrupt(request: web.Request, _: NoQuery) -> web.Response:
    """Record that the agent was interrupted; the body is ignored."""
    return await record_event(request, await running_agent_of(request), Interrupt(cause=INTERRUPT_CAUSE))


async def record_event(request: web.Request, stream: Stream, event: ProducedEvent) -> web.Response:
    """Record an event of the application's; the answer comes once it is on disk. Raises `Refused`."""
    services = services_of(request)
    lease = ProducerLease(stream, AGORA_PRODUCER, None, may_call_out=False)
    result = await services.recorder.record(lease, [decode_event(msgspec.json.encode(event))])
    for problem in result.problems:
        raise Refused(problem.code, problem.detail)
    channel = parse_config(stream.config).channel or ""
    return json_response(SpokenBody(stream.id, channel, services.sessions.clock() // 1000))


RECORD_CODES = (*UNKNOWN_AGENT, "session_ended", "seq_required")
SPEAK_CODES = (*RECORD_CODES, *FIELD_CODES, "text_too_long", "reserved_metadata")

ROUTES = (
    Route(
        "GET",
        f"{AGENT}/history",
        read_agent_history,
        "read",
        NoQuery,
        json_ok(AgoraHistory | StandardAgoraHistory),
        codes=UNKNOWN_AGENT,
    ),
    Route("GET", f"{AGENT}/turns", read_agent_turns, "read", TurnsQuery, json_ok(AgoraTurns), codes=UNKNOWN_AGENT),
    Route(
        "POST", f"{AGENT}/speak", speak, "ingest", NoQuery, json_ok(SpokenBody), BodySpec({JSON: Speak}), SPEAK_CODES
    ),
    Route(
        "POST", f"{AGENT}/think", think, "ingest", NoQuery, json_ok(SpokenBody), BodySpec({JSON: Think}), SPEAK_CODES
    ),
    Route("POST", f"{AGENT}/interrupt", interrupt, "ingest", NoQuery, json_ok(SpokenBody), codes=RECORD_CODES),
)
