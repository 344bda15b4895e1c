"""The gateway: chat completions whose conversation is the session's memory, for every client of OpenAI's."""

from __future__ import annotations

import asyncio
from contextlib import aclosing, suppress

from aiohttp import web
from msgspec import Struct

from voicemem.errors import CODES, LlmFailed, Refused, VoicememError
from voicemem.gateway.chat_request import ChatRequest, read_request
from voicemem.gateway.llm_request import LlmRequest
from voicemem.gateway.tool_loop import ToolLoop
from voicemem.protocol.types import JsonObject
from voicemem.server.http.listener import ProblemHandler
from voicemem.server.http.request import GRANT, NoQuery, get_stream, read_object, services_of
from voicemem.server.http.routes import EVENT_STREAM, JSON, BodySpec, ResponseSpec, Route
from voicemem.server.rest.chat_errors import ERRORS, FAILURE_CODE, error_chunk, failure_code

PATH = "/v1/sessions/{id}/chat/completions"
TURN_HEADER, ITEM_HEADER = "Voicemem-Turn-Id", "Voicemem-Item"
STREAM_HEADERS = {"Content-Type": EVENT_STREAM, "Cache-Control": "no-store", "X-Accel-Buffering": "no"}
DONE = b"[DONE]"


class ChatCompletion(Struct, frozen=True):
    """What the LLM answered, as it came; beside the choices stand `id`, `model`, `usage` and whatever else."""

    choices: list[JsonObject]


class ChatChunk(Struct, frozen=True):
    """A chunk of what the LLM answers, as it came; or an `error` in the middle of it, which is the last."""

    choices: list[JsonObject] = []
    error: JsonObject = {}


async def create_chat_completion(request: web.Request, _: NoQuery) -> web.StreamResponse:
    """Answer the user by the session's LLM, with the memory as its conversation: `docs/gateway.md`.

    Of the request's messages the last counts (the user's words, or tool results) and the instructions; other fields go
    on to the LLM. With `stream` the answer comes as server-sent events; `[DONE]` comes when it is in the journal.
    """
    stream = await get_stream(request)
    chat_turn = read_request(await read_object(request))
    gateway = services_of(request).gateway
    call = await gateway.prepare(stream, chat_turn, request[GRANT].key_id)
    task = gateway.spawn(answer_streamed(request, call) if chat_turn.stream else answer_whole(call))
    try:
        return await cancel_on_hangup(request, task)
    except LlmFailed as error:
        request[FAILURE_CODE] = failure_code(error)
        raise
    except asyncio.CancelledError:
        if gateway.draining and task.cancelled():
            raise Refused("draining") from None
        raise  # the caller has hung up


async def cancel_on_hangup(request: web.Request, task: asyncio.Task[web.StreamResponse]) -> web.StreamResponse:
    """The answer; the task is cancelled when its caller hangs up."""
    protocol = request.protocol
    assert isinstance(protocol, ProblemHandler)
    protocol.on_lost = task.cancel
    try:
        if request.transport is None or request.transport.is_closing():
            task.cancel()
        return await task
    finally:
        protocol.on_lost = None


async def answer_whole(call: LlmRequest | ToolLoop) -> web.StreamResponse:
    body = await call.complete()
    return web.Response(body=body, content_type=JSON, headers=reply_headers(call))


async def answer_streamed(request: web.Request, call: LlmRequest | ToolLoop) -> web.StreamResponse:
    """Each chunk in an event of its own. Raises `VoicememError` while nothing was sent."""
    response: web.StreamResponse | None = None
    try:
        async with aclosing(call.chunks()) as chunks:
            async for data in chunks:
                if response is None:
                    response = web.StreamResponse(headers=STREAM_HEADERS | reply_headers(call))
                    await response.prepare(request)
                await response.write(event(data))
        assert response is not None
        await response.write(event(DONE))
    except VoicememError as error:
        if response is None:
            raise
        await write_quietly(response, event(error_chunk(failure_code(error), error.detail, error.code)))
    except asyncio.CancelledError:
        if response is None or not services_of(request).gateway.draining:
            raise
        await write_quietly(response, event(error_chunk("draining", CODES["draining"].sentence, "draining")))
    except ConnectionResetError:
        if response is None:
            raise asyncio.CancelledError from None
        return response  # the caller has hung up, or was cut off because it did not read
    await write_quietly(response, b"")
    return response


async def write_quietly(response: web.StreamResponse, data: bytes) -> None:
    """Write to whoever may have hung up; nothing more than `data` is the end."""
    with suppress(ConnectionResetError):
        await (response.write(data) if data else response.write_eof())


def reply_headers(call: LlmRequest | ToolLoop) -> dict[str, str]:
    """What the engine's own events about this reply are to name."""
    names = {TURN_HEADER: str(call.turn_id)}
    return names if call.item is None else names | {ITEM_HEADER: call.item}


def event(data: bytes) -> bytes:
    return b"data: " + data.replace(b"\n", b"\ndata: ") + b"\n\n"


ROUTES = (
    Route(
        "POST",
        PATH,
        create_chat_completion,
        "ingest",
        NoQuery,
        {200: ResponseSpec({JSON: ChatCompletion, EVENT_STREAM: ChatChunk}, headers=(TURN_HEADER, ITEM_HEADER))},
        BodySpec({JSON: ChatRequest}),
        (
            *("missing_field", "text_too_long", "session_ended", "session_erased", "seq_required", "draining"),
            *("llm_not_configured", "llm_failed", "llm_timeout", "address_not_allowed"),
        ),
        ERRORS,
    ),
)
