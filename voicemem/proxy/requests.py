"""Requests of callers: HTTP/1.1 heads (RFC 9112), checked and rewritten for the upstream, and answers to them.

A handshake names the upstream, the session and the memory key. Forwarded headers keep their order and spelling.
Everything is Latin-1, in which every byte is a character.
"""

import re
from base64 import urlsafe_b64decode
from collections.abc import Iterable
from http import HTTPStatus
from itertools import pairwise
from typing import NamedTuple
from urllib.parse import unquote

import msgspec

from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import CODES, Refused
from voicemem.protocol.explanations import unknown_name
from voicemem.protocol.types import SESSION_ID_PATTERN, SESSION_ID_RULE
from voicemem.proxy.settings import Settings, Upstream
from voicemem.security.session_tokens import shown_claims

MAX_HEAD_BYTES = 64 * 1024
END = b"\r\n\r\n"
REQUEST_LINE = re.compile(r"([A-Z]{1,16}) (/[!-~]*) HTTP/1\.1")
HEADER = re.compile(r"([!#$%&'*+.^_`|~0-9A-Za-z-]+):[ \t]*([\t -~\x80-\xff]*?)[ \t]*")
STATUS_LINE = re.compile(rb"HTTP/1\.[01] ([1-5]\d\d)(?: [^\r\n]*)?\r\n")
HOP_BY_HOP = (
    *("connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection"),
    *("te", "trailer", "transfer-encoding", "upgrade"),
)
"""Hop-by-hop headers (RFC 9110, section 7.6.1)."""
UNCOMPRESSED = "sec-websocket-extensions"
"""Not forwarded, so that no frames are compressed, and they can be read."""
Headers = list[tuple[str, str]]
PREFIX = "/v1/proxy/"
KEY_HEADER, SESSION_HEADER, USER_HEADER = "x-voicemem-key", "x-voicemem-session", "x-voicemem-user"
OUR_HEADERS = KEY_HEADER, SESSION_HEADER, USER_HEADER
SESSION_PARAMETER, USER_PARAMETER = "voicemem_session", "voicemem_user"
NONCE = re.compile(r"[A-Za-z0-9+/]{22}==")
CREDENTIAL_HEADERS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "xi-api-key")
"""Headers in which callers' SDKs send a key."""
CREDENTIAL_WORDS = frozenset(
    (
        *("accesskey", "assertion", "auth", "authenticate", "authentication", "authkey", "authn", "authz", "bearer"),
        *("credential", "credentials", "creds", "csrf", "hmac", "jwt", "key", "oauth", "passcode", "passphrase"),
        *("privatekey", "pwd", "secretkey", "sig", "subscriptionkey", "ticket", "userkey", "xsrf"),
    )
)
CREDENTIAL_ENDS = ("apikey", "authorization", "cookie", "passwd", "password", "secret", "signature", "token")
"""Words, and ends of words, in the names of headers and parameters that hold secrets."""
WORD = re.compile(r"[A-Z]+(?![a-z])|[A-Z]?[a-z]+")
KEY_PROTOCOL = "openai-insecure-api-key."
KEY_SCHEMES = ("token", "bearer", "key", "api_key", "apikey", "access_token", "authorization")
"""Subprotocols before a key, such as Deepgram's `token, KEY`: browsers cannot send headers."""
PUBLIC_PROTOCOL = re.compile(
    r"realtime|convai|openai-beta\.[a-z0-9.=-]{1,40}|openai-(?:organization|project)\.[\w-]{1,64}"
)
"""Subprotocols that are not keys."""


class Request(NamedTuple):
    """A request without a body."""

    method: str
    target: str
    headers: Headers

    def values(self, name: str) -> list[str]:
        return [value for other, value in self.headers if other.lower() == name]

    def value(self, name: str) -> str | None:
        """Return the value of a header that may come only once. Raises `Refused`."""
        values = self.values(name)
        if len(values) > 1:
            raise Refused("invalid_http", f"The header {name} may be sent once.")
        return values[0] if values else None

    def words(self, name: str) -> list[str]:
        return [word.strip().lower() for value in self.values(name) for word in value.split(",")]


def parse_request(head: bytes) -> Request:
    """Parse a complete head. Raises `Refused` if it is not HTTP/1.1, or announces a body."""
    first, *lines = head[: -len(END)].decode("latin-1").split("\r\n")
    start = REQUEST_LINE.fullmatch(first)
    fields = [HEADER.fullmatch(line) for line in lines]
    if start is None or None in fields:
        raise Refused("invalid_http")
    request = Request(start[1], start[2], [(field[1], field[2]) for field in fields if field is not None])
    if request.values("transfer-encoding") or not set(request.values("content-length")) <= {"0"}:
        raise Refused("invalid_http", "A request to the proxy has no body.")
    return request


