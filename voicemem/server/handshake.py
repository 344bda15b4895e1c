"""Answers to who gets no websocket: problem documents, as everywhere."""

from __future__ import annotations

from http import HTTPStatus

from websockets.datastructures import Headers
from websockets.http11 import Response
from websockets.typing import StatusLike

from voicemem.errors import CODES, Refused
from voicemem.server.problems import MEDIA_TYPE, headers_of, problem_body

BY_STATUS = {405: "method_not_allowed", 500: "internal", 503: "draining"}
NO_HANDSHAKE = "This port takes websockets at /v1/ingest and nothing else; the REST API has a port of its own."


def turning_away(refused: Refused) -> Response:
    """The answer to a handshake that is refused."""
    return response(HTTPStatus(CODES[refused.code].status), refused.code, refused.detail, headers_of(refused))


def no_handshake(status: StatusLike, text: str) -> Response:
    """The answer to what is no handshake; the library's `text` may quote the request, so it is not repeated."""
    code = BY_STATUS.get(int(status), "invalid_http")
    detail = CODES[code].sentence if int(status) >= 500 else NO_HANDSHAKE
    return response(HTTPStatus(status), code, detail, {})


def response(status: HTTPStatus, code: str, detail: str, headers: dict[str, str]) -> Response:
    body = problem_body(code, detail, status)
    given = Headers({"Content-Type": MEDIA_TYPE, "Content-Length": str(len(body)), "Connection": "close"})
    given.update(headers)
    return Response(status.value, status.phrase, given, body)
