"""A client of the memory over REST, with a key or a session token, and errors as sentences for an LLM.

A key reaches its project, a session token its session and, if it may, the memories of its user.
"""

import re
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any, Literal

from msgspec import Struct

from voicemem.client.errors import ClientError, Unreachable
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient
from voicemem.protocol.types import JsonObject
from voicemem.security.session_tokens import shown_claims

PRINTABLE = re.compile(r"[!-~]{1,4096}\Z")
"""A text that can be sent as a key."""
Reach = Literal["project", "user", "session"]


class Service(RestClient):
    """The REST API of a service, for clients with any key."""

    def __init__(self, url: str) -> None:
        super().__init__(url, None, Options())


class Client(Struct, frozen=True):
    """A client with a key or a session token; `bearer` is None where none was sent."""

    service: Service
    bearer: str | None = None
    session_id: str | None = None
    """The session of a token; None for a key."""
    reaches_user: bool = False

    @property
    def reach(self) -> Reach:
        if self.session_id is None:
            return "project"
        return "user" if self.reaches_user else "session"

    @property
    def headers(self) -> dict[str, str]:
        return {} if self.bearer is None else {"Authorization": f"Bearer {self.bearer}"}

    async def get(self, path: str, query: dict[str, str] | None = None) -> JsonObject:
        return await self.service.get(path, query or {}, 10.0, self.headers)

    async def send(self, method: str, path: str, body: Any = None) -> Any:
        return await self.service.request(method, path, None, body, 15.0, self.headers)


def client_with(service: Service, bearer: str | None) -> Client:
    """Return the client of a key or token, valid or not. Raises `ClientError` for a text that cannot be a key."""
    if bearer is None:
        return Client(service)
    if not PRINTABLE.match(bearer):
        raise ClientError("unauthorized", "A key is printable ASCII without spaces.")
    claims = shown_claims(bearer)
    return Client(service, bearer) if claims is None else Client(service, bearer, claims.sub, claims.reaches_user)


WRONG_KEY = (
    "voicemem does not accept the key of this connection: it is missing, unknown, revoked or has expired. "
    "Trying again will not help; ask the person who set up this connection for a valid key."
)
AWAY = (
    "The memory service did not answer ({reason}), so nothing is known from it now. "
    "Go on without the memory, say so if it matters, and try again in a minute."
)
NOT_WRITTEN = (
    "The memory service did not answer ({reason}), so it is not certain whether this was done. "
    "Do not claim that it was; try again in a minute, which does no harm."
)
ADVICE: Mapping[str, str] = MappingProxyType(
    {
        "forbidden": "The key of this connection may not do that; ask the person who set it up.",
        "unknown_session": "recent_calls lists the ids of a user's calls.",
        "session_erased": "Nothing of it can be read any more.",
        "unknown_memory": "Only what was noted or given can be removed, by the id that search_memories gave; what was "
        "heard (kind message) belongs to its call.",
        "rate_limited": "Wait ten seconds, then try again.",
        "quota_exceeded": "The quota of this project is used up; trying again now will not help.",
        "store_unavailable": "Try again in a minute.",
        "draining": "The service is being restarted; try again in a minute.",
        "session_set_aside": "This session cannot be read until an operator has looked at it.",
    }
)
"""By code of the error, what to do, besides the service's own sentence."""


def sentence_of(error: ClientError, *, writes: bool = False) -> str:
    """Return an error of a request as sentences; `writes` if the request was to change something."""
    if isinstance(error, Unreachable):
        return (NOT_WRITTEN if writes else AWAY).format(reason=error.reason.rstrip("."))
    if error.code == "unauthorized":
        return WRONG_KEY
    if error.code == "token_expired":
        return "The session token of this connection has expired. Trying again will not help; a newer one is needed."
    detail = error.detail if error.detail.endswith((".", "!", "?")) else f"{error.detail}."
    return f"{detail} {ADVICE.get(error.code, '')}".rstrip()
