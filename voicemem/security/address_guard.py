"""The guard of every request that voicemem makes for a tenant: none may reach the operator's own network (SSRF).

A URL that came through the API is checked twice. `check_url` checks its text when it is configured. `guarded_connector`
checks the address when a connection is made, the one place that sees the final address: aiohttp asks no resolver about
an IP literal, and what a name resolves to can change after a check. The guard works only without a proxy and without
redirects: leave `trust_env` False and send with `allow_redirects=False`.

The machine's own addresses are blocked as well, public ones included: services that listen on them trust their network.

The ranges are listed here because `ipaddress.is_private` and `is_global` are not meant as deny lists: they let
multicast, NAT64, IPv4-compatible and other addresses through, and which ones depends on the version of Python.
"""

import asyncio
import errno
import re
import socket
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from ipaddress import IPv4Address, IPv4Network, IPv6Address, IPv6Network, ip_address, ip_network
from types import SimpleNamespace
from typing import Any
from urllib.parse import urlsplit

import aiohttp
from aiohttp.abc import AbstractResolver
from aiohttp.client_proto import ResponseHandler
from aiohttp.http import HttpProcessingError

from voicemem.errors import CODES, CannotStart, Refused

Network = IPv4Network | IPv6Network
MOST = 16
"""Interim responses before one answer; a server needs one or two."""
LOOK_BYTES = 4 * 1024
"""How many bytes are read at a time while interim responses come."""
SWITCHING_PROTOCOLS = 101

DENIED_NETWORKS: tuple[Network, ...] = tuple(
    ip_network(text)
    for text in (
        "0.0.0.0/8",  # this host
        "10.0.0.0/8",  # private
        "100.64.0.0/10",  # carrier-grade NAT; metadata of Alibaba Cloud
        "127.0.0.0/8",  # loopback
        "168.63.129.16/32",  # the host agent of Azure
        "169.254.0.0/16",  # link-local; metadata of most clouds
        "172.16.0.0/12",  # private
        "192.0.0.0/24",  # protocol assignments; metadata of Oracle Cloud
        "192.0.2.0/24",  # documentation
        "192.88.99.0/24",  # 6to4 relays
        "192.168.0.0/16",  # private
        "198.18.0.0/15",  # benchmarks
        "198.51.100.0/24",  # documentation
        "203.0.113.0/24",  # documentation
        "224.0.0.0/4",  # multicast
        "240.0.0.0/4",  # reserved, broadcast
        # Only 2000::/3 is global unicast. The three blocks around it hold loopback, discard, segment routing, unique
        # local (with metadata of AWS), link-local, site-local and multicast.
        "::/3",
        "4000::/2",
        "8000::/1",
        "2001::/23",  # protocol assignments, Teredo, ORCHID, benchmarks
        "2001:db8::/32",  # documentation
        "3fff::/20",  # documentation
    )
)

IPV4_CARRIERS: tuple[tuple[IPv6Network, int], ...] = (
    (IPv6Network("::ffff:0:0/96"), 0),  # IPv4-mapped
    (IPv6Network("::/96"), 0),  # IPv4-compatible; :: and ::1 become 0.0.0.0 and 0.0.0.1, which are denied
    (IPv6Network("64:ff9b::/96"), 0),  # NAT64
    (IPv6Network("2002::/16"), 80),  # 6to4
)
"""IPv6 networks whose addresses contain the IPv4 address that packets reach, and the number of bits after it."""

UNASSIGNED = {socket.AF_INET: "192.0.2.1", socket.AF_INET6: "2001:db8::1"}
"""Addresses for documentation (RFC 5737, RFC 3849), which no interface has."""

REFUSED_IN_URLS = " \\\ufffd"
"""Characters that no URL may have, besides unprintable ones; U+FFFD replaces a U+0000 that was received."""
MAX_URL_LENGTH = 2048

WEB_PORTS = frozenset({80, 443})
BAD_PORTS = frozenset(
    {1719, 1720, 1723, 2049, 3659, 4045, 4190, 5060, 5061, 6000, 6566, *range(6665, 6670), 6679, 6697, 10080}
)
"""Ports from 1024 up that browsers refuse too (WHATWG Fetch, "bad port"): servers there may read a POST as commands."""

_NETLOC = re.compile(r"(?P<host>\[[0-9A-Fa-f:.]+\]|[A-Za-z0-9._-]{1,253})(?::(?P<port>[0-9]{1,5}))?")
_NUMBER = re.compile(r"[0-9]+|0x[0-9a-f]*")


class AddressNotAllowedError(OSError):
    """The guard refused a connection. It is an OSError, so that the next address of a name is tried.

    All have the same text: asyncio raises the errors of a name's addresses as one error only if they are equal.
    """

    def __init__(self) -> None:
        super().__init__(errno.EACCES, CODES["address_not_allowed"].sentence)


