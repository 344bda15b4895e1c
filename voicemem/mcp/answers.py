"""What each tool does: requests to the REST API, and their answers in the form that an LLM reads best."""

from __future__ import annotations

from typing import Any
from urllib.parse import quote

from msgspec import UNSET

from voicemem.client.errors import ClientError
from voicemem.client.transport.rest import session_path
from voicemem.mcp import arguments as taken
from voicemem.mcp.caller import Caller
from voicemem.mcp.times import shown_time, unix_ms
from voicemem.protocol.types import JsonObject

MAX_SHOWN = 200_000
"""Characters of messages in one answer; what an LLM reads has to fit into its context."""
LINE = 240
"""Characters of a line about a call."""
SUMMARIES = 200
SOURCE = "tool"


async def search_memories(caller: Caller, given: taken.SearchWithin) -> taken.FoundMemories:
    """Find what was said on earlier calls."""
    body: JsonObject = {"query": given.query, "limit": given.limit}
    if given.kinds is not UNSET:
        body["kinds"] = given.kinds
    if given.since is not UNSET:
        body["since"] = moment("since", given.since)
    if given.until is not UNSET:
        body["until"] = moment("until", given.until, end=True)
    if isinstance(given, taken.Search):
        body["user_id"] = given.user_id
    found = await caller.send("POST", "/v1/memories/search", body)
    shown = [shown_memory(memory) for memory in found["memories"]]
    return taken.FoundMemories(shown, found["complete"], found["next_cursor"] is not None)


def moment(name: str, text: str, *, end: bool = False) -> int:
    """The Unix ms of an argument. Raises `ClientError` for what is no date."""
    try:
        return unix_ms(text, end=end)
    except (ValueError, OverflowError):
        raise ClientError(
            "invalid_field", f"`{name}` must be a date that exists, such as 2026-05-03 or 2026-05-03T14:00:00Z."
        ) from None


def shown_memory(memory: JsonObject) -> taken.FoundMemory:
    happened = memory.get("event_at") or memory.get("said_at") or memory.get("created_at")
    heard = [taken.HeardIn(source["session_id"], list(source["turn_ids"])) for source in memory.get("from") or ()]
    when = happened if isinstance(happened, str) else shown_time(happened)
    return taken.FoundMemory(memory["id"], memory["kind"], memory["text"], when, heard, memory.get("role"))


async def get_context(caller: Caller, given: taken.ContextWithin) -> taken.NextContext:
    """The messages of the next LLM request of a call."""
    session_id = session_of(caller, given)
    query = {"style": "openai"} | ({} if given.max_tokens is UNSET else {"max_tokens": str(given.max_tokens)})
    body = await caller.get(session_path(session_id, "/context"), query)
    return taken.NextContext(session_id, body["messages"])


async def get_history(caller: Caller, given: taken.HistoryWithin) -> taken.HeardHistory:
    """What was heard on a call, the newest messages, without those that were forgotten."""
    session_id = session_of(caller, given)
    body = await caller.get(session_path(session_id, "/history"), {"limit": str(given.last + 1)})
    forgotten = await forgotten_of(caller, session_id)
    known = [message for message in body["contents"] if place_of(message) not in forgotten]
    wanted = known[-given.last :]
    messages = newest_that_fit([shown_message(message) for message in wanted])
    return taken.HeardHistory(
        session_id,
        body["state"],
        shown_time(body["started_at"]),
        shown_time(body["ended_at"]),
        messages,
        len(messages) < len(known),
    )


async def forgotten_of(caller: Caller, session_id: str) -> set[tuple[Any, ...]]:
    """The messages that the call was told to forget: a history has them still, and says why a context has not."""
    if not (await caller.get(session_path(session_id, "/stats"), {}))["forgotten"]:
        return set()
    body = await caller.get(session_path(session_id, "/context"), {"peek": "true", "usage": "true"})
    return {place_of(message) for message in body["left_out"] if message["reason"] == "forgotten"}


