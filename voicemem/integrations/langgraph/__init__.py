"""LangGraph: a middleware for LangChain's agents that gives the model the heard memory, and records the run.

A store gives graphs the long-term memories of users.

    from voicemem.integrations import langgraph

    memory = langgraph.middleware(client)
    store = langgraph.store(client)
    agent = create_agent(model, tools, middleware=[memory], checkpointer=InMemorySaver(), store=store)
    await agent.ainvoke({"messages": [("user", text)]}, {"configurable": {"thread_id": "call-1"}})
    memory.call("call-1").interrupted(heard_text="In Oslo it ")

See docs/langgraph.md. LangChain is imported only here and only when it is used (`voicemem-core[langgraph]`).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection, Iterable, Iterator, Mapping, Sequence, Set
from contextlib import contextmanager
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Literal

from voicemem.client import Client, SyncClient
from voicemem.integrations.background_session import BackgroundSession, NewestEntries, check_installed, joined_type
from voicemem.integrations.conversation import Call, Conversation, Sessions, as_object, parsed
from voicemem.integrations.langgraph.user_store import UserStore
from voicemem.integrations.runs import as_heard, followed_by, is_answer, rebuilt, run_start, text_of
from voicemem.protocol.types import JsonObject

__all__ = ["Call", "chat_messages", "middleware", "store", "thread_id"]
Kind = Literal["user", "replies", "tools"]


def chat_messages(messages: Iterable[JsonObject]) -> list[Any]:
    """Return LangChain's messages for messages in OpenAI's form, as `session.context()` returns them in `messages`."""
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    made: list[Any] = []
    for message in messages:
        role, content = message["role"], message.get("content") or ""
        if role == "tool":
            made.append(ToolMessage(content=content, tool_call_id=message["tool_call_id"]))
        elif role == "assistant":
            calls: list[Any] = []
            for call in message.get("tool_calls") or ():
                arguments = as_object(parsed(call["function"]["arguments"]), "arguments")
                calls.append({"name": call["function"]["name"], "args": arguments, "id": call["id"]})
            made.append(AIMessage(content=content, tool_calls=calls))
        else:
            made.append((HumanMessage if role == "user" else SystemMessage)(content=content))
    return made


def unrecorded(messages: Sequence[Any]) -> Sequence[Any]:
    """Return the messages that this run may have added: its user messages, answers and tools."""
    ended = bool(messages) and is_answer(messages[-1])
    start = run_start(messages[:-1] if ended else messages)
    while start and messages[start - 1].type == "human":
        start -= 1
    return messages[start:]


class ThreadMemory(Conversation):
    """The memory of one thread of an agent."""

    def __init__(self, session: BackgroundSession, record: Collection[str]) -> None:
        super().__init__(session)
        self.kinds = record
        self.recorded: NewestEntries[str, None] = NewestEntries(1000)
        """The ids of recorded messages of the newest runs."""

    def record(self, messages: Sequence[Any], names: Mapping[str, str] = MappingProxyType({})) -> None:
        """Record the messages that a run has added since the last call; `names` are the items of streamed messages."""
        for message in unrecorded(messages):
            name = message.id or self.new_item()
            if name not in self.recorded:
                self.recorded[name] = None
                self.record_message(message, names.get(name, name))

    def record_message(self, message: Any, item: str) -> None:
        text = text_of(message.content)
        if message.type == "human" and text and "user" in self.kinds:
            if not message.additional_kwargs.get("lc_source"):  # a summary of another middleware
                self.user_said(text, item)
        elif message.type == "ai":
            if text and "replies" in self.kinds:
                self.replied(text, item, message.name)
            for call in message.tool_calls if "tools" in self.kinds else ():
                self.tool_called(call["id"], call["name"], call["args"])
        elif message.type == "tool" and "tools" in self.kinds:
            self.tool_returned(message.tool_call_id, text or message.content)


class TokenListener:
    """Reports the streams of the LLM runs of one model call; `grew` gets each piece, and the item of its reply.

    It requests no stream; without one there are no tokens.
    """

    run_inline = True  # also in asynchronous runs, so that tokens keep their order

    def __init__(self, grew: Callable[[str, str], None]) -> None:
        self.grew = grew
        self.items: dict[Any, str] = {}
        """The item of each run: the first id of its message."""
        self.grown: set[str] = set()
        self.names: dict[str, str] = {}
        """The item of each id of a run's message; vendors may change the id on the way."""
        self.others: set[Any] = set()
        """Runs of other middleware, whose texts are not heard."""

    def said(self, run: Any, message_id: str | None, text: str) -> None:
        if run in self.others:
            return
        if message_id and run not in self.items:
            self.items[run] = message_id
        if run in self.items:
            self.names[message_id or self.items[run]] = self.items[run]
            if text:
                self.grown.add(self.items[run])
                self.grew(text, self.items[run])

    def on_chat_model_start(self, serialized: Any, messages: Any, *, run_id: Any, **more: Any) -> None:
        if (more.get("metadata") or {}).get("lc_source"):
            self.others.add(run_id)

    def on_llm_new_token(self, token: Any, *, chunk: Any = None, run_id: Any, **more: Any) -> None:
        message = getattr(chunk, "message", None)
        if message is not None:
            self.said(run_id, message.id, text_of(message.content))

    def on_stream_event(self, event: Any, *, run_id: Any, **more: Any) -> None:
        """Take an event of a stream in LangChain's own protocol, which has no tokens."""
        delta = event.get("delta") or {}
        if event.get("event") == "message-start":
            self.said(run_id, event.get("id") or event.get("message_id"), "")
        elif delta.get("type") == "text-delta":
            self.said(run_id, None, delta["text"])


