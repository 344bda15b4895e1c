"""Who the caller is: the key that was shown, and what it may do."""

from __future__ import annotations

from aiohttp import web
from msgspec import Struct

from voicemem.security.access import ADMIN_KEY_ID, ANY_SCOPE
from voicemem.server.http.request import GRANT, NoQuery, json_response, services_of
from voicemem.server.http.routes import Route, json_ok
from voicemem.version import __version__


class Me(Struct, frozen=True):
    """The caller's key; `key_id` and `name` are null while no key is needed."""

    project: str
    scopes: tuple[str, ...]
    key_id: str | None
    name: str | None
    keys_required: bool
    version: str


async def read_me(request: web.Request, _: NoQuery) -> web.Response:
    """Read which key this is, of which project, and what it may do."""
    grant, access = request[GRANT], services_of(request).access
    key = None if grant.key_id in (None, ADMIN_KEY_ID) else await access.find_key(str(grant.key_id))
    name = None if key is None else key.name
    return json_response(Me(grant.project, grant.scopes, grant.key_id, name, await access.needs_key(), __version__))


ROUTES = (Route("GET", "/v1/me", read_me, ANY_SCOPE, NoQuery, json_ok(Me)),)