def place_of(message: JsonObject) -> tuple[Any, ...]:
    return message["turn_id"], message["role"], message["timestamp"]


def shown_message(message: JsonObject) -> taken.HeardMessage:
    interrupted = bool((message.get("metadata") or {}).get("interrupted"))
    when = shown_time(message.get("timestamp"))
    return taken.HeardMessage(message["turn_id"], message["role"], message["content"], when, interrupted)


def newest_that_fit(messages: list[taken.HeardMessage]) -> list[taken.HeardMessage]:
    """The newest messages of a size that an LLM can read; at least one."""
    left = MAX_SHOWN
    for index in range(len(messages) - 1, -1, -1):
        left -= len(messages[index].text)
        if left < 0:
            return messages[min(index + 1, len(messages) - 1) :]
    return messages


async def remember(caller: Caller, given: taken.RememberWithin) -> taken.Remembered:
    """Store a memory."""
    body: JsonObject = {"text": given.text, "kind": given.kind, "source": SOURCE}
    if isinstance(given, taken.Remember):
        body["user_id"] = given.user_id
    (memory,) = (await caller.send("POST", "/v1/memories", body))["memories"]
    return taken.Remembered(memory["id"])


async def forget(caller: Caller, given: taken.Forget) -> taken.Forgotten:
    """Remove a memory."""
    if given.memory_id in (".", ".."):
        raise ClientError("unknown_memory", "There is no memory with this id.")
    await caller.send("DELETE", f"/v1/memories/{quote(given.memory_id, safe='')}")
    return taken.Forgotten(given.memory_id)


async def recent_calls(caller: Caller, given: taken.CallsWithin) -> taken.RecentCalls:
    """The newest calls of a user."""
    query = {"fields": "overview", "limit": str(given.limit)}
    if isinstance(given, taken.Calls):
        query["user_id"] = given.user_id
    body = await caller.get("/v1/sessions", query)
    rows = body["sessions"]
    summaries = await summaries_of(caller, rows[0]["user_id"]) if rows else {}
    shown = [shown_call(row, summaries.get(row["session_id"])) for row in rows]
    return taken.RecentCalls(shown, body["next_cursor"] is not None)


async def summaries_of(caller: Caller, user_id: str) -> dict[str, str]:
    """The newest summaries that are remembered of a user's calls, by session."""
    if user_id in (".", ".."):
        return {}
    query = {"kind": "summary", "limit": str(SUMMARIES)}
    page = await caller.get(f"/v1/users/{quote(user_id, safe='')}/memories", query)
    return {memory["session_id"]: memory["text"] for memory in reversed(page["memories"]) if memory["session_id"]}


def shown_call(row: JsonObject, summary: str | None) -> taken.Call:
    times = shown_time(row["started_at"]), shown_time(row["ended_at"])
    return taken.Call(row["session_id"], row["state"], *times, one_line(summary or line_about(row)))


def line_about(row: JsonObject) -> str:
    """What is known of a call without reading it."""
    parts = [row["name"]] if row["name"] else []
    figures = row["figures"]
    if figures is not None:
        parts.append(f"{figures['turns']} turn{'s' * (figures['turns'] != 1)}")
        last = figures["last"]
        if last is not None:
            parts.append(f"last heard from the {last['role']}: {last['text']}")
    return "; ".join(parts) or "nothing is known of it yet"


def one_line(text: str) -> str:
    """The beginning of a text, on one line."""
    line = " ".join(text.split())
    return line if len(line) <= LINE else f"{line[: LINE - 1]}…"


def session_of(caller: Caller, given: Any) -> str:
    """The session that a call of a tool is about: the token's, or the one that it names."""
    session_id = caller.session_id or given.session_id
    if session_id in (".", ".."):
        raise ClientError("unknown_session", "There is no session with this id.")
    return str(session_id)