def allowed_networks(texts: Iterable[str]) -> tuple[Network, ...]:
    """Parse the operator's allow-list: addresses and CIDR networks (`10.1.0.0/16`)."""
    try:
        return tuple(ip_network(text.strip()) for text in texts)
    except ValueError as error:
        raise CannotStart(f"The allow-list of addresses has an entry that is not a network: {error}.") from None


def is_blocked(address: str, allowed: Iterable[Network] = ()) -> bool:
    """Return whether tenants' requests to this IP address are blocked; so is any text that is not a plain address."""
    try:
        literal = final = ip_address(address)
    except ValueError:
        return True
    for carrier, bits_behind in IPV4_CARRIERS:
        if literal in carrier:  # packets finally reach the IPv4 address in it
            final = IPv4Address(int(literal) >> bits_behind & 0xFFFFFFFF)
            break
    if any(literal in network or final in network for network in allowed):
        return False
    return any(final in network for network in DENIED_NETWORKS) or is_local_address(final)


def is_local_address(address: IPv4Address | IPv6Address) -> bool:
    """Return whether an address is one of this machine's interfaces, as they are now."""
    # The kernel lets a socket bind to the machine's own addresses only. A setting can allow all others too; then every
    # address would look like one of its own, but so does an address that belongs to no machine.
    family = socket.AF_INET if address.version == 4 else socket.AF_INET6
    return _can_bind(family, str(address)) and not _can_bind(family, UNASSIGNED[family])


def _can_bind(family: socket.AddressFamily, address: str) -> bool:
    try:
        with socket.socket(family, socket.SOCK_DGRAM) as probe:
            probe.bind((address, 0))
    except OSError:
        return False
    return True


def guarded_connector(
    *, allowed: Sequence[Network] = (), resolver: AbstractResolver | None = None, keepalive_s: float = 2.0
) -> aiohttp.TCPConnector:
    """Return a connector that opens no socket to a blocked address, whatever name or literal led there.

    Needs a running loop. It does not limit connections: waiting for a free one would look like a slow receiver.
    """

    def open_socket(address_info: aiohttp.AddrInfoType) -> socket.socket:
        family, kind, protocol, _, address = address_info
        if is_blocked(address[0], allowed):
            raise AddressNotAllowedError
        return socket.socket(family, kind, protocol)

    connector = aiohttp.TCPConnector(
        resolver=resolver, socket_factory=open_socket, limit=0, keepalive_timeout=keepalive_s
    )
    bounded: Any = partial(BoundedResponseHandler, loop=asyncio.get_running_loop())
    connector._factory = bounded
    return connector


def connectors(
    allowed: Sequence[Network], resolver: AbstractResolver | None, keepalive_s: float
) -> dict[bool, aiohttp.TCPConnector]:
    """Return a connector for URLs that came through the API (True), and one for the operator's own."""
    unguarded = aiohttp.TCPConnector(resolver=resolver, limit=0, keepalive_timeout=keepalive_s)
    return {True: guarded_connector(allowed=allowed, resolver=resolver, keepalive_s=keepalive_s), False: unguarded}


def direct_session(
    connector: aiohttp.TCPConnector, timeout: aiohttp.ClientTimeout, **more: Any
) -> aiohttp.ClientSession:
    """Return a session without cookies, and without a proxy, which would connect in our place and bypass the guard.

    It sets `reused` on a request's trace context if the request uses a pooled connection.
    """

    async def note_reuse(
        _: aiohttp.ClientSession, context: SimpleNamespace, __: aiohttp.TraceConnectionReuseconnParams
    ) -> None:
        context.trace_request_ctx.reused = True

    trace = aiohttp.TraceConfig()
    trace.on_connection_reuseconn.append(note_reuse)
    return aiohttp.ClientSession(
        connector=connector,
        trust_env=False,
        cookie_jar=aiohttp.DummyCookieJar(),
        timeout=timeout,
        auto_decompress=False,
        trace_configs=[trace],
        **more,
    )


async def send_request(
    session: aiohttp.ClientSession, method: str, url: str, make_body: Callable[[], Any], **options: Any
) -> aiohttp.ClientResponse:
    """Send a request on a `direct_session`; `make_body` is called for each attempt.

    The other end may have closed an idle connection just as it was reused. That is not its fault, so only the failure
    of a new connection counts. Each failure takes one idle connection out of the pool, so the loop ends.
    """
    while True:
        context = SimpleNamespace(reused=False)
        try:
            return await session.request(
                method, url, data=make_body(), allow_redirects=False, trace_request_ctx=context, **options
            )
        except (aiohttp.ServerDisconnectedError, aiohttp.ClientOSError) as error:
            if isinstance(error, aiohttp.ClientConnectorError) or not context.reused:
                raise


