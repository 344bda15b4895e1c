"""What a caller asks for: which upstream, under which session, with which key of the memory."""

from __future__ import annotations

import re
from typing import NamedTuple
from urllib.parse import unquote

from voicemem.dialects.registry import DIALECTS, no_such_dialect
from voicemem.errors import Refused
from voicemem.protocol.types import SESSION_ID_PATTERN
from voicemem.proxy.heads import Headers, Request, handshake_head, is_handshake
from voicemem.proxy.settings import Settings, Upstream
from voicemem.security.session_tokens import shown_claims

PREFIX = "/v1/proxy/"
KEY_HEADER, SESSION_HEADER = "x-voicemem-key", "x-voicemem-session"
SESSION_PARAMETER = "voicemem_session"
OURS = "x-voicemem-"
CREDENTIALS = ("authorization", "api-key", "x-api-key", "x-goog-api-key", "xi-api-key", "cookie")
"""Headers in which a caller may show a key to a vendor."""
CREDENTIAL_PARAMETERS = ("key", "api_key", "api-key", "access_token", "token")
CREDENTIAL_PROTOCOLS = ("openai-insecure-api-key.",)
"""Subprotocols that begin like this are keys: browsers cannot send headers."""


class Wanted(NamedTuple):
    """A call that may be made."""

    upstream: Upstream
    head: bytes
    """The head of the handshake for the upstream."""
    session_id: str | None
    key: str | None
    """The caller's key of the memory, or a session token."""
    is_token: bool


def read_request(request: Request, settings: Settings) -> Wanted:
    """What a handshake asks for. Raises `Refused`."""
    path, _, query = request.target.partition("?")
    dialect, slash, rest = path.removeprefix(PREFIX).partition("/")
    upstream = settings.upstreams.get(dialect) if path.startswith(PREFIX) else None
    if upstream is None:
        raise no_upstream(path.startswith(PREFIX), dialect, settings)
    if not is_handshake(request):
        raise Refused("invalid_http", "This path takes websockets: a GET with Upgrade: websocket.")
    check_path(rest)
    check_origin(request, settings)
    check_names(request)
    session_id, query = split_query(query, request.value(SESSION_HEADER))
    key = request.value(KEY_HEADER)
    left_out, added = [KEY_HEADER, SESSION_HEADER], Headers()
    if upstream.key is not None:
        key = key or shown_key(request)
        left_out += [*CREDENTIALS, upstream.key.header.lower(), "sec-websocket-protocol"]
        added = [(upstream.key.header, upstream.key.value), *public_protocols(request)]
        query = without_credentials(query)
    if key is not None and not (key.isascii() and key.isprintable()):
        raise Refused("unauthorized", "A key is printable ASCII.")
    claims = None if key is None else shown_claims(key)
    if claims is not None:
        if session_id not in (None, claims.sub):
            raise Refused("forbidden", "A session token opens its own session alone.")
        session_id = claims.sub
    head = handshake_head(upstream.target(slash + rest, query), upstream.authority, request, left_out, added)
    return Wanted(upstream, head, session_id, key, claims is not None)


def no_upstream(has_prefix: bool, dialect: str, settings: Settings) -> Refused:
    known = ", ".join(sorted(settings.upstreams))
    if not has_prefix:
        return Refused("not_found", f"Calls are forwarded at {PREFIX}DIALECT; upstreams are set for {known}.")
    if dialect in DIALECTS:
        return Refused("unknown_dialect", f"No upstream is set for this dialect (--upstream), but for {known}.")
    return Refused("unknown_dialect", no_such_dialect(dialect))


def check_path(rest: str) -> None:
    """A path may not lead out of the upstream's own. Raises `Refused`."""
    parts = re.split(r"[/\\]", unquote(rest))
    if "." in parts or ".." in parts or "#" in rest:
        raise Refused("invalid_http", "The path may not have the segments . and .., or a fragment.")


def check_origin(request: Request, settings: Settings) -> None:
    """Pages of other origins stay out: a browser sends its user's cookies, and reaches its machine's loopback."""
    origin = request.value("origin")
    if origin is not None and origin not in settings.allow_origins:
        raise Refused("foreign_origin", "Pages of this origin may not use the proxy; --allow-origin lets them in.")


def check_names(request: Request) -> None:
    """Refuse what looks like a setting of ours and is none, such as an upstream. Raises `Refused`."""
    for name, _ in request.headers:
        if name.lower().startswith(OURS) and name.lower() not in (KEY_HEADER, SESSION_HEADER):
            raise Refused("invalid_http", "Of the headers X-Voicemem-…, the proxy takes -Key and -Session.")


def split_query(query: str, session_id: str | None) -> tuple[str | None, str]:
    """The id of the session, and what of the query goes to the upstream. Raises `Refused`."""
    kept = []
    for part in query.split("&") if query else []:
        name, _, value = part.partition("=")
        if not unquote(name).lower().startswith("voicemem_"):
            kept.append(part)
        elif unquote(name) == SESSION_PARAMETER and session_id in (None, unquote(value)):
            session_id = unquote(value)
        else:
            raise Refused("invalid_query", f"Of the parameters voicemem_…, the proxy takes one {SESSION_PARAMETER}.")
    if session_id is not None and not re.match(SESSION_ID_PATTERN, session_id):
        raise Refused("invalid_query", "A session id must be 1 to 128 characters of A-Za-z0-9._:-")
    return session_id, "&".join(kept)


# Where the operator keeps the vendor's key, callers show one of the memory in its place.


def shown_key(request: Request) -> str | None:
    """The key that a caller's SDK believes to show to the vendor."""
    for name in CREDENTIALS[:-1]:
        value = request.value(name)
        if value is not None:
            return value.partition(" ")[2].strip() if name == "authorization" else value
    for protocol in protocols_of(request):
        for beginning in CREDENTIAL_PROTOCOLS:
            if protocol.startswith(beginning):
                return protocol.removeprefix(beginning)
    return None


def protocols_of(request: Request) -> list[str]:
    return [name.strip() for value in request.values("sec-websocket-protocol") for name in value.split(",")]


def public_protocols(request: Request) -> Headers:
    """The subprotocols that are not keys."""
    names = [name for name in protocols_of(request) if not name.startswith(CREDENTIAL_PROTOCOLS)]
    return [("Sec-WebSocket-Protocol", ", ".join(names))] if names else []


def without_credentials(query: str) -> str:
    parts = [part for part in query.split("&") if unquote(part.partition("=")[0]).lower() not in CREDENTIAL_PARAMETERS]
    return "&".join(parts)
