"""Who calls on Agora's paths: the key in the header that Agora's clients send, and the project in the path."""

from __future__ import annotations

import base64
import binascii

from aiohttp import web
from aiohttp.hdrs import AUTHORIZATION

from voicemem.errors import Refused
from voicemem.security.access import EVERYTHING
from voicemem.server.http.request import GRANT, SESSION_ID, get_stream
from voicemem.store.streams import Stream


def with_bearer(request: web.Request) -> web.Request:
    """The same request with its key as `Bearer`; without the header when no key can be read from it."""
    given = request.headers.get(AUTHORIZATION)
    if given is None:
        return request
    headers = request.headers.copy()
    key = key_of(given)
    if key is None:
        del headers[AUTHORIZATION]
    else:
        headers[AUTHORIZATION] = f"Bearer {key}"
    return request.clone(headers=headers)


def key_of(authorization: str) -> str | None:
    """The key of a Basic password, an `agora token=…` (in quotes or not), or a Bearer token."""
    scheme, _, rest = authorization.strip().partition(" ")
    match scheme.lower():
        case "basic":
            return password_of(rest.strip())
        case "agora":
            name, _, token = rest.strip().partition("=")
            return token.strip().strip('"') or None if name.strip().lower() == "token" else None
        case "bearer":
            return rest.strip() or None
    return None


def password_of(credentials: str) -> str | None:
    try:
        text = base64.b64decode(credentials, validate=True).decode()
    except (binascii.Error, ValueError):
        return None
    return text.partition(":")[2] or None


def project_of(request: web.Request) -> str:
    """The caller's project, which the path must name where keys are needed. Raises `Refused` (`forbidden`)."""
    grant = request[GRANT]
    if grant != EVERYTHING and request.match_info["appid"] != grant.project:
        raise Refused("forbidden", "The key is of another project than the path.")
    return grant.project


async def agent_of(request: web.Request) -> Stream:
    """The session that the path names, running or not. Raises `Refused`."""
    project_of(request)
    if not SESSION_ID.match(request.match_info["id"]):
        raise Refused("unknown_session")
    return await get_stream(request)


async def running_agent_of(request: web.Request) -> Stream:
    """The same while it runs; to Agora's clients, what has ended is not there."""
    stream = await agent_of(request)
    if stream.state != "running":
        raise Refused("unknown_session")
    return stream
