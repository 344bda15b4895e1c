"""The six tools for LLMs: their requests to the REST API, their results, and their descriptions."""

from collections.abc import Awaitable, Callable
from datetime import UTC, datetime, timedelta
from typing import Any, NamedTuple, get_type_hints

import msgspec
from mcp_types import Tool as ToolDescription
from mcp_types import ToolAnnotations
from msgspec import UNSET, Struct

from voicemem.client.errors import ClientError
from voicemem.client.memories import memory_path
from voicemem.client.transport.rest import session_path, user_path
from voicemem.mcp import schemas
from voicemem.mcp.client import Client
from voicemem.protocol.types import JsonObject

MAX_SHOWN = 200_000
"""The most characters of messages in one answer, which must fit in an LLM's context."""
LINE = 240


async def search_memories(client: Client, arguments: schemas.SearchWithin) -> schemas.FoundMemories:
    """Find what a user said or was told on earlier calls, and what was noted from them, the best first. Use it
    before you answer anything that may have come up before. `heard_in` says in which call it was heard.
    """
    body: JsonObject = {"query": arguments.query, "limit": arguments.limit}
    if arguments.kinds is not UNSET:
        body["kinds"] = arguments.kinds
    if arguments.since is not UNSET:
        body["since"] = moment("since", arguments.since)
    if arguments.until is not UNSET:
        body["until"] = moment("until", arguments.until, end=True)
    if isinstance(arguments, schemas.Search):
        body["user_id"] = arguments.user_id
    page = await client.send("POST", "/v1/memories/search", body)
    shown = [shown_memory(memory) for memory in page["memories"]]
    return schemas.FoundMemories(shown, page["complete"], page["next_cursor"] is not None)


def moment(name: str, text: str, *, end: bool = False) -> int:
    """Return the Unix ms of an argument. Raises `ClientError` if it is no date."""
    try:
        return parse_time_ms(text, end=end)
    except (ValueError, OverflowError):
        raise ClientError(
            "invalid_field", f"`{name}` must be a date that exists, such as 2026-05-03 or 2026-05-03T14:00:00Z."
        ) from None


def shown_memory(memory: JsonObject) -> schemas.FoundMemory:
    happened = memory.get("event_at") or memory.get("said_at") or memory.get("created_at")
    heard = [schemas.HeardIn(source["session_id"], list(source["turn_ids"])) for source in memory.get("from") or ()]
    when = happened if isinstance(happened, str) else shown_time(happened)
    return schemas.FoundMemory(memory["id"], memory["kind"], memory["text"], when, heard, memory.get("role"))


async def get_context(client: Client, arguments: schemas.ContextWithin) -> schemas.NextContext:
    """The messages for the next LLM request of a call: system messages, working memory, and what was heard."""
    session_id = session_of(client, arguments)
    query = {"style": "openai"} | ({} if arguments.max_tokens is UNSET else {"max_tokens": str(arguments.max_tokens)})
    body = await client.get(session_path(session_id, "/context"), query)
    return schemas.NextContext(session_id, body["messages"])


async def get_history(client: Client, arguments: schemas.HistoryWithin) -> schemas.HeardHistory:
    """Read what was heard on a call, message by message, the newest last. Of a reply that was interrupted it has what
    the caller had heard by then. What was forgotten is left out.
    """
    session_id = session_of(client, arguments)
    body = await client.get(session_path(session_id, "/history"), {"limit": str(arguments.last + 1)})
    forgotten: set[tuple[Any, ...]] = set()
    if (await client.get(session_path(session_id, "/stats")))["forgotten"]:  # which a history still has
        context = await client.get(session_path(session_id, "/context"), {"peek": "true", "usage": "true"})
        forgotten = {place_of(message) for message in context["left_out"] if message["reason"] == "forgotten"}
    known = [message for message in body["contents"] if place_of(message) not in forgotten]
    shown = []
    for one in known[-arguments.last :]:
        interrupted = bool((one.get("metadata") or {}).get("interrupted"))
        when = shown_time(one.get("timestamp"))
        shown.append(schemas.HeardMessage(one["turn_id"], one["role"], one["content"], when, interrupted))
    messages = newest_that_fit(shown)
    times = shown_time(body["started_at"]), shown_time(body["ended_at"])
    return schemas.HeardHistory(session_id, body["state"], *times, messages, len(messages) < len(known))


def place_of(message: JsonObject) -> tuple[Any, ...]:
    return message["turn_id"], message["role"], message["timestamp"]


def newest_that_fit(messages: list[schemas.HeardMessage]) -> list[schemas.HeardMessage]:
    """Return the newest messages that fit `MAX_SHOWN`; at least one."""
    left = MAX_SHOWN
    for index in range(len(messages) - 1, -1, -1):
        left -= len(messages[index].text)
        if left < 0:
            return messages[min(index + 1, len(messages) - 1) :]
    return messages


async def remember(client: Client, arguments: schemas.RememberWithin) -> schemas.Remembered:
    """Store one statement about a user for later calls, when someone asks for it or it will clearly matter again.
    Search first whether it is known already. Never store card numbers, passwords or one-time codes.
    """
    body: JsonObject = {"text": arguments.text, "kind": arguments.kind, "source": "tool"}
    if isinstance(arguments, schemas.Remember):
        body["user_id"] = arguments.user_id
    (memory,) = (await client.send("POST", "/v1/memories", body))["memories"]
    return schemas.Remembered(memory["id"])