def handshake_head(target: str, host: str, request: Request, left_out: Iterable[str], added: Headers) -> bytes:
    """Return the head of the same handshake for another server; `left_out` has header names in lower case."""
    gone = {*HOP_BY_HOP, *request.words("connection"), "host", "content-length", UNCOMPRESSED, *left_out}
    kept = [(name, value) for name, value in request.headers if name.lower() not in gone]
    headers = [("Host", host), ("Connection", "Upgrade"), ("Upgrade", "websocket"), *kept, *added]
    lines = [f"GET {target} HTTP/1.1", *(f"{name}: {value}" for name, value in headers)]
    return "\r\n".join(lines).encode("latin-1") + END


def status_of(head: bytes) -> int | None:
    start = STATUS_LINE.match(head)
    return None if start is None else int(start[1])


def with_subprotocol(head: bytes, protocol: str | None) -> bytes:
    """Return the upstream's head with a subprotocol that the proxy hid from it: browsers need one that they offered."""
    if protocol is None or b"\r\nsec-websocket-protocol:" in head.lower():
        return head
    return head.removesuffix(END) + f"\r\nSec-WebSocket-Protocol: {protocol}".encode("latin-1") + END


def answer(status: int, media_type: str, body: bytes, headers: Headers | None = None) -> bytes:
    lines = [
        f"HTTP/1.1 {status} {HTTPStatus(status).phrase}",
        "Server: voicemem",
        f"Content-Type: {media_type}",
        f"Content-Length: {len(body)}",
        "Cache-Control: no-store",
        "Connection: close",
        *(f"{name}: {value}" for name, value in headers or ()),
    ]
    return "\r\n".join(lines).encode() + END + body


def refusal(code: str, detail: str) -> bytes:
    """Return the answer to a refused request: a problem document, like the service's (docs/errors.md)."""
    status = CODES[code].status
    problem = {
        "type": f"urn:voicemem:error:{code}",
        "title": HTTPStatus(status).phrase,
        "status": status,
        "detail": detail,
        "reason": code,
    }
    headers = [("WWW-Authenticate", "Bearer")] if status == 401 else []
    return answer(status, "application/problem+json", msgspec.json.encode(problem), headers)


class CallRequest(NamedTuple):
    """A call that may be made."""

    upstream: Upstream
    head: bytes
    session_id: str | None
    user_id: str | None
    key: str | None
    """The caller's memory key, or a session token."""
    expires_s: float | None
    """When a session token expires, Unix seconds; None for a key."""
    credentials: frozenset[str]
    """All credentials of the caller, which are never recorded."""
    confirmed: str | None = None
    """The subprotocol that the proxy confirms itself, because it is hidden from the upstream."""


def read_request(request: Request, settings: Settings) -> CallRequest:
    """Return the call that a handshake asks for. Raises `Refused`."""
    path, _, query = request.target.partition("?")
    dialect, slash, rest = path.removeprefix(PREFIX).partition("/")
    upstream = settings.upstreams.get(dialect) if path.startswith(PREFIX) else None
    if upstream is None:
        known = ", ".join(sorted(settings.upstreams))
        if not path.startswith(PREFIX):
            raise Refused("not_found", f"Calls are forwarded at {PREFIX}DIALECT; upstreams are set for {known}.")
        if dialect in DIALECTS:
            raise Refused("unknown_dialect", f"No upstream (--upstream) is set for this dialect, only for {known}.")
        raise Refused("unknown_dialect", no_such_dialect(dialect))
    check_handshake(request, rest, settings)
    session_id, user_id, query = split_query(query, request.value(SESSION_HEADER), request.value(USER_HEADER))
    key, public_query = request.value(KEY_HEADER), query
    left_out, added, confirmed = [*OUR_HEADERS], Headers(), None
    if upstream.key is not None:
        shown = presented_credentials(request, query)
        key = key or shown.key
        public_query, more = shown.public_query(query), shown.headers(request)
        if shown.has_credential(slash + rest):
            raise Refused("invalid_http", "The path would show a key to the vendor; send it in X-Voicemem-Key.")
        left_out += [*more, upstream.key.header.lower(), "sec-websocket-protocol"]
        added = [(upstream.key.header, upstream.key.value)]
        if shown.protocols:
            added.append(("Sec-WebSocket-Protocol", ", ".join(shown.protocols)))
        elif shown.scheme is not None:
            confirmed = shown.scheme
    if key is not None and not (key.isascii() and key.isprintable()):
        raise Refused("unauthorized", "A key is printable ASCII.")
    claims = None if key is None else shown_claims(key)
    if claims is not None:
        if session_id not in (None, claims.sub):
            raise Refused("forbidden", "A session token opens only its own session.")
        session_id = claims.sub
    head = handshake_head(upstream.target(slash + rest, public_query), upstream.authority, request, left_out, added)
    expires_s = None if claims is None else claims.exp
    return CallRequest(upstream, head, session_id, user_id, key, expires_s, credentials_in(request, query), confirmed)


