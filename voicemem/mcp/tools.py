"""The six tools: their names, what they say of themselves, and what of them a caller has."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import msgspec
from mcp_types import Tool as ToolDescription
from mcp_types import ToolAnnotations
from msgspec import Struct

from voicemem.mcp import answers
from voicemem.mcp import arguments as taken
from voicemem.mcp.caller import Caller
from voicemem.protocol.types import JsonObject


class Tool(NamedTuple):
    """A tool. `within` are its arguments for a session token, which has fixed user and session."""

    name: str
    title: str
    description: str
    arguments: type[Struct]
    within: type[Struct]
    answer: type[Struct]
    run: Callable[[Caller, Any], Awaitable[Struct]]
    writes: bool = False
    destroys: bool = False
    needs_user: bool = False
    """Whether a token has it only if it reaches what is remembered of its user."""

    def kind_for(self, caller: Caller) -> type[Struct]:
        """The arguments that this caller gives."""
        return self.arguments if caller.reach == "project" else self.within


TOOLS = (
    Tool(
        "search_memories",
        "Search memories",
        "Find what a user said or was told on earlier calls, and what was noted from them, the best first. Use it "
        "before you answer anything that may have come up before. `heard_in` says in which call it was heard.",
        taken.Search,
        taken.SearchWithin,
        taken.FoundMemories,
        answers.search_memories,
    ),
    Tool(
        "get_context",
        "Get the context of a call",
        "The messages for the next LLM request of a call: system messages, working memory, and what was heard.",
        taken.Context,
        taken.ContextWithin,
        taken.NextContext,
        answers.get_context,
    ),
    Tool(
        "get_history",
        "Get the history of a call",
        "What was heard on a call, message by message, the newest last. Of a reply that was interrupted it has what "
        "the caller had heard by then. What was forgotten is left out.",
        taken.History,
        taken.HistoryWithin,
        taken.HeardHistory,
        answers.get_history,
    ),
    Tool(
        "remember",
        "Remember",
        "Store one statement about a user for later calls, when somebody asks for it or it will clearly matter again. "
        "Search first whether it is known already. Never store card numbers, passwords or one-time codes.",
        taken.Remember,
        taken.RememberWithin,
        taken.Remembered,
        answers.remember,
        writes=True,
    ),
    Tool(
        "forget",
        "Forget",
        "Remove one memory for good, by the id that search_memories gave. Use it only when the user wants it gone. "
        "What was heard (kind message) belongs to its call and cannot be removed alone.",
        taken.Forget,
        taken.Forget,
        taken.Forgotten,
        answers.forget,
        writes=True,
        destroys=True,
    ),
    Tool(
        "recent_calls",
        "List recent calls",
        "The newest calls of a user: their ids, when they were, and a line about each.",
        taken.Calls,
        taken.CallsWithin,
        taken.RecentCalls,
        answers.recent_calls,
        needs_user=True,
    ),
)


def tools_of(caller: Caller) -> list[Tool]:
    """The tools that a caller has."""
    return [tool for tool in TOOLS if not tool.needs_user or caller.reach != "session"]


def find_tool(caller: Caller, name: str) -> Tool | None:
    """The tool with this name, if the caller has it."""
    return next((tool for tool in tools_of(caller) if tool.name == name), None)


def describe_tool(tool: Tool, caller: Caller) -> ToolDescription:
    """A tool as clients list it."""
    return ToolDescription(
        name=tool.name,
        title=tool.title,
        description=tool.description,
        input_schema=schema_of(tool.kind_for(caller)),
        output_schema=schema_of(tool.answer),
        annotations=ToolAnnotations(
            title=tool.title,
            read_only_hint=not tool.writes,
            destructive_hint=tool.destroys,
            idempotent_hint=True,
            open_world_hint=False,
        ),
    )


def schema_of(kind: type[Struct]) -> JsonObject:
    """The JSON Schema of a struct, with its own fields at the top."""
    (_,), components = msgspec.json.schema_components([kind], ref_template="#/$defs/{name}")
    schema: JsonObject = components.pop(kind.__name__)
    schema.pop("title", None)
    return schema | ({"$defs": components} if components else {})
