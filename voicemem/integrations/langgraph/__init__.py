"""LangGraph: a middleware of LangChain's agents, with which the model gets what was heard, and the run is recorded.

    from voicemem.integrations import langgraph

    memory = langgraph.middleware(client)
    agent = create_agent(model, tools, middleware=[memory], checkpointer=InMemorySaver())
    await agent.ainvoke({"messages": [("user", text)]}, {"configurable": {"thread_id": "call-1"}})
    memory.call("call-1").interrupted(heard_text="In Oslo it ")

See docs/langgraph.md. LangChain is imported only here and only when it is used (`voicemem-core[langgraph]`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from voicemem.client import Client, SyncClient
from voicemem.integrations.call import Call
from voicemem.integrations.langgraph.hooks import middleware_type
from voicemem.integrations.langgraph.messages import chat_messages
from voicemem.integrations.langgraph.threads import ThreadMemory
from voicemem.integrations.sessions import Sessions

if TYPE_CHECKING:
    from voicemem.integrations.langgraph.hooks import VoicememMiddleware

__all__ = ["Call", "chat_messages", "middleware", "thread_id"]

Kind = Literal["user", "replies", "tools"]


def thread_id(config: Mapping[str, Any]) -> str | None:
    """The thread id of a run's configuration."""
    found = config.get("configurable", {}).get("thread_id")
    return None if found is None else str(found)


def middleware(
    client: Client | SyncClient,
    *,
    session_id: Callable[[Mapping[str, Any]], str | None] = thread_id,
    record: Collection[Kind] = ("user", "replies", "tools"),
    config: Mapping[str, Any] | None = None,
    producer: str = "langgraph",
) -> VoicememMiddleware:
    """A middleware for `create_agent(…, middleware=[…])`; one serves any number of threads at once.

    `session_id` finds a run's session in its configuration; a run without one is not remembered. Leave out of `record`
    what something else records on the same session, such as a recogniser's transcripts ("user"), or the replies that a
    voice framework plays ("replies"). `config` is that of a new session, such as `{"user_id": "ann", "memory_from":
    {"sessions": 3}}`, which brings earlier calls along. Agents that run without asyncio need a `SyncClient`.

    Nothing raises into a run, and only the read before each model call holds it up, for at most the client's
    `context_timeout_s`. Raises `ImportError` without LangChain.
    """
    if find_spec("langchain") is None:
        raise ImportError("LangChain is not installed: pip install 'voicemem-core[langgraph]'")
    kinds = frozenset(record)
    threads = Sessions(client, lambda session: ThreadMemory(session, kinds), config, producer)
    return middleware_type()(threads, session_id, kinds)
