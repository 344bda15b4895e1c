"""The session of a request whose path names none: stacks that host agents use one URL for all their calls."""

import asyncio
import re
from typing import Any, NamedTuple
from weakref import WeakValueDictionary

from voicemem.dialects.caller_fields import Caller, CallerFields
from voicemem.dialects.dialect import session_id_of
from voicemem.errors import Refused
from voicemem.llm.endpoints import LlmEndpoints
from voicemem.protocol.types import SESSION_ID_PATTERN, SESSION_ID_RULE, JsonObject
from voicemem.sessions.lifecycle import Sessions
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream

SESSION_HEADER = "X-Voicemem-Session"


class HostedVendor(NamedTuple):
    """The fields in which a vendor's requests to a custom LLM name the call and its caller."""

    dialect: str
    holder: str
    name: str
    caller: CallerFields


VENDORS = (
    HostedVendor(
        "vapi",
        *("call", "id"),
        CallerFields("customer/externalId call/customer/externalId", "customer/number call/customer/number"),
    ),
    HostedVendor("elevenlabs-agents", "elevenlabs_extra_body", "session_id", CallerFields("user_id")),
    HostedVendor(
        "telnyx", "extra_metadata", "session_id", CallerFields(number="extra_metadata/telnyx_end_user_target")
    ),
)
MAX_USER_CHARACTERS = 128
NO_SESSION = (
    f"The request names no session. Send one of these: the header {SESSION_HEADER}, `metadata.session_id`, Vapi's"
    " `call.id`, ElevenLabs' `elevenlabs_extra_body.session_id`, Telnyx' `extra_metadata.session_id`, or `user`, whose"
    " newest running session it then is."
)


class SessionAddress(NamedTuple):
    """The session that a request names; at least one of the fields is set."""

    session_id: str | None
    user_id: str | None


def read_address(header: str | None, payload: JsonObject, own_id: str | None = None) -> SessionAddress:
    """Read the session that a request names; `own_id` is the session of its token.

    Raises `Refused` (`invalid_field`, and `missing_field` if it names neither session nor user).
    """
    user_id = read_text(payload, "user", "user")
    if user_id is not None and len(user_id) > MAX_USER_CHARACTERS:
        raise Refused("invalid_field", f"A user id is 1 to {MAX_USER_CHARACTERS} characters: `user`.")
    named = header or read_text(payload.get("metadata"), "session_id", "metadata.session_id")
    if named is not None and not re.match(SESSION_ID_PATTERN, named):
        place = f"the header {SESSION_HEADER}" if header else "`metadata.session_id`"
        raise Refused("invalid_field", f"A session id, also in {place}, is {SESSION_ID_RULE}")
    if named is None:
        said = (read_text(payload.get(one.holder), one.name, f"{one.holder}.{one.name}") for one in VENDORS)
        named = next((session_id_of(one) for one in said if one is not None), own_id)
    if named is None and user_id is None:
        raise Refused("missing_field", NO_SESSION)
    return SessionAddress(named, user_id)


def read_caller(payload: JsonObject) -> tuple[str, Caller]:
    """Read the dialect of a vendor, and the caller from its fields."""
    vendor = next((one for one in VENDORS if isinstance(payload.get(one.holder), dict)), None)
    return ("", Caller()) if vendor is None else (vendor.dialect, vendor.caller.read(payload) or Caller())


def read_text(holder: Any, name: str, place: str) -> str | None:
    """Return the text of a field; None if it is missing or empty. Raises `Refused` (`invalid_field`)."""
    value = holder.get(name) if isinstance(holder, dict) else None
    if value is None or value == "":
        return None
    if not isinstance(value, str):
        raise Refused("invalid_field", f"An id is a text: `{place}`.")
    return value


class SessionLocator:
    """Finds the sessions of requests, and creates those that are new."""

    def __init__(self, sessions: Sessions, endpoints: LlmEndpoints) -> None:
        self.sessions = sessions
        self.endpoints = endpoints
        self.locks: WeakValueDictionary[tuple[str, str], asyncio.Lock] = WeakValueDictionary()
        """By project and user; held while a user's session is looked up, so that two requests begin one."""

    async def locate(self, project: str, address: SessionAddress, key_id: str | None, may_create: bool) -> Stream:
        """Return a request's session. Raises `Refused` (`unknown_session`, `session_erased`, `llm_not_configured`…)."""
        if address.session_id is not None:
            return await self.find(project, address.session_id, address.user_id, key_id, may_create)
        assert address.user_id is not None
        lock = self.locks.setdefault((project, address.user_id), asyncio.Lock())
        async with lock:
            conditions = SessionFilter(project=project, user_id=address.user_id, state="running", limit=1)
            running, _ = await self.sessions.store.journal.list_page(conditions)
            if running:
                return running[0]
            return await self.find(project, self.sessions.new_id(), address.user_id, key_id, may_create)

    async def find(
        self, project: str, session_id: str, user_id: str | None, key_id: str | None, may_create: bool
    ) -> Stream:
        if not may_create:
            return await self.sessions.store.journal.get_session(project, session_id)
        if self.endpoints.default is None:  # a session must not begin with a request that no LLM can answer
            stream = await self.sessions.store.journal.find_session(project, session_id)
            if stream is None:
                raise Refused("llm_not_configured")
        return await self.sessions.find_or_create(project, session_id, user_id, key_id)
