"""What clients may attach to a conversation: the history of a call, and the memories of a user."""

from __future__ import annotations

import re
from urllib.parse import quote, unquote

import msgspec
from mcp_types import Resource, ResourceTemplate

from voicemem.client.errors import ClientError
from voicemem.mcp import answers
from voicemem.mcp import arguments as taken
from voicemem.mcp.caller import Caller

JSON = "application/json"
HISTORY = re.compile(r"voicemem://sessions/([^/]+)/history\Z")
MEMORIES = re.compile(r"voicemem://users/([^/]+)/memories\Z")
HISTORY_TITLE, MEMORIES_TITLE = "What was heard on a call", "What is remembered of a user"
LAST = 500
PAGE = 100


class UnknownResource(Exception):
    """There is no resource with this address, for this caller."""


def templates_of(caller: Caller) -> list[ResourceTemplate]:
    """The forms of addresses; none for a token, which has fixed them."""
    if caller.reach != "project":
        return []
    return [
        ResourceTemplate(
            name="history", title=HISTORY_TITLE, uri_template="voicemem://sessions/{id}/history", mime_type=JSON
        ),
        ResourceTemplate(
            name="memories", title=MEMORIES_TITLE, uri_template="voicemem://users/{id}/memories", mime_type=JSON
        ),
    ]


async def resources_of(caller: Caller) -> list[Resource]:
    """The resources of a session token; with a key there are too many to list. Raises `ClientError`."""
    if caller.session_id is None:
        return []
    address = f"voicemem://sessions/{caller.session_id}/history"
    found = [Resource(name="history", title=HISTORY_TITLE, uri=address, mime_type=JSON)]
    user_id = await user_of(caller) if caller.reach == "user" else None
    if user_id is not None:
        address = f"voicemem://users/{quote(user_id, safe='')}/memories"
        found.append(Resource(name="memories", title=MEMORIES_TITLE, uri=address, mime_type=JSON))
    return found


async def user_of(caller: Caller) -> str | None:
    """The user of a token's session."""
    session = await caller.get(f"/v1/sessions/{caller.session_id}")
    user_id = session["config"].get("user_id")
    return None if user_id is None else str(user_id)


async def read_resource(caller: Caller, uri: str) -> str:
    """The JSON of a resource. Raises `UnknownResource`, `ClientError`."""
    if found := HISTORY.match(uri):
        session_id = unquote(found[1])
        if caller.session_id not in (None, session_id):
            raise UnknownResource("This session token opens another session; resources/list has its address.")
        history = await answers.get_history(caller, taken.History(session_id=session_id, last=LAST))
        return msgspec.json.encode(history).decode()
    if found := MEMORIES.match(uri):
        user_id = unquote(found[1])
        if caller.reach == "session" or (caller.reach == "user" and user_id != await user_of(caller)):
            raise UnknownResource("This session token does not reach the memories of this user.")
        return msgspec.json.encode(await memories_of(caller, user_id)).decode()
    raise UnknownResource(
        "There is no such resource; there are voicemem://sessions/{id}/history and voicemem://users/{id}/memories."
    )


async def memories_of(caller: Caller, user_id: str) -> taken.FoundMemories:
    """The newest memories of a user."""
    if user_id in (".", ".."):
        raise ClientError("invalid_field", "There is no user with this id.")
    page = await caller.get(f"/v1/users/{quote(user_id, safe='')}/memories", {"limit": str(PAGE)})
    shown = [answers.shown_memory(memory) for memory in page["memories"]]
    return taken.FoundMemories(shown, True, page["next_cursor"] is not None)
