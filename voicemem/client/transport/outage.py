"""What keeps a client from its server, in the log: each reason when it is new, and the end of it."""

from __future__ import annotations

import logging

from voicemem.client.transport.failures import TIMED_OUT, as_sentence, check_of, display_url, with_check

LOG = logging.getLogger("voicemem.client")


class Outage:
    """The newest failure of each way to the server, by its address. `url` is that of the websocket."""

    def __init__(self, url: str) -> None:
        self.url = display_url(url)
        self.reasons: dict[str, str] = {}
        self.began: float | None = None
        """When the websocket failed first, on the loop's clock; None while it works."""
        self.uses_http = False

    def note_failure(self, address: str, reason: str, now: float) -> None:
        """Log why an attempt failed, unless the last one at this address failed for the same reason."""
        self.began = now if self.began is None else self.began
        if self.reasons.get(address) != reason:
            self.reasons[address] = reason
            LOG.warning("%s: %s", address, with_check(reason))

    def note_http(self, address: str) -> None:
        """Log that events go over HTTP, once until the websocket is back."""
        self.reasons.pop(address, None)
        if not self.uses_http:
            self.uses_http = True
            LOG.warning("%s: events go over HTTP until the websocket is back", address)

    def note_websocket(self, now: float) -> None:
        """Log that the websocket works again, if it did not."""
        if self.began is not None:
            LOG.warning("%s: the websocket is back after %.1f s", self.url, now - self.began)
            self.began, self.uses_http = None, False
            self.reasons.clear()

    def explain(self, timeout_s: float) -> str:
        """Why nothing has come of an attempt of so many seconds, and what to check."""
        reasons = self.reasons or {self.url: f"{TIMED_OUT} after {timeout_s:g} s"}
        failures = [f"{address}: {as_sentence(reason)}" for address, reason in reasons.items()]
        return " ".join([*failures, *dict.fromkeys(check_of(reason) for reason in reasons.values())]).rstrip()