async def forget(client: Client, arguments: schemas.Forget) -> schemas.Forgotten:
    """Remove one memory for good, by the id that search_memories gave. Use it only when the user wants it gone.
    What was heard (kind message) belongs to its call and cannot be removed alone.
    """
    if arguments.memory_id in (".", ".."):
        raise ClientError("unknown_memory", "There is no memory with this id.")
    await client.send("DELETE", memory_path(arguments.memory_id))
    return schemas.Forgotten(arguments.memory_id)


async def recent_calls(client: Client, arguments: schemas.CallsWithin) -> schemas.RecentCalls:
    """The newest calls of a user: their ids, when they were, and a line about each."""
    query = {"fields": "overview", "limit": str(arguments.limit)}
    if isinstance(arguments, schemas.Calls):
        query["user_id"] = arguments.user_id
    body = await client.get("/v1/sessions", query)
    rows = body["sessions"]
    summaries: dict[str, str] = {}
    if rows and rows[0]["user_id"] not in (".", ".."):
        page = await client.get(user_path(rows[0]["user_id"], "/memories"), {"kind": "summary", "limit": "200"})
        summaries = {one["session_id"]: one["text"] for one in reversed(page["memories"]) if one["session_id"]}
    shown = []
    for row in rows:
        line = " ".join((summaries.get(row["session_id"]) or line_about(row)).split())
        line = line if len(line) <= LINE else f"{line[: LINE - 1]}…"
        times = shown_time(row["started_at"]), shown_time(row["ended_at"])
        shown.append(schemas.Call(row["session_id"], row["state"], *times, line))
    return schemas.RecentCalls(shown, body["next_cursor"] is not None)


def line_about(row: JsonObject) -> str:
    parts = [row["name"]] if row["name"] else []
    figures = row["figures"]
    if figures is not None:
        parts.append(f"{figures['turns']} turn{'s' * (figures['turns'] != 1)}")
        last = figures["last"]
        if last is not None:
            parts.append(f"last heard from the {last['role']}: {last['text']}")
    return "; ".join(parts) or "nothing is known of it yet"


def session_of(client: Client, arguments: Any) -> str:
    """Return the session of a tool call: the token's, or the one that it names."""
    session_id = client.session_id or arguments.session_id
    if session_id in (".", ".."):
        raise ClientError("unknown_session", "There is no session with this id.")
    return str(session_id)


# Times, as an LLM writes and reads them


def shown_time(unix_ms: Any) -> str | None:
    """Return a moment in UTC, without milliseconds; None for a time outside the calendar."""
    if not isinstance(unix_ms, int | float):
        return None
    try:
        return datetime.fromtimestamp(unix_ms // 1000, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    except (OverflowError, ValueError, OSError):
        return None


def parse_time_ms(text: str, *, end: bool = False) -> int:
    """Return the Unix ms of a day or a moment in ISO 8601, in UTC unless it has an offset.

    The `end` of a day is the beginning of the next. Raises `ValueError` and `OverflowError`.
    """
    text = text.strip()
    moment = datetime.fromisoformat(text)
    if end and len(text) <= len("2026-05-03"):
        moment += timedelta(days=1)
    return int((moment if moment.tzinfo else moment.replace(tzinfo=UTC)).timestamp() * 1000)


# The tools as clients list them


class Tool(NamedTuple):
    """A tool. `within` are its arguments for a session token, which fixes the user and the session."""

    run: Callable[[Client, Any], Awaitable[Struct]]
    title: str
    arguments: type[Struct]
    within: type[Struct]
    writes: bool = False
    destroys: bool = False
    needs_user: bool = False
    """True if a token has it only if it reaches the memories of its user."""

    @property
    def name(self) -> str:
        return self.run.__name__

    def kind_for(self, client: Client) -> type[Struct]:
        return self.arguments if client.reach == "project" else self.within


TOOLS = (
    Tool(search_memories, "Search memories", schemas.Search, schemas.SearchWithin),
    Tool(get_context, "Get the context of a call", schemas.Context, schemas.ContextWithin),
    Tool(get_history, "Get the history of a call", schemas.History, schemas.HistoryWithin),
    Tool(remember, "Remember", schemas.Remember, schemas.RememberWithin, writes=True),
    Tool(forget, "Forget", schemas.Forget, schemas.Forget, writes=True, destroys=True),
    Tool(recent_calls, "List recent calls", schemas.Calls, schemas.CallsWithin, needs_user=True),
)
"""The tools. LLMs read the docstring of a tool's function."""


def tools_of(client: Client) -> list[Tool]:
    return [tool for tool in TOOLS if not tool.needs_user or client.reach != "session"]


def find_tool(client: Client, name: str) -> Tool | None:
    return next((tool for tool in tools_of(client) if tool.name == name), None)


def describe_tool(tool: Tool, client: Client) -> ToolDescription:
    return ToolDescription(
        name=tool.name,
        title=tool.title,
        description=" ".join((tool.run.__doc__ or "").split()),
        input_schema=schema_of(tool.kind_for(client)),
        output_schema=schema_of(get_type_hints(tool.run)["return"]),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=not tool.writes,
            destructive_hint=tool.destroys,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def schema_of(kind: type[Struct]) -> JsonObject:
    """Return the JSON Schema of a struct, with its own fields at the top."""
    (_,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema: JsonObject = components.pop(kind.__name__)
    schema.pop("title", None)
    return schema | ({"$defs": components} if components else {})
