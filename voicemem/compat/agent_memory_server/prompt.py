"""A prompt with what is known: the summary, the messages, the memories that fit the query, and the query."""

from __future__ import annotations

from typing import Annotated, Literal

from msgspec import Meta, Struct, structs

from voicemem.compat.agent_memory_server.finding import RecordFinder, RecordSearch, TextFilter
from voicemem.compat.agent_memory_server.records import RecordView
from voicemem.compat.agent_memory_server.sessions import Given, checked_owner
from voicemem.compat.agent_memory_server.working_memory import WorkingMemories, window_of
from voicemem.errors import Refused
from voicemem.protocol.types import matching

SUMMARY = "## A summary of the conversation so far:\n"
MEMORIES = "## Long term memories related to the user's query\n "
NO_MEMORIES = "No relevant long-term memories found."
MEMORIES_SHOWN = 20
"""Where a prompt asks for long-term memories and says nothing else."""
Digits = Annotated[str, matching(r"^[1-9][0-9]{0,9}\Z", "A number in a text is 1 to 10 digits without a leading 0")]
"""The client sends the size of a window as a text."""


class PromptSession(Struct, frozen=True):
    """The session whose messages come first."""

    session_id: Given
    namespace: Given | None = None
    user_id: Given | None = None
    model_name: str | None = None
    context_window_max: Annotated[int, Meta(ge=1)] | Digits | None = None


class PromptRequest(Struct, frozen=True):
    """What to ask an LLM, and what it should know: a session, memories, or both."""

    query: Annotated[str, Meta(max_length=100_000)]
    session: PromptSession | None = None
    long_term_search: RecordSearch | bool | None = None


class TextContent(Struct, frozen=True):
    """A text, as MCP has it."""

    text: str
    type: Literal["text"] = "text"


class PromptMessage(Struct, frozen=True):
    """A message of the prompt."""

    role: Literal["system", "user", "assistant"]
    content: TextContent


class Prompt(Struct, frozen=True):
    """The messages for an LLM, and the memories in them."""

    messages: list[PromptMessage]
    long_term_memories: list[RecordView] | None


async def make_prompt(working: WorkingMemories, records: RecordFinder, project: str, request: PromptRequest) -> Prompt:
    """The prompt; no LLM is asked for it. Raises `Refused` (`invalid_field`)."""
    session = request.session
    if session is None and not request.long_term_search:
        raise Refused("invalid_field", "Either session or long_term_search must be provided.")
    messages: list[PromptMessage] = []
    if session is not None:
        owner = checked_owner(session.session_id, session.namespace, session.user_id)
        size = session.context_window_max
        try:
            view = await working.read(
                project, owner, window_of(session.model_name, None if size is None else int(size))
            )
            messages += [message("system", SUMMARY + view.context)] if view.context else []
            messages += [message("user" if one.role == "user" else "assistant", one.content) for one in view.messages]
        except Refused as refused:
            if refused.code != "unknown_session":
                raise
    found: list[RecordView] = []
    if request.long_term_search:
        found = (await records.search(project, search_of(request))).memories
        lines = "\n".join(f"- {one.text} (ID: {one.id})" for one in found)
        messages.append(message("system", MEMORIES + (lines or NO_MEMORIES)))
    messages.append(message("user", request.query))
    return Prompt(messages, found or None)


def search_of(request: PromptRequest) -> RecordSearch:
    """The search for the memories of a prompt. What the session shows already is not searched."""
    search, session = request.long_term_search, request.session
    user_id = None if session is None or not session.user_id else TextFilter(eq=session.user_id)
    if isinstance(search, RecordSearch):
        return structs.replace(search, text=request.query, user_id=search.user_id or user_id)
    others = None if session is None else TextFilter(ne=session.session_id)
    namespace = None if session is None or not session.namespace else TextFilter(eq=session.namespace)
    return RecordSearch(
        text=request.query, session_id=others, user_id=user_id, namespace=namespace, limit=MEMORIES_SHOWN
    )


def message(role: Literal["system", "user", "assistant"], text: str) -> PromptMessage:
    return PromptMessage(role, TextContent(text))
