"""The gateway: chat completions whose conversation is the session's memory, for every OpenAI client."""

import asyncio
from contextlib import aclosing, suppress
from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.errors import CODES, LlmFailed, Refused, VoicememError
from voicemem.gateway.chat_request import ChatRequest, ChatTurn, read_request, with_caller, without_vendor_fields
from voicemem.gateway.llm_request import LlmRequest
from voicemem.gateway.session_address import SESSION_HEADER, read_address
from voicemem.gateway.tool_loop import ToolLoop
from voicemem.llm.endpoints import MODELS_PATH
from voicemem.protocol import sse
from voicemem.protocol.codec import MALFORMED
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import JsonObject
from voicemem.server.http.application import with_problems
from voicemem.server.http.connections import connection_of
from voicemem.server.http.problems import Problem
from voicemem.server.http.request import Request, begin, read_object
from voicemem.server.http.routes import JSON, PROBLEMS, Handler, Routes
from voicemem.store.streams import Stream

ROUTES = Routes()

TURN_HEADER, ITEM_HEADER, IGNORED_HEADER = "Voicemem-Turn-Id", "Voicemem-Item", "Voicemem-Ignored"
MAX_LISTED = 32
"""The most ignored messages that the header names."""
MODELS_S = 5.0
"""How long the LLM may take to list its models."""
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


class ChatProblem(Problem, frozen=True):
    """A problem document (RFC 9457) with OpenAI's `error`: why a request was refused."""

    error: OpenAIError


def with_openai_errors(handler: Handler) -> Handler:
    """Add to the problem documents of a handler the object that OpenAI's clients read."""

    async def handle(request: Request) -> web.StreamResponse:
        response = await with_problems(handler, request)
        if response.status >= HTTPStatus.BAD_REQUEST:
            response.headers["x-should-retry"] = "false"  # OpenAI's clients would make the same request three times
            if isinstance(response, web.Response) and isinstance(response.body, bytes):
                problem = msgspec.json.decode(response.body, type=Problem)
                error = OpenAIError(problem.detail, problem.reason, request.get(FAILURE_CODE, problem.reason))
                response.body = msgspec.json.encode(msgspec.structs.asdict(problem) | {"error": error})
        return response

    return handle


ANSWER_CODES = (
    "missing_field text_too_long session_ended session_erased seq_required draining session_set_aside "
    "llm_not_configured llm_failed llm_timeout address_not_allowed"
)
LOCATE_CODES = f"{ANSWER_CODES} invalid_field unknown_session quota_exceeded"
"""Error codes of a request that names its session itself."""


GATEWAY: dict[str, Any] = {
    "headers": (SESSION_HEADER, TURN_HEADER, ITEM_HEADER, IGNORED_HEADER),
    "errors": PROBLEMS._replace(kind=ChatProblem),
    "wrap": with_openai_errors,
}
"""The declarations that all routes of the gateway share."""


class ChatFormat:
    """The form of answers: chat completions, as the LLM gives them. Other APIs of OpenAI's extend it."""

    def whole(self, body: bytes) -> bytes:
        """Return the body of an answer in one piece, which the LLM gave as this completion."""
        return body

    def piece(self, data: bytes) -> bytes:
        """Return the server-sent events for a chunk; empty where there is nothing to send."""
        return sse.encode(data)

    def end(self) -> bytes:
        return sse.encode(sse.DONE)

    def error(self, error: OpenAIError) -> bytes:
        """Return the event of an error in the middle of the answer, which ends it."""
        return sse.encode(msgspec.json.encode({"error": error}))


@ROUTES.add(
    "POST /v1/sessions/{id}/chat/completions",
    "ingest",
    {JSON: ChatCompletion, EVENT_STREAM: ChatChunk},
    body=ChatRequest,
    codes=ANSWER_CODES,
    **GATEWAY,
)
async def create_chat_completion(request: Request, stream: Stream) -> web.StreamResponse:
    """Answer the user with the session's LLM, which gets the memory as its conversation: `docs/gateway.md`.

    What the memory does not know of the request's messages is taken; instructions and other fields are passed to the
    LLM. With `stream` the answer comes as server-sent events; `[DONE]` comes once it is in the journal.
    """
    return await answer(request, stream, read_request(await read_object(request)), ChatFormat())


@ROUTES.add(
    "POST /v1/chat/completions",
    "ingest",
    {JSON: ChatCompletion, EVENT_STREAM: ChatChunk},
    ChatRequest,
    LOCATE_CODES,
    for_tokens=True,
    **GATEWAY,
)
async def create_hosted_completion(request: Request) -> web.StreamResponse:
    """Answer as above in the session that the request names, which begins with its first request: `docs/hosted.md`.

    Of fields other than `messages` only those that LLMs know are passed on.
    """
    payload = await read_object(request)
    chat_turn = with_caller(read_request(without_vendor_fields(payload)), payload, request.grant.session_id is None)
    return await answer(request, await locate_session(request, payload), chat_turn, ChatFormat())