class ModelCall:
    """One call of the model in a thread that is remembered."""

    def __init__(self, threads: Sessions[ThreadMemory], kinds: Set[str], session_id: str, request: Any) -> None:
        self.threads = threads
        self.kinds = kinds
        self.session_id = session_id
        self.request = request
        kind = joined_type("TokenListener", TokenListener, "langchain_core.callbacks", "BaseCallbackHandler")
        self.listener: TokenListener = kind(self.grew)

    def context(self, memory: ThreadMemory) -> Any:
        """Record this run so far, and return a request for the messages of the memory, in OpenAI's form."""
        memory.record(self.request.state["messages"])
        return memory.known_messages(self.request.messages)

    def remembered(self, known: list[Any] | None) -> Any:
        memory = self.threads.open.get(self.session_id)
        own = self.request.messages
        with self.threads.guarded():  # a version with other messages
            if known is None or memory is None:
                return self.request.override(messages=as_heard(own, {} if memory is None else memory.heard))
            messages = chat_messages(known)
            said = [one for one in messages if one.type != "system"]
            instructions = [text_of(one.content) for one in messages if one.type == "system"]
            return self.request.override(
                messages=rebuilt(own, said, memory.opening or frozenset(), user_is_recorded="user" in self.kinds),
                system_message=with_more(self.request.system_message, instructions),
            )
        return self.request

    def grew(self, text: str, item: str) -> None:
        if "replies" in self.kinds:
            self.threads.soon(self.session_id, lambda memory: memory.reply_grew(text, item))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Listen to tokens; a cancelled reply ends there, and the reply of a failed attempt is cancelled."""
        callbacks: Any = run_config().get("callbacks")
        if hasattr(callbacks, "add_handler"):
            callbacks.add_handler(self.listener)
        try:
            yield
        except BaseException as error:
            self.close("llm.cancel" if isinstance(error, Exception) else "llm.done", self.listener.grown)
            raise
        finally:
            if hasattr(callbacks, "remove_handler"):
                callbacks.remove_handler(self.listener)

    def close(self, kind: str, items: set[str]) -> None:
        def close_all(memory: ThreadMemory) -> None:
            for item in items:
                memory.send({"type": kind, "item": item})

        if items and "replies" in self.kinds:
            self.threads.soon(self.session_id, close_all)

    def answered(self, response: Any) -> None:
        """Record the model's answer, and cancel the texts of abandoned attempts."""
        results = getattr(getattr(response, "model_response", response), "result", [response])
        messages, names = [*self.request.state["messages"], *results], self.listener.names
        self.close("llm.cancel", self.listener.grown - {names.get(one.id, one.id) for one in results})
        self.threads.soon(self.session_id, lambda memory: memory.record(messages, names))


