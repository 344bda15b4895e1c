"""Errors as `application/problem+json` (RFC 9457); `reason` is the code, which Agora's clients read as well."""

import math
from http import HTTPStatus

import msgspec
from aiohttp import web
from msgspec import Struct
from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.typing import StatusLike

from voicemem.errors import CODES, QuotaExceeded, RateLimited, Refused, StoreUnavailable, VoicememError
from voicemem.protocol.types import Reason

RETRY_AFTER_S = 1
"""Seconds before another connection is tried: others end within seconds."""
SERVER = "voicemem"
"""The value of the `Server` header, which names no library of the server."""
MEDIA_TYPE = "application/problem+json"


class Problem(Struct, frozen=True):
    """A problem document (RFC 9457): why a request was refused."""

    type: str
    title: str
    status: int
    detail: str
    reason: Reason


def problem_document(code: str, detail: str, sent: HTTPStatus | None = None) -> Problem:
    """Return the problem document of a code; `sent` is the status if it is not the code's own."""
    status = HTTPStatus(CODES[code].status) if sent is None else sent
    return Problem(f"urn:voicemem:error:{code}", status.phrase, status.value, detail, reason=code)


def problem_body(code: str, detail: str, sent: HTTPStatus | None = None) -> bytes:
    return msgspec.json.encode(problem_document(code, detail, sent))


def turned_away() -> bytes:
    """Return the answer to a connection for which there is no room, before or instead of its first answer."""
    code = CODES["too_many_connections"]
    headers = {"Retry-After": str(RETRY_AFTER_S), "Server": SERVER}
    return handshake_problem(HTTPStatus(code.status), "too_many_connections", code.sentence, headers).serialize()


def problem_response(code: str, detail: str, headers: dict[str, str] | None = None) -> web.Response:
    return web.Response(
        status=CODES[code].status, body=problem_body(code, detail), content_type=MEDIA_TYPE, headers=headers
    )


def headers_of(error: VoicememError) -> dict[str, str]:
    if CODES[error.code].status == HTTPStatus.UNAUTHORIZED:
        return {"WWW-Authenticate": "Bearer"}
    if error.code == "too_many_connections":
        return {"Retry-After": str(RETRY_AFTER_S)}
    if not isinstance(error, RateLimited | QuotaExceeded) or error.retry_after_s is None:
        return {}
    return {"Retry-After": str(math.ceil(error.retry_after_s))}


BY_STATUS = {405: "method_not_allowed", 500: "internal", 503: "draining"}
NO_HANDSHAKE = "This port only takes websockets, at /v1/ingest; the REST API has a port of its own."


def rejection_response(refused: Refused | StoreUnavailable) -> Response:
    return handshake_problem(HTTPStatus(CODES[refused.code].status), refused.code, refused.detail, headers_of(refused))


def invalid_handshake_response(status: StatusLike, text: str) -> Response:
    """Return the answer to a request that is not a handshake; `text` may quote the request, so it is not repeated."""
    code = BY_STATUS.get(int(status), "invalid_http")
    detail = CODES[code].sentence if int(status) >= 500 else NO_HANDSHAKE
    return handshake_problem(HTTPStatus(status), code, detail, {})


def handshake_problem(status: HTTPStatus, code: str, detail: str, headers: dict[str, str]) -> Response:
    body = problem_body(code, detail, status)
    all_headers = Headers({"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"})
    all_headers.update(headers)
    return Response(status.value, status.phrase, all_headers, body)