def check_url(url: str, allowed: Iterable[Network] = ()) -> None:
    """Raise `Refused` for a URL that tenants may not use, as far as its text shows.

    Codes are `invalid_field` and `address_not_allowed`. Plain http is accepted although it is readable on the way:
    receivers on an allow-listed network often have no certificate.
    """
    host, port = _host_and_port(url)
    if port is not None and port not in WEB_PORTS and (port < 1024 or port > 65535 or port in BAD_PORTS):
        raise _invalid("The URL's port is not one for web services.")
    address = _literal_address(host)
    if address is not None and is_blocked(address, allowed):
        raise Refused("address_not_allowed")


def _host_and_port(url: str) -> tuple[str, int | None]:
    """Return the host in lower case (IPv6 in brackets) and the port, if any. Raises `Refused` (`invalid_field`).

    URL parsers disagree about unusual URLs, and an attacker can use any disagreement between this check and the
    connection, so only plain URLs pass.
    """
    if len(url) > MAX_URL_LENGTH:
        raise _invalid(f"A URL may be at most {MAX_URL_LENGTH} characters long.")
    if not url.isprintable() or any(character in url for character in REFUSED_IN_URLS):
        raise _invalid("A URL may not contain spaces, control characters or backslashes.")
    try:
        parts = urlsplit(url)
    except ValueError:
        raise _invalid("The URL cannot be read.") from None
    if parts.scheme not in ("http", "https"):
        raise _invalid("The URL must begin with https:// or http://.")
    if "@" in parts.netloc:
        raise _invalid("A URL may not contain a user name or password.")
    if "#" in url:
        raise _invalid("A URL may not have a fragment.")
    match = _NETLOC.fullmatch(parts.netloc)
    if match is None:
        raise _invalid("The URL must have a plain host; write an international name in its xn-- form.")
    port = match["port"]
    return match["host"].lower().rstrip("."), None if port is None else int(port)


def _literal_address(host: str) -> str | None:
    """Return the IP address that a host is, or always resolves to; None for a name.

    Raises `Refused` (`invalid_field`) for other spellings of an address, such as 0x7f000001 and 127.1.
    """
    if host == "localhost" or host.endswith(".localhost"):
        return "127.0.0.1"
    if host and not host.startswith("[") and not _NUMBER.fullmatch(host.rpartition(".")[2]):
        return None
    try:
        return str(ip_address(host.strip("[]")))
    except ValueError:
        raise _invalid("The URL's host must be a name or a plain IP address.") from None


def _invalid(sentence: str) -> Refused:
    return Refused("invalid_field", sentence)


class BoundedResponseHandler(ResponseHandler):
    """A connection on which a server may send `MOST` interim responses before an answer.

    aiohttp skips each `100 Continue` at once, before it checks anything else, even its own deadlines: a server that
    sends nothing else would block the whole process, and fill its memory.
    """

    def __init__(self, *args: Any, **more: Any) -> None:
        super().__init__(*args, **more)
        self.interim = 0
        """Interim responses since the last answer."""

    def data_received(self, data: bytes) -> None:
        at = LOOK_BYTES
        super().data_received(data[:at] if len(data) > at else data)
        while at < len(data):
            if self.interim > MOST:
                return
            end = at + LOOK_BYTES if self.interim else len(data)
            super().data_received(data[at:end])
            at = end

    def feed_data(self, data: Any, size: int = 0) -> None:
        """Take a response: its head and its body. Too many interim responses end the connection."""
        code = data[0].code
        self.interim = self.interim + 1 if 100 <= code < 200 and code != SWITCHING_PROTOCOLS else 0
        if self.interim <= MOST:
            super().feed_data(data, size)
        elif not self.is_eof():
            if self.transport is not None:
                self.transport.abort()
            self.set_exception(HttpProcessingError(message="Too many interim responses"))


UNKNOWN_ERROR = "error"
ERROR_WORDS: tuple[tuple[type[BaseException] | tuple[type[BaseException], ...], str], ...] = (
    (AddressNotAllowedError, "address_not_allowed"),
    (TimeoutError, "timeout"),
    (ConnectionRefusedError, "refused"),
    ((ConnectionError, aiohttp.ServerDisconnectedError, aiohttp.ClientOSError, aiohttp.ClientPayloadError), "reset"),
    (OSError, "unreachable"),
    ((aiohttp.InvalidURL, aiohttp.NonHttpUrlClientError, UnicodeError), "invalid_url"),
    (aiohttp.ClientResponseError, "bad_answer"),
)


def error_word(error: Exception) -> str:
    """Return a stable short word for the error of a request."""
    if isinstance(error, aiohttp.ClientSSLError):
        return "tls"
    if isinstance(error, aiohttp.ClientConnectorDNSError):
        return "dns"
    cause = error.os_error if isinstance(error, aiohttp.ClientConnectorError) else error
    return next((word for kinds, word in ERROR_WORDS if isinstance(cause, kinds)), UNKNOWN_ERROR)
