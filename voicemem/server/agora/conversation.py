"""What was said, on Agora's paths: history and turns; and what an application has said: speak, think, interrupt."""

from __future__ import annotations

from typing import Annotated, Any, Literal

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Struct

from voicemem import config
from voicemem.admission import Stream
from voicemem.batches import Line
from voicemem.errors import Refused
from voicemem.events import Fields, Interrupt, Producible, Whole
from voicemem.server.agora.agents import AGENT
from voicemem.server.agora.bodies import MAX_SPEECH_BYTES, Speak, Think, body_as
from voicemem.server.agora.callers import agent_of, running_agent_of
from voicemem.server.rest.parts import NoQuery, answer, parts_of
from voicemem.server.rest.routes import JSON, Body, Route, one
from voicemem.turns import turns
from voicemem.wire import decode_event

CONTENTS = web.AppKey("agora_contents", str)
PRODUCER = "agora.rest"
"""Of the events that come in here; they have no seq, so the engine's own producer must be another one."""
CAUSE = "api_interrupt"
MOST_TURNS = 200


class TurnsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """Pages count from 1."""

    page_index: Annotated[int, Meta(ge=1, le=2**31)] = 1
    page_size: Annotated[int, Meta(ge=1, le=MOST_TURNS)] = 50


class AgoraHistory(Struct, frozen=True):
    """The memory of a running agent; `start_ts` is Unix seconds, `speech_*` stand beside what a message has."""

    agent_id: str
    start_ts: int
    status: Literal["RUNNING"]
    contents: list[Fields]


class Pagination(Struct, frozen=True):
    """Which page this is."""

    page_index: int
    total_pages: int
    is_last_page: bool


class AgoraTurns(Struct, frozen=True):
    """A page of the turns of a call."""

    agent_id: str
    name: str
    channel: str
    total_turn_count: int
    pagination: Pagination
    turns: list[Fields]


class Told(Struct, frozen=True):
    """That an agent was told something, and when (Unix seconds)."""

    agent_id: str
    channel: str
    start_ts: int


async def read_history(request: web.Request, _: NoQuery) -> web.Response:
    """The memory of an agent, while it runs."""
    stream = await running_agent_of(request)
    memory = await parts_of(request).memories.at(stream)
    if request.app[CONTENTS] == "full":
        contents = [msgspec.structs.asdict(message) | times for message, times in memory.timed_messages()]
    else:
        contents = [{"role": message.role, "content": message.content} for message in memory.messages()]
    return answer(AgoraHistory(stream.id, stream.started_ms // 1000, "RUNNING", contents))


async def read_turns(request: web.Request, query: TurnsQuery) -> web.Response:
    """Each turn's start, end, cause and latencies, while the call runs and after."""
    stream = await agent_of(request)
    memory = await parts_of(request).memories.at(stream)
    settings = config.read(stream.config)
    channel = settings.channel or ""
    every = turns(memory.state)
    pages = -(-len(every) // query.page_size) or 1
    first = (query.page_index - 1) * query.page_size
    own = {"agent_id": stream.id, "channel": channel}
    return answer(
        AgoraTurns(
            agent_id=stream.id,
            name=settings.name or "",
            channel=channel,
            total_turn_count=len(every),
            pagination=Pagination(query.page_index, pages, query.page_index >= pages),
            turns=[own | turn for turn in every[first : first + query.page_size]],
        )
    )


async def speak(request: web.Request, _: NoQuery) -> web.Response:
    """Record what the agent was told to say, in the newest turn; it interrupts nothing."""
    stream = await running_agent_of(request)
    asked = await body_as(request, Speak)
    if len(asked.text.encode()) > MAX_SPEECH_BYTES:
        raise Refused("text_too_long", f"The text may have at most {MAX_SPEECH_BYTES} bytes.")
    newest = (await parts_of(request).memories.at(stream)).state.newest_turn
    return await record(request, stream, Whole(role="assistant", text=asked.text, source="command", turn_id=newest))


async def think(request: web.Request, _: NoQuery) -> web.Response:
    """Record what the agent was told to take as the user's words, in the next turn."""
    stream = await running_agent_of(request)
    asked = await body_as(request, Think)
    metadata: dict[str, Any] | None = None if asked.metadata is UNSET else dict(asked.metadata)
    return await record(request, stream, Whole(role="user", text=asked.text, source="command", metadata=metadata))


async def interrupt(request: web.Request, _: NoQuery) -> web.Response:
    """Record that the agent was cut short; whatever stands in the body is passed over."""
    return await record(request, await running_agent_of(request), Interrupt(cause=CAUSE))


async def record(request: web.Request, stream: Stream, event: Producible) -> web.Response:
    """Journal an event of the application's, and say so when it is on disk. Raises `Refused`."""
    parts = parts_of(request)
    line = Line(stream, PRODUCER, None, may_call_out=False)
    recorded = await parts.recorder.record(line, [decode_event(msgspec.json.encode(event))])
    for problem in recorded.problems:
        raise Refused(problem.code, problem.detail)
    channel = config.read(stream.config).channel or ""
    return answer(Told(stream.id, channel, parts.sessions.clock() // 1000))


ROUTES = (
    Route("GET", f"{AGENT}/history", read_history, "read", NoQuery, one(AgoraHistory)),
    Route("GET", f"{AGENT}/turns", read_turns, "read", TurnsQuery, one(AgoraTurns)),
    Route("POST", f"{AGENT}/speak", speak, "ingest", NoQuery, one(Told), Body({JSON: Speak})),
    Route("POST", f"{AGENT}/think", think, "ingest", NoQuery, one(Told), Body({JSON: Think})),
    Route("POST", f"{AGENT}/interrupt", interrupt, "ingest", NoQuery, one(Told)),
)
