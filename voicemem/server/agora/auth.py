"""Access on Agora's paths: the key or token in the header that Agora's clients send, and the app in the path."""

from __future__ import annotations

import base64
import binascii

from aiohttp import web
from aiohttp.hdrs import AUTHORIZATION

from voicemem.config.session import parse_config
from voicemem.errors import Refused
from voicemem.security.access import FULL_GRANT
from voicemem.security.agora_tokens import ANY_CHANNEL
from voicemem.server.http.request import GRANT, SESSION_ID, get_stream, services_of
from voicemem.store.streams import Stream


def with_bearer(request: web.Request) -> web.Request:
    """Return the same request with its key as `Bearer`, or without the header if no key can be read from it."""
    authorization = request.headers.get(AUTHORIZATION)
    if authorization is None:
        return request
    headers = request.headers.copy()
    key = key_of(authorization)
    if key is None:
        del headers[AUTHORIZATION]
    else:
        headers[AUTHORIZATION] = f"Bearer {key}"
    return request.clone(headers=headers)


def key_of(authorization: str) -> str | None:
    """Return the key from a Basic password, an `agora token=…` (with or without quotes), or a Bearer token."""
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


async def project_of(request: web.Request) -> str:
    """Return the caller's project, which the path must name if keys are needed. Raises `Refused` (`forbidden`)."""
    grant = request[GRANT]
    if grant != FULL_GRANT and not await services_of(request).agora_apps.opens(grant, request.match_info["appid"]):
        raise Refused("forbidden", "The key or token belongs to another project than the one in the path.")
    return grant.project


def check_channel(request: web.Request, *channels: str | None) -> None:
    """Raise `Refused` (`forbidden`) if the caller has a token of Agora's for none of these channels."""
    if request[GRANT].channel not in (None, ANY_CHANNEL, *channels):
        raise Refused("forbidden", "The token is for another channel.")


async def agent_of(request: web.Request, *channels: str) -> Stream:
    """Return the session that the path names, running or not. Raises `Refused`.

    A token of Agora's must be for the session's channel, or one of these.
    """
    await project_of(request)
    if not SESSION_ID.match(request.match_info["id"]):
        raise Refused("unknown_session")
    stream = await get_stream(request)
    if request[GRANT].channel is not None:
        check_channel(request, parse_config(stream.config).channel, *channels)
    return stream


async def running_agent_of(request: web.Request, *channels: str) -> Stream:
    """Return the same if it runs; for Agora's clients, a session that has ended is unknown."""
    stream = await agent_of(request, *channels)
    if stream.state != "running":
        raise Refused("unknown_session")
    return stream
