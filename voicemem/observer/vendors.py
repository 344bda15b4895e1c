"""Vendors whose calls can be observed: their dialects and the addresses of their websockets."""

from collections.abc import Callable, Iterable
from typing import Literal, NamedTuple
from urllib.parse import parse_qsl, quote, urlencode, urlsplit

from voicemem.errors import CannotStart, Refused


class Vendor(NamedTuple):
    """A stack whose calls can be observed."""

    url: str
    """The default address."""
    call_field: Literal["call_id", "session_id"]
    address: Callable[[str, str], str]
    """Returns the address of one call, from the URL and the call's id."""


def with_call_id(url: str, call: str) -> str:
    parts = urlsplit(url)
    query = [*parse_qsl(parts.query, keep_blank_values=True), ("call_id", call)]
    return parts._replace(query=urlencode(query)).geturl()


def attached(url: str, call: str) -> str:
    parts = urlsplit(url)
    return parts._replace(path=f"{parts.path.rstrip('/')}/sessions/{quote(call, safe='')}/attach").geturl()


VENDORS = {
    # The sideband of calls over WebRTC and SIP: developers.openai.com/api/docs/guides/realtime-server-controls
    "openai-realtime": Vendor("wss://api.openai.com/v1/realtime", "call_id", with_call_id),
    "openai-live": Vendor("wss://api.openai.com/v1/live", "session_id", attached),
}


def find_vendor(dialect: str) -> Vendor:
    """Return the vendor of a dialect. Raises `Refused` (`unknown_dialect`)."""
    if dialect not in VENDORS:
        raise Refused("unknown_dialect", f"Calls can be observed at: {', '.join(VENDORS)}.")
    return VENDORS[dialect]


def parse_observe_urls(settings: Iterable[str]) -> dict[str, str]:
    """Return the configured URLs (already checked) by dialect. Raises `CannotStart` for an unknown dialect."""
    urls = {dialect: url for dialect, _, url in (one.partition("=") for one in settings)}
    if not urls.keys() <= VENDORS.keys():
        raise CannotStart(f"observe-url is for {', '.join(VENDORS)}.")
    return urls
