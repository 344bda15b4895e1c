"""Errors of the gateway's route: problem documents that hold the object which OpenAI's clients read."""

from __future__ import annotations

from http import HTTPStatus
from typing import Any

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.errors import CODES, LlmFailed, VoicememError
from voicemem.protocol.types import Reason
from voicemem.server.http.problems import MEDIA_TYPE, Handler, Problem
from voicemem.server.http.routes import ErrorFormat

SHOULD_RETRY_HEADER = "x-should-retry"
"""OpenAI's clients otherwise try again by themselves, and the same words would be said, and fail, three times."""
FAILURE_CODE = web.RequestKey("why", str)
"""What became of the LLM's call, once that has failed."""


class OpenAIError(Struct, frozen=True):
    """As OpenAI has it. `type` is the problem's `reason`; `code` says more where the LLM failed."""

    message: str
    type: str
    code: str
    param: None = None


class ChatProblem(Struct, frozen=True):
    """Why a request was not taken (RFC 9457); `error` is for OpenAI's clients."""

    type: str
    title: str
    status: int
    detail: str
    reason: Reason
    error: OpenAIError


ERRORS = ErrorFormat(MEDIA_TYPE, ChatProblem, lambda code: CODES[code].status, lambda code: code)


def failure_code(error: VoicememError) -> str:
    """The most exact word or status that there is for an error."""
    return str(error.why) if isinstance(error, LlmFailed) else error.code


def error_chunk(code: str, sentence: str, reason: str) -> bytes:
    """What OpenAI's clients raise in the middle of a stream."""
    return msgspec.json.encode({"error": OpenAIError(sentence, reason, code)})


def chat_errors(path: str) -> Any:
    """The middleware around `problems` for the answers of one path."""

    @web.middleware
    async def shape(request: web.Request, handler: Handler) -> web.StreamResponse:
        response = await handler(request)
        resource = request.match_info.route.resource
        if resource is None or resource.canonical != path or response.status < HTTPStatus.BAD_REQUEST:
            return response
        response.headers[SHOULD_RETRY_HEADER] = "false"
        if isinstance(response, web.Response) and isinstance(response.body, bytes):
            problem = msgspec.json.decode(response.body, type=Problem)
            code = request.get(FAILURE_CODE, problem.reason)
            error = OpenAIError(problem.detail, problem.reason, code)
            response.body = msgspec.json.encode(msgspec.structs.asdict(problem) | {"error": error})
        return response

    return shape