def check_handshake(request: Request, rest: str, settings: Settings) -> None:
    """Check a handshake (RFC 6455, section 4.2.1); `rest` is the path for the upstream. Raises `Refused`."""
    asks = "websocket" in request.words("upgrade") and "upgrade" in request.words("connection")
    nonces, versions = request.values("sec-websocket-key"), request.values("sec-websocket-version")
    is_plain = len(nonces) == 1 and NONCE.fullmatch(nonces[0]) and versions in ([], ["13"])  # both are forwarded
    if request.method != "GET" or not asks or not is_plain:
        raise Refused("invalid_http", "This path accepts only websockets: a GET with Upgrade: websocket.")
    parts = re.split(r"[/\\]", unquote_all(rest))
    if "." in parts or ".." in parts or "#" in rest:  # it could leave the upstream's own path
        raise Refused("invalid_http", "The path may not have the segments . and .., or a fragment.")
    origin = request.value("origin")  # a browser sends its user's cookies, and reaches its machine's loopback
    if origin is not None and origin not in settings.allow_origins:
        raise Refused("foreign_origin", "Pages of this origin may not use the proxy; --allow-origin lets them in.")
    ours = {name.lower() for name, _ in request.headers if name.lower().startswith("x-voicemem-")}
    if not ours <= {*OUR_HEADERS}:  # such as a header that names an upstream
        raise Refused("invalid_http", "The proxy's only X-Voicemem-… headers are -Key, -Session and -User.")


def split_query(query: str, session_id: str | None, user_id: str | None) -> tuple[str | None, str | None, str]:
    """Return the ids of the session and its user, and the query for the upstream. Raises `Refused`."""
    ours, kept = {SESSION_PARAMETER: session_id, USER_PARAMETER: user_id}, []
    for part in query.split("&") if query else []:
        name, _, value = part.partition("=")
        name, value = unquote(name), unquote(value)
        if not name.lower().startswith("voicemem_"):
            kept.append(part)
        elif name not in ours:
            raise Refused("invalid_query", f"{unknown_name('parameter', name, ours)}.")
        elif ours[name] in (None, value):
            ours[name] = value
        else:
            raise Refused("invalid_query", f"The parameter {name}, or its header, has two values.")
    session_id, user_id = ours.values()
    if session_id is not None and not re.match(SESSION_ID_PATTERN, session_id):
        raise Refused("invalid_query", f"A session id must be {SESSION_ID_RULE}")
    if user_id is not None and not (1 <= len(user_id) <= 128 and user_id.isprintable()):
        raise Refused("invalid_query", "A user's id must be 1 to 128 printable characters.")
    return session_id, user_id, "&".join(kept)


# Where the operator keeps the vendor's key, callers send a memory key in its place. The vendor sees neither that key
# nor anything else that may be a caller's credential.


class PresentedCredentials(NamedTuple):
    """The credentials in a caller's request."""

    key: str | None
    """The first that may be a memory key."""
    texts: frozenset[str]
    """All of them; none is forwarded, wherever else it appears."""
    protocols: tuple[str, ...]
    """The subprotocols that are not credentials."""
    scheme: str | None

    def has_credential(self, text: str) -> bool:
        read = "\n".join(decodings_of(text)).lower()
        return any(one.lower() in read for one in self.texts) or OUR_CREDENTIAL.search(read) is not None

    def is_public(self, name: str, text: str) -> bool:
        """Return whether a header or a parameter holds no credential; `text` is all of it."""
        plain = unquote_all(text)
        inside = (within[0] for within in NAME_INSIDE.finditer(plain))
        is_secret = any(map(is_credential, (name, *inside))) or USER_IN_URL.search(plain)
        return not (is_secret or self.has_credential(text))

    def headers(self, request: Request) -> list[str]:
        """Return the names of headers that must not be forwarded, in lower case."""
        return [
            name.lower()
            for name, value in request.headers
            if name.lower() not in HANDSHAKE and not self.is_public(name, f"{name}: {value}")
        ]

    def public_query(self, query: str) -> str:
        return "&".join(part for part in query.split("&") if self.is_public(part.partition("=")[0], part))


