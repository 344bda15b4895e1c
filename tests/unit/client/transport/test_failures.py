"""Why a server could not be reached, in words."""

from __future__ import annotations

import socket

from tests.support.rows import every_row
from voicemem.client.errors import Busy, RequestRefused, Unreachable
from voicemem.client.transport.connection import Blocked, handshake_error
from voicemem.client.transport.failures import CHECKS, advice_for, display_url, unreachable, with_advice

URL = "wss://me:hidden@h:1/v1/ingest?token=hidden"
BOTH_REFUSED = "Multiple exceptions: [Errno 111] Connect call failed ('::1', 1, 0, 0), [Errno 111] Connect call failed"


@every_row(
    ("error", "reason"),
    [
        (TimeoutError(), "timed out after 2.5 s"),
        (OSError(BOTH_REFUSED), "connection refused"),
        (OSError(101, "Network is unreachable"), "Network is unreachable"),
        (socket.gaierror(socket.EAI_NONAME, "Name or service not known"), "unknown host"),
        (socket.gaierror(socket.EAI_AGAIN, "Temporary failure"), "unknown host: Temporary failure"),
        (EOFError(), "the connection was closed before the answer was complete"),
        (ConnectionResetError(104, "reset"), "the connection was closed before the answer was complete"),
    ],
)
def test_a_reason_is_never_empty(error: Exception, reason: str) -> None:
    """Each failure names its address, without secrets, and why; also those whose own text is empty."""
    failure = unreachable(URL, error, 2.5, "GET")
    assert (failure.detail, failure.reason) == (f"GET wss://h:1/v1/ingest: {reason}.", reason)


def test_each_check_is_found_by_its_reason() -> None:
    """What to check follows the reason as a sentence; for other reasons there is nothing to say."""
    assert [advice_for(f"{reason}: more") for reason in CHECKS] == list(CHECKS.values())
    assert with_advice("the moon is full") == "the moon is full."


def test_an_address_is_shown_without_secrets() -> None:
    """User, password, query and fragment are left out."""
    assert display_url(URL + "#hidden") == "wss://h:1/v1/ingest"


@every_row(
    ("status", "body", "kind"),
    [
        (401, b'{"reason": "unauthorized", "detail": "A valid key is required."}', RequestRefused),
        (429, b'{"reason": "rate_limited", "detail": "Too many."}', Busy),
        (429, b"slow down", Busy),
        (503, b'{"reason": "store_unavailable", "detail": "Not now."}', Busy),
        (503, b'{"reason": "draining", "detail": "Shutting down."}', Unreachable),
        (502, b"<h1>Bad gateway</h1>", Unreachable),
        (403, b"<h1>Forbidden</h1>", Blocked),
        (404, b'["not", "an", "object"]', Blocked),
    ],
)
def test_an_answer_instead_of_a_websocket(status: int, body: bytes, kind: type[Exception]) -> None:
    """It is final, a reason to be patient, a service that is away, or something on the way that forbids websockets."""
    error = handshake_error("ws://h", status, body)
    assert type(error) is kind
    assert kind is RequestRefused or f"HTTP status {status}: " in str(error)