class Middleware:
    """The memory of an agent's threads, joined with `AgentMiddleware`."""

    name = "voicemem"

    def __init__(
        self, threads: Sessions[ThreadMemory], session_id: Callable[[Mapping[str, Any]], str | None], kinds: Set[str]
    ) -> None:
        self.threads = threads
        self.kinds = kinds
        self.session_id = session_id
        threads.find_loop()

    def call(self, session_id: str) -> Call:
        """Return one call, for the program that plays the agent's replies."""
        return Call(self.threads, session_id)

    # What LangChain calls

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Give the model the heard memory, and record its answer."""
        call = self.model_call(request)
        if call is None:
            return handler(request)
        known = self.threads.wait(call.session_id, call.context)
        with call.listening():
            response = handler(call.remembered(known))
        call.answered(response)
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        call = self.model_call(request)
        if call is None:
            return await handler(request)
        known = await self.threads.ask(call.session_id, call.context)
        with call.listening():
            response = await handler(call.remembered(known))
        call.answered(response)
        return response

    def after_agent(self, state: Any, runtime: Any) -> None:
        session_id = self.session_of_run()
        if session_id is not None:
            messages = list(state["messages"])
            self.threads.soon(session_id, lambda memory: memory.record(messages))

    async def aafter_agent(self, state: Any, runtime: Any) -> None:
        self.after_agent(state, runtime)

    # Helpers

    def model_call(self, request: Any) -> ModelCall | None:
        session_id = self.session_of_run()
        return None if session_id is None else ModelCall(self.threads, self.kinds, session_id, request)

    def session_of_run(self) -> str | None:
        with self.threads.guarded("A run is not remembered"):  # it is the program's own function
            session_id = self.session_id(run_config())
            if session_id:
                return session_id
            self.threads.log_once("A run is not remembered: its configuration names no session, such as a thread_id.")
        return None


if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware
    from langgraph.store.base import BaseStore

    class VoicememStore(UserStore, BaseStore):
        """The store that `voicemem.integrations.langgraph.store` returns."""

    class VoicememMiddleware(Middleware, AgentMiddleware[Any, Any, Any]):
        """The middleware that `voicemem.integrations.langgraph.middleware` returns."""


def run_config() -> Mapping[str, Any]:
    """Return the configuration of the current run. Raises `RuntimeError` outside of one."""
    from langgraph.config import get_config

    config: Mapping[str, Any] = get_config()
    return config


def with_more(system_message: Any, texts: list[str]) -> Any:
    """Return the agent's system message, followed by the memory's."""
    from langchain_core.messages import SystemMessage

    if not texts:
        return system_message
    if system_message is None:
        return SystemMessage(content=followed_by("", texts))
    return system_message.model_copy(update={"content": followed_by(system_message.content, texts)})


def thread_id(config: Mapping[str, Any]) -> str | None:
    """Return the thread id of a run's configuration."""
    name = config.get("configurable", {}).get("thread_id")
    return None if name is None else str(name)


def middleware(
    client: Client | SyncClient,
    *,
    session_id: Callable[[Mapping[str, Any]], str | None] = thread_id,
    record: Collection[Kind] = ("user", "replies", "tools"),
    config: Mapping[str, Any] | None = None,
    producer: str = "langgraph",
) -> VoicememMiddleware:
    """Return a middleware for `create_agent(…, middleware=[…])`; one serves any number of threads.

    `session_id` finds a run's session in its configuration; a run without one is not remembered. Leave out of `record`
    what another producer records on the same session, such as a recogniser's transcripts ("user"), or the replies that
    a voice framework plays ("replies"). `config` is for a new session, such as `{"user_id": "ann", "memory_from":
    {"sessions": 3}}`, which carries earlier calls over. Agents that run without asyncio need a `SyncClient`.

    Nothing raises into a run, and only the read before each model call blocks it, for at most the client's
    `context_timeout_s`. Raises `ImportError` without LangChain.
    """
    check_installed("langchain", "LangChain", "langgraph")
    kinds = frozenset(record)
    threads = Sessions(client, lambda session: ThreadMemory(session, kinds), config, producer)
    kind = joined_type("VoicememMiddleware", Middleware, "langchain.agents.middleware", "AgentMiddleware")
    made: VoicememMiddleware = kind(threads, session_id, kinds)
    return made


def store(
    client: Client | SyncClient, *, namespace: tuple[str, ...] = ("memories", "{user_id}"), field: str = "data"
) -> VoicememStore:
    """Return a store for `compile(store=…)` and `create_agent(store=…)`, whose items are long-term memories of users.

    Each namespace begins with `namespace`, which has a user's id in place of `{user_id}`. The text of a value is its
    `field`; without one, all of its texts. Memories made elsewhere are items of the user too, with their text in
    `field`. Calls without asyncio need a `SyncClient`.

    Methods raise as the client's do, and `ValueError` or `NotImplementedError` for items that cannot be kept. Raises
    `ImportError` without LangGraph.
    """
    check_installed("langgraph", "LangGraph", "langgraph")
    kind = joined_type("VoicememStore", UserStore, "langgraph.store.base", "BaseStore")
    made: VoicememStore = kind(client, namespace, field)
    return made
