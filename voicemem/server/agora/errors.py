"""Errors in Agora's form: `{"detail", "reason"}`, with the codes of Agora's reference as reasons."""

from __future__ import annotations

from http import HTTPStatus
from typing import Annotated

import msgspec
from aiohttp import web
from aiohttp.hdrs import CONTENT_LENGTH, CONTENT_TYPE
from msgspec import Meta, Struct

from voicemem.errors import CODES
from voicemem.server.http import problems
from voicemem.server.http.routes import JSON, ErrorFormat

NOT_FOUND = "The session was not found, has already ended, or failed to start."
"""Agora's sentence."""
REASONS_BY_STATUS = {
    400: "InvalidFieldValue",
    401: "InvalidPermission",
    403: "InvalidPermission",
    404: "TaskNotFound",
    408: "TaskOperationTimeout",
    409: "TaskConflict",
    410: "TaskNotFound",
    413: "InvalidRequestBody",
    429: "ConcurrencyLimitExceeded",
    500: "InternalError",
    503: "ServiceUnavailable",
}
"""Agora's reasons, by the HTTP status of voicemem's code."""
REASONS_BY_CODE = {
    "invalid_json": "InvalidRequestBody",
    "invalid_http": "InvalidRequestBody",
    "too_deep": "InvalidRequestBody",
    "not_events": "InvalidRequestBody",
    "missing_field": "MissingRequiredField",
    "session_ended": "TaskNotFound",
}
"""The same for codes that say more than their status."""
AgoraReason = Annotated[
    str, Meta(extra_json_schema={"enum": sorted({*REASONS_BY_STATUS.values(), *REASONS_BY_CODE.values()})})
]


class AgoraError(Struct, frozen=True):
    """The body of every answer that is not 200."""

    detail: str
    reason: AgoraReason


def translate_problem(response: web.StreamResponse) -> web.StreamResponse:
    """Turn a problem document into Agora's error; any other answer stays as it is."""
    if not isinstance(response, web.Response) or response.content_type != problems.MEDIA_TYPE:
        return response
    assert isinstance(response.body, bytes)
    problem = msgspec.json.decode(response.body, type=problems.Problem)
    error = agora_error(problem.reason, problem.detail)
    headers = {name: value for name, value in response.headers.items() if name not in (CONTENT_TYPE, CONTENT_LENGTH)}
    return web.Response(
        status=status_of(problem.reason),
        body=msgspec.json.encode(error),
        content_type="application/json",
        headers=headers,
    )


def status_of(code: str) -> int:
    """Return the HTTP status of a code; for Agora, a session that has ended is unknown."""
    return HTTPStatus.NOT_FOUND if reason_of(code) == "TaskNotFound" else CODES[code].status


def reason_of(code: str) -> str:
    return REASONS_BY_CODE.get(code) or REASONS_BY_STATUS.get(CODES[code].status, "InternalError")


def agora_error(code: str, detail: str) -> AgoraError:
    reason = reason_of(code)
    return AgoraError(NOT_FOUND if reason == "TaskNotFound" else detail, reason)


ERRORS = ErrorFormat(JSON, AgoraError, status_of, reason_of)