HANDSHAKE = ("sec-websocket-key", "sec-websocket-version", "host", "upgrade", "connection")
OUR_CREDENTIAL = re.compile(r"vm_[0-9a-z]{12}_[0-9a-z]{40}|eyj[\w-]{6,}\.[\w-]{6,}\.[\w-]{6,}")
"""A memory key or a session token, in lower case."""
NAME_INSIDE = re.compile(r"(?<![\w-])[\w-]++(?=[\"\']?\s*[=:])")
"""A name that has a value, in JSON or in a URL inside a value."""
USER_IN_URL = re.compile(r"//[^/\s@]++@")
ENCODED, HEXADECIMAL = re.compile(r"[A-Za-z0-9+/_-]{16,}"), re.compile(r"(?:[0-9A-Fa-f]{2}){6,}")
ENCODED_PERCENT = re.compile(r"%(?:25)+(?=[0-9A-Fa-f]{2})")
MIN_CREDENTIAL = 6
"""Characters; a shorter text may appear anywhere by chance."""


def presented_credentials(request: Request, query: str) -> PresentedCredentials:
    keys: list[str] = []
    for name in CREDENTIAL_HEADERS:
        value = request.value(name)
        if value is not None:
            keys.append(value.partition(" ")[2].strip() if name == "authorization" else value)
    public, protocols, scheme = list[str](), protocols_of(request), None
    for before, name in zip(["", *protocols], protocols, strict=False):
        key = key_in_protocol(before, name)
        if key is not None:
            keys.append(key)
            scheme = before if key == name else scheme
        elif PUBLIC_PROTOCOL.fullmatch(name):
            public.append(name)
    hidden = credentials_in(request, query)
    shown = PresentedCredentials(keys[0] if keys else None, hidden, (), scheme)
    return shown._replace(protocols=tuple(name for name in public if not shown.has_credential(name)))


def credentials_in(request: Request, query: str) -> frozenset[str]:
    """Return all credentials of a request that are too long to appear elsewhere by chance."""
    values = [value for name, value in request.headers if is_credential(name) and name.lower() not in HANDSHAKE]
    parts = (part.partition("=") for part in query.split("&"))
    texts = {unquote_all(value) for name, _, value in parts if is_credential(name)}
    protocols = protocols_of(request)
    keys = map(key_in_protocol, ["", *protocols], protocols)
    texts.update(values, (value.partition(" ")[2].strip() for value in values), (key for key in keys if key))
    return frozenset(one for one in texts if len(one) >= MIN_CREDENTIAL)


def key_in_protocol(before: str, name: str) -> str | None:
    """Return the key in a subprotocol, given the one before it; None if it holds no key."""
    if name.startswith(KEY_PROTOCOL):
        return name.removeprefix(KEY_PROTOCOL)
    return name if before.lower() in KEY_SCHEMES else None


def is_credential(name: str) -> bool:
    """Return whether a header or a parameter holds a secret, judging by its name."""
    words = [word.lower() for word in WORD.findall(unquote_all(name))]
    names = [*words, *map("".join, pairwise(words))]
    return any(one in CREDENTIAL_WORDS or one.endswith(CREDENTIAL_ENDS) for one in names)


def decodings_of(text: str) -> list[str]:
    """Return a text without percent-encoding, and what base64 (from any start) and hex in it decode to."""
    plain = unquote_all(text)
    readings = [plain, *(bytes.fromhex(one).decode("latin-1") for one in HEXADECIMAL.findall(plain))]
    for token in ENCODED.findall(plain):
        for start in range(4):
            part = token[start:].replace("+", "-").replace("/", "_")
            part = part[: len(part) - (len(part) % 4 == 1)]
            readings.append(urlsafe_b64decode(part + "=" * (-len(part) % 4)).decode("latin-1"))
    return readings


def unquote_all(text: str) -> str:
    """Return a text without percent-encoding, even if it was encoded more than once."""
    for _ in range(4):
        plain = unquote(ENCODED_PERCENT.sub("%", text))
        if plain == text:
            break
        text = plain
    return text


def protocols_of(request: Request) -> list[str]:
    return [name.strip() for value in request.values("sec-websocket-protocol") for name in value.split(",")]
