"""Whose requests the page's own paths answer: those that the page itself sends, at an address that the operator named.

This is the rule of Go's `CrossOriginProtection`, stricter by one step: reads must come from the page as well. A cookie
goes with the requests of every port of a host, and of whoever bends a name to it (DNS rebinding); none of them is ours.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from voicemem.config.service import is_loopback
from voicemem.errors import Refused
from voicemem.security.gate import HOST

SAFE_METHODS = ("GET", "HEAD")
NAME_IT = "The page answers loopback names only. To open it under another name, start the service with --ui-origin https://NAME."
OTHER_NAME = "The page answers loopback names, and the name in --ui-origin."
ANOTHERS = "These paths answer only the page that this service serves."
NOT_JSON = "The page sends what it changes as application/json."


class PageOrigin(NamedTuple):
    """Where the page may be: on loopback, at `named` (`https://memory.example`), and with `anywhere` under any name."""

    named: str | None = None
    anywhere: bool = False

    @property
    def named_host(self) -> str | None:
        return None if self.named is None else urlsplit(self.named).hostname

    def check_host(self, host: str | None) -> None:
        """Check the `Host` of a request. Raises `Refused` (`foreign_host`)."""
        name = host_name(host)
        if name and (is_loopback(name) or self.anywhere or name == self.named_host):
            return
        raise Refused("foreign_host", NAME_IT if self.named is None else OTHER_NAME)

    def check_sender(self, method: str, headers: Mapping[str, str]) -> None:
        """Check that the page itself sends a request, whose host was checked. Raises `Refused` (`foreign_origin`)."""
        site, origin = headers.get("Sec-Fetch-Site"), headers.get("Origin")
        if site not in (None, "same-origin"):
            raise Refused("foreign_origin", ANOTHERS)
        if origin is not None and origin not in self.origins(headers.get("Host", "")):
            raise Refused("foreign_origin", ANOTHERS)
        if method in SAFE_METHODS:
            return
        if site is None and origin is None:
            raise Refused("foreign_origin", ANOTHERS)
        if headers.get("Content-Type", "").partition(";")[0].strip().lower() != "application/json":
            raise Refused("foreign_origin", NOT_JSON)

    def origins(self, host: str) -> tuple[str, ...]:
        """What a browser may name as the page's origin when it asks this host."""
        own = f"http://{host.lower()}"
        return (own,) if self.named is None else (own, self.named)

    def is_https(self, host: str | None, origin: str | None) -> bool:
        """Whether the browser sees the page over https: only a proxy knows, so it is what the operator says."""
        if self.named is None or not self.named.startswith("https:"):
            return False
        return origin == self.named or (host_name(host) == self.named_host and not is_loopback(host_name(host)))


def host_name(host: str | None) -> str:
    """The name in a `Host` header, without its port; empty where there is none."""
    match = HOST.match(host or "")
    return match[1].strip("[]").lower() if match else ""
