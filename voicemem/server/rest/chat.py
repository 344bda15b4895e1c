"""The gateway: chat completions whose conversation is the session's memory, for every OpenAI client."""

import asyncio
from contextlib import aclosing, suppress
from http import HTTPStatus

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.errors import CODES, LlmFailed, Refused, VoicememError
from voicemem.gateway.chat_request import ChatRequest, read_request
from voicemem.gateway.llm_request import LlmRequest
from voicemem.gateway.tool_loop import ToolLoop
from voicemem.protocol import sse
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import JsonObject, Reason
from voicemem.server.http.connections import connection_of
from voicemem.server.http.problems import Handler, Problem
from voicemem.server.http.request import GRANT, get_stream, problems, read_object, services_of
from voicemem.server.http.routes import JSON, PROBLEMS, Routes

ROUTES = Routes()

TURN_HEADER, ITEM_HEADER, IGNORED_HEADER = "Voicemem-Turn-Id", "Voicemem-Item", "Voicemem-Ignored"
MAX_LISTED = 32
"""The most messages that the header names of those that were not taken."""
FAILURE_CODE = web.RequestKey("failure_code", str)


class ChatCompletion(Struct, frozen=True):
    """The LLM's answer as it came; besides the choices it holds `id`, `model`, `usage` and more."""

    choices: list[JsonObject]


class ChatChunk(Struct, frozen=True):
    """A chunk of the LLM's answer as it came; or an `error` in the middle of the answer, which ends it."""

    choices: list[JsonObject] = []
    error: JsonObject = {}


class OpenAIError(Struct, frozen=True):
    """An error in OpenAI's form. `type` is the problem's `reason`; `code` says more if the LLM failed."""

    message: str
    type: str
    code: str
    param: None = None


class ChatProblem(Struct, frozen=True):
    """Why a request was refused (RFC 9457); `error` is for OpenAI's clients."""

    type: str
    title: str
    status: int
    detail: str
    reason: Reason
    error: OpenAIError


def with_openai_errors(handler: Handler) -> Handler:
    """Add to the problem documents of a handler the object that OpenAI's clients read."""

    async def handle(request: web.Request) -> web.StreamResponse:
        response = await problems(request, handler)
        if response.status >= HTTPStatus.BAD_REQUEST:
            response.headers["x-should-retry"] = "false"  # OpenAI's clients would make the same request three times
            if isinstance(response, web.Response) and isinstance(response.body, bytes):
                problem = msgspec.json.decode(response.body, type=Problem)
                error = OpenAIError(problem.detail, problem.reason, request.get(FAILURE_CODE, problem.reason))
                response.body = msgspec.json.encode(msgspec.structs.asdict(problem) | {"error": error})
        return response

    return handle


@ROUTES.add(
    "POST /v1/sessions/{id}/chat/completions",
    "ingest",
    {JSON: ChatCompletion, EVENT_STREAM: ChatChunk},
    ChatRequest,
    "missing_field text_too_long session_ended session_erased seq_required draining session_set_aside "
    "llm_not_configured llm_failed llm_timeout address_not_allowed",
    headers=(TURN_HEADER, ITEM_HEADER, IGNORED_HEADER),
    errors=PROBLEMS._replace(kind=ChatProblem),
    wrap=with_openai_errors,
)
async def create_chat_completion(request: web.Request) -> web.StreamResponse:
    """Answer the user with the session's LLM, which gets the memory as its conversation: `docs/gateway.md`.

    What the memory does not know of the request's messages is taken; instructions and other fields are passed to the
    LLM. With `stream` the answer comes as server-sent events; `[DONE]` comes once it is in the journal.
    """
    stream = await get_stream(request)
    chat_turn = read_request(await read_object(request))
    gateway = services_of(request).gateway
    llm_request = await gateway.prepare(stream, chat_turn, request[GRANT].key_id)
    task = gateway.spawn(answer_streamed(request, llm_request) if chat_turn.stream else answer_whole(llm_request))
    try:
        return await cancel_on_hangup(request, task)
    except LlmFailed as error:
        request[FAILURE_CODE] = error.word
        raise
    except asyncio.CancelledError:
        if gateway.draining and task.cancelled():
            raise Refused("draining") from None
        raise  # the caller has hung up


async def cancel_on_hangup(request: web.Request, task: asyncio.Task[web.StreamResponse]) -> web.StreamResponse:
    protocol = connection_of(request)
    protocol.on_lost = task.cancel
    try:
        if request.transport is None or request.transport.is_closing():
            task.cancel()
        return await task
    finally:
        protocol.on_lost = None


async def answer_whole(llm_request: LlmRequest | ToolLoop) -> web.StreamResponse:
    body = await llm_request.complete()
    return web.Response(body=body, content_type=JSON, headers=reply_headers(llm_request))


async def answer_streamed(request: web.Request, llm_request: LlmRequest | ToolLoop) -> web.StreamResponse:
    """Send each chunk as an event. Raises `VoicememError` and `CancelledError`, the former only before the first."""
    # The head goes out with the first chunk, so an error before it can still be an HTTP status. After it there are
    # four ways out: [DONE]; an error, and a drain, each as a last chunk that says so; and a caller that has hung up.
    # Of these only a cancellation without a drain is raised.
    response: web.StreamResponse | None = None
    try:
        async with aclosing(llm_request.chunks()) as chunks:
            async for data in chunks:
                if response is None:
                    response = web.StreamResponse(headers=sse.HEADERS | reply_headers(llm_request))
                    await response.prepare(request)
                await response.write(sse.encode(data))
        assert response is not None
        await response.write(sse.encode(sse.DONE))
    except VoicememError as error:
        if response is None:
            raise
        await write_quietly(response, sse.encode(error_chunk(error.word, error.detail, error.code)))
    except asyncio.CancelledError:
        if response is None or not services_of(request).gateway.draining:
            raise
        await write_quietly(response, sse.encode(error_chunk("draining", CODES["draining"].sentence, "draining")))
    except ConnectionError:
        if response is None:
            raise asyncio.CancelledError from None
        return response  # the caller has hung up, or was cut off because it did not read
    await write_quietly(response, b"")
    return response


async def write_quietly(response: web.StreamResponse, data: bytes) -> None:
    """Write data, or the end if it is empty; a caller that has hung up is ignored."""
    with suppress(ConnectionError):
        await (response.write(data) if data else response.write_eof())


def reply_headers(llm_request: LlmRequest | ToolLoop) -> dict[str, str]:
    """Return the headers: turn and item, which the engine's events about this reply must name; what was not taken."""
    names = {TURN_HEADER: str(llm_request.turn_id)}
    if llm_request.ignored:
        names[IGNORED_HEADER] = ", ".join(f"messages[{index}]" for index in llm_request.ignored[:MAX_LISTED])
    return names if llm_request.item is None else names | {ITEM_HEADER: llm_request.item}


def error_chunk(code: str, sentence: str, reason: str) -> bytes:
    """Encode an error chunk, which OpenAI's clients raise in the middle of a stream."""
    return msgspec.json.encode({"error": OpenAIError(sentence, reason, code)})
