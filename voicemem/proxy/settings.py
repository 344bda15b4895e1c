"""The checked settings of `voicemem proxy`. Callers can reach no other upstreams than those named here."""

import re
from collections.abc import Iterable, Mapping
from typing import NamedTuple
from urllib.parse import urlsplit

from msgspec import Struct

from voicemem.client.transport.connection import with_path
from voicemem.client.transport.rest import check_rest_url
from voicemem.config.service import Address
from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import CannotStart

AUTHORIZATION = "Authorization"
KEY_HEADERS = {"gemini-live": "x-goog-api-key", "elevenlabs-agents": "xi-api-key"}
"""The header in which a vendor expects its key, if not in `Authorization: Bearer`."""
SCHEMES = {"deepgram-agent": "Token"}
"""The scheme before the key in `Authorization`, if not `Bearer`."""
PORTS = {"ws": 80, "wss": 443}
HEADER_NAME = re.compile(r"[A-Za-z][A-Za-z0-9-]{0,63}")


class UpstreamKey(NamedTuple):
    """A vendor's key that the operator keeps: the header and its whole value."""

    header: str
    value: str


class Upstream(NamedTuple):
    """A vendor's server."""

    dialect: str
    secure: bool
    host: str
    port: int
    path: str
    """The path before the rest of a caller's path, without a trailing slash."""
    query: str = ""
    """The query before a caller's query."""
    key: UpstreamKey | None = None

    @property
    def authority(self) -> str:
        """The value of `Host`."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return host if self.port == PORTS["wss" if self.secure else "ws"] else f"{host}:{self.port}"

    def target(self, rest: str, query: str) -> str:
        whole = "&".join(part for part in (self.query, query) if part)
        return f"{self.path + rest or '/'}{'?' if whole else ''}{whole}"


class Settings(Struct, frozen=True, kw_only=True):
    """All settings of `voicemem proxy`."""

    upstreams: Mapping[str, Upstream]
    """By dialect."""
    listen: Address = Address("127.0.0.1", 8766)
    ingest_url: str = "ws://127.0.0.1:8765"
    rest_url: str = "http://127.0.0.1:8080"
    key: str | None = None
    """The proxy's own memory key, for callers who send none."""
    insecure: bool = False
    allow_origins: tuple[str, ...] = ()
    tls_cert: str | None = None
    tls_key: str | None = None
    connect_timeout: float = 10.0
    """The time for the vendor to answer the handshake, seconds."""
    drain_timeout: float | None = None
    """How long calls may continue after SIGTERM, seconds; None: without a limit."""
    buffer_bytes: int = 64 * 1024 * 1024
    """The most bytes that all calls together may buffer for a memory that is away."""
    max_calls: int = 1_000
    key_grace: float = 600.0
    """While the memory is away: how long a key may make calls after the memory last knew it, seconds."""

    @property
    def needs_callers_key(self) -> bool:
        return not (self.listen.is_loopback or self.insecure)


def parse_upstreams(texts: Iterable[str], keys: Mapping[str, UpstreamKey]) -> dict[str, Upstream]:
    """Parse upstreams written DIALECT=URL. Raises `CannotStart`."""
    upstreams: dict[str, Upstream] = {}
    for text in texts:
        dialect, _, url = text.partition("=")
        check_dialect(dialect, "--upstream")
        if dialect in upstreams:
            raise CannotStart(f"--upstream is given twice for {dialect}; each dialect has one upstream.")
        upstreams[dialect] = parse_upstream(dialect, url)._replace(key=keys.get(dialect))
    if not upstreams:
        raise CannotStart("Say where calls go: --upstream openai-realtime=wss://api.openai.com/v1, for instance.")
    for dialect in keys:
        if dialect not in upstreams:
            raise CannotStart(f"--upstream-key-env is given for {dialect}, which has no --upstream.")
    return upstreams


def parse_upstream(dialect: str, url: str) -> Upstream:
    wrong = CannotStart(f"The upstream of {dialect} must be a URL such as wss://HOST/PATH, without user or fragment.")
    try:
        parts = urlsplit(url)
        port = parts.port
    except ValueError:
        raise wrong from None
    is_url = url.isascii() and url.isprintable() and " " not in url
    if not is_url or parts.scheme not in PORTS or not parts.hostname or "@" in parts.netloc or parts.fragment:
        raise wrong
    secure = parts.scheme == "wss"
    return Upstream(dialect, secure, parts.hostname, port or PORTS[parts.scheme], parts.path.rstrip("/"), parts.query)


def parse_upstream_keys(texts: Iterable[str], environment: Mapping[str, str]) -> dict[str, UpstreamKey]:
    """Return the vendors' keys, from the variables named by DIALECT=[HEADER:]NAME. Raises `CannotStart`."""
    keys: dict[str, UpstreamKey] = {}
    for text in texts:
        dialect, _, where = text.partition("=")
        check_dialect(dialect, "--upstream-key-env")
        header, colon, name = where.rpartition(":")
        header = header if colon else KEY_HEADERS.get(dialect, AUTHORIZATION)
        if not HEADER_NAME.fullmatch(header) or not name:
            raise CannotStart("--upstream-key-env must be DIALECT=NAME or DIALECT=HEADER:NAME, with a variable's name.")
        key = environment.get(name, "").strip()
        if not key or not key.isascii() or not key.isprintable():
            raise CannotStart(f"The variable {name}, which --upstream-key-env names, must hold a key.")
        scheme = SCHEMES.get(dialect, "Bearer")
        keys[dialect] = UpstreamKey(header, f"{scheme} {key}" if header == AUTHORIZATION else key)
    return keys


def check_dialect(name: str, flag: str) -> None:
    if name not in DIALECTS:
        raise CannotStart(f"{flag} begins with a dialect and `=`. {no_such_dialect(name)}")


def check_settings(settings: Settings) -> None:
    """Check the ranges of settings, and settings that exclude each other. Raises `CannotStart`."""
    if (settings.tls_cert is None) != (settings.tls_key is None):
        raise CannotStart("--tls-cert and --tls-key go together: the chain of certificates, and its key, as PEM files.")
    if settings.connect_timeout <= 0 or (settings.drain_timeout or 0) < 0:
        raise CannotStart("--connect-timeout must be above 0 seconds, and --drain-timeout not below.")
    if settings.key_grace < 0:
        raise CannotStart("--key-grace must not be below 0 seconds.")
    if settings.buffer_bytes < 1 or settings.max_calls < 1:
        raise CannotStart("--buffer-bytes and --max-calls must be at least 1.")
    try:
        with_path(settings.ingest_url)
        check_rest_url(settings.rest_url)
    except ValueError as error:
        raise CannotStart(f"Of the memory's addresses: {error}.") from None
    if not (settings.key or "").isascii() or not (settings.key or "").isprintable():
        raise CannotStart("--key must be printable ASCII.")
    for origin in settings.allow_origins:
        if not re.fullmatch(r"https?://[^/?#\s]+", origin):
            raise CannotStart("--allow-origin must be an origin, such as https://app.example.com.")