async def locate_session(request: Request, payload: JsonObject) -> Stream:
    """Return the session of a request whose path names none. Raises `Refused`."""
    grant = request.grant
    address = read_address(request.headers.get(SESSION_HEADER), payload, grant.session_id)
    grant.require("ingest", address.session_id)
    may_create = grant.session_id is None  # a session token creates no session
    return await request.services.session_locator.locate(grant.project, address, grant.key_id, may_create)


async def answer(request: Request, stream: Stream, chat_turn: ChatTurn, format: ChatFormat) -> web.StreamResponse:
    gateway = request.services.gateway
    llm_request = await gateway.prepare(stream, chat_turn, request.grant.key_id)
    answering = answer_streamed if chat_turn.stream else answer_whole
    task = gateway.spawn(answering(request, stream.id, llm_request, format))
    try:
        return await cancel_on_hangup(request, task)
    except LlmFailed as error:
        request[FAILURE_CODE] = error.word
        raise
    except asyncio.CancelledError:
        if gateway.draining and task.cancelled():
            raise Refused("draining") from None
        raise  # the client has hung up


async def cancel_on_hangup(request: Request, task: asyncio.Task[web.StreamResponse]) -> web.StreamResponse:
    protocol = connection_of(request)
    protocol.on_lost = task.cancel
    try:
        if request.transport is None or request.transport.is_closing():
            task.cancel()
        return await task
    finally:
        protocol.on_lost = None


async def answer_whole(
    request: Request, session_id: str, llm_request: LlmRequest | ToolLoop, format: ChatFormat
) -> web.StreamResponse:
    body = format.whole(await llm_request.complete())
    return web.Response(body=body, content_type=JSON, headers=reply_headers(session_id, llm_request))


async def answer_streamed(
    request: Request, session_id: str, llm_request: LlmRequest | ToolLoop, format: ChatFormat
) -> web.StreamResponse:
    """Send each chunk as an event. Raises `VoicememError` and `CancelledError`, the former only before the first."""
    # The head goes out with the first chunk, so an error before it can still be an HTTP status. After it there are
    # four ways out: the end; an error, and a drain, each as a last chunk that says so; and a client that has hung up.
    # Of these only a cancellation without a drain is raised.
    response: web.StreamResponse | None = None
    try:
        async with aclosing(llm_request.chunks()) as chunks:
            async for data in chunks:
                if response is None:
                    response = web.StreamResponse(headers=sse.HEADERS | reply_headers(session_id, llm_request))
                    await begin(request, response)
                if piece := format.piece(data):
                    await response.write(piece)
        assert response is not None
        await response.write(format.end())
    except VoicememError as error:
        if response is None:
            raise
        await write_quietly(response, format.error(OpenAIError(error.detail, error.code, error.word)))
    except asyncio.CancelledError:
        if response is None or not request.services.gateway.draining:
            raise
        drained = OpenAIError(CODES["draining"].sentence, "draining", "draining")
        await write_quietly(response, format.error(drained))
    except ConnectionError:
        if response is None:
            raise asyncio.CancelledError from None
        return response  # the client has hung up, or was cut off because it did not read
    await write_quietly(response, b"")
    return response


async def write_quietly(response: web.StreamResponse, data: bytes) -> None:
    """Write data, or the end if it is empty; a client that has hung up is ignored."""
    with suppress(ConnectionError):
        await (response.write(data) if data else response.write_eof())


def reply_headers(session_id: str, llm_request: LlmRequest | ToolLoop) -> dict[str, str]:
    """Return the headers: session, turn and item, which events about this reply must name; and ignored messages."""
    names = {SESSION_HEADER: session_id, TURN_HEADER: str(llm_request.turn_id)}
    if llm_request.ignored:
        names[IGNORED_HEADER] = ", ".join(f"messages[{index}]" for index in llm_request.ignored[:MAX_LISTED])
    return names if llm_request.item is None else names | {ITEM_HEADER: llm_request.item}


class Model(Struct, frozen=True):
    """A model of the operator's LLM, with all fields that the LLM gives."""

    id: str
    object: str = "model"
    created: int = 0
    owned_by: str = ""


class ModelList(Struct, frozen=True):
    """The models of the operator's LLM; the configured one where it names none."""

    data: list[Model]
    object: str = "list"


@ROUTES.add("GET /v1/models", "any", for_tokens=True)
async def list_models(request: Request) -> ModelList:
    """List the models that requests may name, as the operator's LLM says."""
    services = request.services
    endpoint = services.targets.default
    if endpoint is None:
        return ModelList([])
    listed = msgspec.structs.replace(endpoint, path=MODELS_PATH)
    try:
        models = msgspec.json.decode(await services.llm.complete(listed, None, total_s=MODELS_S), type=ModelList).data
    except (LlmFailed, *MALFORMED):
        models = []
    return ModelList(models or ([] if endpoint.model is None else [Model(endpoint.model)]))
