"""Explanations of failures to reach a server (the address, the reason, what to check), and the log of an outage."""

import errno
import logging
import socket
import ssl
import time

import aiohttp
from websockets.exceptions import InvalidMessage
from yarl import URL

from voicemem.client.errors import Unreachable

LOG = logging.getLogger("voicemem.client")
REFUSED = "connection refused"
UNKNOWN_HOST = "unknown host"
NOT_VERIFIED = "CERTIFICATE_VERIFY_FAILED"
NO_TLS = "TLS failed"
TIMED_OUT = "timed out"
CLOSED = "the connection was closed before the answer was complete"
NOT_HTTP = "the answer is not valid HTTP"
HTTP_STATUS = "HTTP status"
CHECKS = {
    REFUSED: "Check that `voicemem serve` runs there, and that this is the address that it shows.",
    UNKNOWN_HOST: "Check the name of the host, and that this machine can resolve it.",
    NOT_VERIFIED: "Check the name in the certificate, and that this machine trusts its issuer (SSL_CERT_FILE).",
    NO_TLS: "Check that both sides use TLS: wss:// and https:// with it, ws:// and http:// without.",
    TIMED_OUT: "Check that the service there is not stuck, and that no firewall is in the way.",
    CLOSED: "Check that the service runs behind this address, and whether it needs wss:// or https://.",
    NOT_HTTP: "Check that this is the address of voicemem, and whether it needs wss:// or https://.",
    HTTP_STATUS: "Check the address, and that the proxy in front of voicemem passes websockets on.",
}
"""Advice by the beginning of the reason."""
UNRESOLVED = {socket.EAI_NONAME, getattr(socket, "EAI_NODATA", socket.EAI_NONAME)}


def unreachable(url: str | URL, error: BaseException, timeout_s: float, method: str = "") -> Unreachable:
    """Return the exception for an address that did not answer. `timeout_s` is how long an attempt may take."""
    reason = reason_of(error, timeout_s)
    return Unreachable(f"{method} {display_url(url)}: {reason}.".lstrip(), reason)


def reason_of(error: BaseException, timeout_s: float) -> str:
    for cause in (getattr(error, "os_error", None), error, error.__cause__):
        if reason := known_reason(cause, timeout_s):
            return reason
    return NOT_HTTP if isinstance(error, aiohttp.ClientResponseError | InvalidMessage) else str(error)


def known_reason(error: BaseException | None, timeout_s: float) -> str | None:
    match error:
        case TimeoutError():
            return f"{TIMED_OUT} after {timeout_s:g} s"
        case ssl.SSLCertVerificationError():
            return f"{NOT_VERIFIED}: {error.verify_message}"
        case ssl.SSLError():
            return f"{NO_TLS}: {error.reason or type(error).__name__}"
        case socket.gaierror():
            return UNKNOWN_HOST if error.errno in UNRESOLVED else f"{UNKNOWN_HOST}: {error.strerror}"
        case ConnectionRefusedError():
            return REFUSED
        case EOFError() | ConnectionError() | aiohttp.ServerDisconnectedError() | aiohttp.ClientPayloadError():
            return CLOSED
        case OSError():  # for several addresses asyncio gives one text
            return REFUSED if f"[Errno {errno.ECONNREFUSED}]" in str(error) else error.strerror or str(error)
    return None


def advice_for(reason: str) -> str:
    """Return what to check about a reason; empty if there is no advice."""
    return next((check for beginning, check in CHECKS.items() if reason.startswith(beginning)), "")


def with_advice(reason: str) -> str:
    return f"{reason.rstrip('.')}. {advice_for(reason)}".rstrip()


def display_url(url: str | URL) -> str:
    """Return an address for errors and logs: without user, password and query, which may be secret."""
    return str(URL(str(url)).with_user(None).with_query(None).with_fragment(None))


class Outage:
    """The newest failure of each way to the server, by its address. `url` is that of the websocket."""

    def __init__(self, url: str) -> None:
        self.url = display_url(url)
        self.reasons: dict[str, str] = {}
        self.began: float | None = None
        """When the websocket first failed, on the monotonic clock; None while it works."""
        self.uses_http = False

    def note_failure(self, address: str, reason: str) -> None:
        """Log why an attempt failed, unless the last one at this address had the same reason."""
        self.began = time.monotonic() if self.began is None else self.began
        if self.reasons.get(address) != reason:
            self.reasons[address] = reason
            LOG.warning("%s: %s", address, with_advice(reason))

    def note_http(self, address: str) -> None:
        """Log, once until the websocket is back, that events go over HTTP."""
        self.reasons.pop(address, None)
        if not self.uses_http:
            self.uses_http = True
            LOG.warning("%s: events go over HTTP until the websocket is back", address)

    def note_websocket(self) -> None:
        if self.began is not None:
            LOG.warning("%s: the websocket is back after %.1f s", self.url, time.monotonic() - self.began)
            self.began, self.uses_http = None, False
            self.reasons.clear()

    def explain(self, timeout_s: float) -> str:
        """Return why an attempt of `timeout_s` seconds had no result, and what to check."""
        reasons = self.reasons or {self.url: f"{TIMED_OUT} after {timeout_s:g} s"}
        failures = [f"{address}: {reason.rstrip('.')}." for address, reason in reasons.items()]
        return " ".join([*failures, *dict.fromkeys(advice_for(reason) for reason in reasons.values())]).rstrip()
