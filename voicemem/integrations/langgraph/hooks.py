"""The middleware itself: what LangChain calls around each call of the model."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Iterator, Mapping, Set
from contextlib import contextmanager
from functools import cache
from typing import TYPE_CHECKING, Any

from voicemem.integrations.call import Call
from voicemem.integrations.langgraph.messages import chat_messages
from voicemem.integrations.langgraph.threads import ThreadMemory
from voicemem.integrations.langgraph.tokens import StreamedTexts, listener_type
from voicemem.integrations.runs import as_heard, rebuilt, text_of
from voicemem.integrations.sessions import Sessions


class ModelCall:
    """One call of the model in a thread that is remembered."""

    def __init__(self, threads: Sessions[ThreadMemory], kinds: Set[str], session_id: str, request: Any) -> None:
        self.threads = threads
        self.kinds = kinds
        self.session_id = session_id
        self.request = request
        self.texts = StreamedTexts(self.grew)

    def context(self, memory: ThreadMemory) -> Any:
        return memory.context(self.request.messages, self.request.state["messages"])

    def remembered(self, known: list[Any] | None) -> Any:
        """The request as the model gets it."""
        memory = self.threads.open.get(self.session_id)
        own = self.request.messages
        try:
            if known is None or memory is None:
                return self.request.override(messages=as_heard(own, {} if memory is None else memory.heard))
            messages = chat_messages(known)
            said = [one for one in messages if one.type != "system"]
            instructions = [text_of(one.content) for one in messages if one.type == "system"]
            return self.request.override(
                messages=rebuilt(own, said, memory.opening or frozenset(), user_is_recorded="user" in self.kinds),
                system_message=with_more(self.request.system_message, instructions),
            )
        except Exception as error:  # a version whose messages are others
            self.threads.log_once(f"The agent goes on with its own messages: {error!r}.")
            return self.request

    def grew(self, text: str, item: str) -> None:
        if "replies" in self.kinds:
            self.threads.soon(self.session_id, lambda memory: memory.reply_grew(text, item))

    @contextmanager
    def listening(self) -> Iterator[None]:
        """Hear of tokens; a reply that was cancelled is whole as it is, and one of an attempt that failed is none."""
        callbacks: Any = run_config().get("callbacks")
        listener = listener_type()(self.texts)
        if hasattr(callbacks, "add_handler"):
            callbacks.add_handler(listener)
        try:
            yield
        except Exception:
            self.close("llm.cancel", self.texts.grown)
            raise
        except BaseException:
            self.close("llm.done", self.texts.grown)
            raise
        finally:
            if hasattr(callbacks, "remove_handler"):
                callbacks.remove_handler(listener)

    def close(self, kind: str, items: set[str]) -> None:
        def close_all(memory: ThreadMemory) -> None:
            for item in items:
                memory.send({"type": kind, "item": item})

        if items and "replies" in self.kinds:
            self.threads.soon(self.session_id, close_all)

    def answered(self, response: Any) -> None:
        """Record what the model said; texts of attempts that were given up are none."""
        results = getattr(getattr(response, "model_response", response), "result", [response])
        messages = [*self.request.state["messages"], *results]
        self.close("llm.cancel", self.texts.grown - {self.texts.item_of(one.id) for one in results})
        self.threads.soon(self.session_id, lambda memory: memory.record(messages, self.texts.item_of))


class Middleware:
    """The memory of an agent's threads; `middleware_type` makes an `AgentMiddleware` of it."""

    def __init__(
        self,
        threads: Sessions[ThreadMemory],
        session_id: Callable[[Mapping[str, Any]], str | None],
        kinds: Set[str],
    ) -> None:
        self.threads = threads
        self.kinds = kinds
        self.session_id = session_id
        threads.find_loop()

    @property
    def name(self) -> str:
        return "voicemem"

    def call(self, session_id: str) -> Call:
        """One call, for the program that plays the agent's replies."""
        return Call(self.threads, session_id)

    # What LangChain calls

    def wrap_model_call(self, request: Any, handler: Callable[[Any], Any]) -> Any:
        """Give the model what was heard, and record what it says."""
        call = self.model_call(request)
        if call is None:
            return handler(request)
        known = self.threads.wait(call.session_id, call.context)
        with call.listening():
            response = handler(call.remembered(known))
        call.answered(response)
        return response

    async def awrap_model_call(self, request: Any, handler: Callable[[Any], Awaitable[Any]]) -> Any:
        """Give the model what was heard, and record what it says."""
        call = self.model_call(request)
        if call is None:
            return await handler(request)
        known = await self.threads.ask(call.session_id, call.context)
        with call.listening():
            response = await handler(call.remembered(known))
        call.answered(response)
        return response

    def after_agent(self, state: Any, runtime: Any) -> None:
        """Record results of tools that no model was asked about."""
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
        """The session of the run that this code is called in."""
        try:
            found = self.session_id(run_config())
        except Exception as error:  # the program's own function
            self.threads.log_once(f"A run is not remembered: {error!r}.")
            return None
        if not found:
            self.threads.log_once("A run is not remembered: its configuration names no session, such as a thread_id.")
            return None
        return found


if TYPE_CHECKING:
    from langchain.agents.middleware import AgentMiddleware

    class VoicememMiddleware(Middleware, AgentMiddleware[Any, Any, Any]):
        """What `voicemem.integrations.langgraph.middleware` makes."""


@cache
def middleware_type() -> type[VoicememMiddleware]:
    """The class of middleware; it can be made only where LangChain is installed."""
    from langchain.agents.middleware import AgentMiddleware

    return type("VoicememMiddleware", (Middleware, AgentMiddleware), {})


def run_config() -> Mapping[str, Any]:
    """The configuration of the run that this code is called in. Raises `RuntimeError` outside of one."""
    from langgraph.config import get_config

    config: Mapping[str, Any] = get_config()
    return config


def with_more(system_message: Any, texts: list[str]) -> Any:
    """The agent's system message, followed by what the memory instructs; providers take only one."""
    from langchain_core.messages import SystemMessage

    if not texts:
        return system_message
    if system_message is None:
        return SystemMessage(content="\n\n".join(texts))
    content = system_message.content
    if isinstance(content, str):
        more: Any = "\n\n".join([content, *texts] if content else texts)
    else:
        more = [*content, *({"type": "text", "text": text} for text in texts)]
    return system_message.model_copy(update={"content": more})
