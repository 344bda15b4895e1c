"""The threads of an agent: a session of the memory for each, on the event loop of the client."""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Collection, Coroutine, Mapping, Sequence
from typing import Any, TypeVar

from voicemem.client import Client, SyncClient
from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.conversation import Conversation
from voicemem.integrations.langgraph.messages import run_start, text_of, unrecorded

LOG = logging.getLogger("voicemem.integrations")
MAX_SEEN = 1000
GRACE_S = 1.0
"""What a thread that waits for another's event loop waits longer than the read may take."""
T = TypeVar("T")


class ThreadMemory(Conversation):
    """What is remembered of one thread."""

    def __init__(self, session: BackgroundSession, record: Collection[str]) -> None:
        super().__init__(session)
        self.kinds = record
        self.recorded: OrderedDict[str, None] = OrderedDict()
        """Messages of the newest runs that are recorded, by their ids."""
        self.opening: frozenset[str] | None = None
        """Messages that were there before the memory knew anything."""

    @property
    def is_over(self) -> bool:
        return self.session.session is not None and self.session.session.state == "ended"

    def record(self, messages: Sequence[Any], item_of: Callable[[str], str] = str) -> None:
        """Record what a run has added since it was last asked."""
        for message in unrecorded(messages):
            name = message.id or self.new_item()
            if name not in self.recorded:
                self.recorded[name] = None
                self.record_message(message, item_of(name))
        while len(self.recorded) > MAX_SEEN:
            self.recorded.popitem(last=False)

    def record_message(self, message: Any, item: str) -> None:
        text = text_of(message.content)
        if message.type == "human" and text and "user" in self.kinds:
            if not message.additional_kwargs.get("lc_source"):  # a summary, which another middleware put there
                self.user_said(text, item)
        elif message.type == "ai":
            if text and "replies" in self.kinds:
                self.replied(text, item)
            for call in message.tool_calls if "tools" in self.kinds else ():
                self.tool_called(call["id"], call["name"], call["args"])
        elif message.type == "tool" and "tools" in self.kinds:
            self.tool_returned(message.tool_call_id, text or message.content)

    async def context(self, own: Sequence[Any], added: Sequence[Any]) -> list[Any] | None:
        """What the memory knows, in OpenAI's form, once this run is recorded as far as it has come."""
        self.record(added)
        body = await self.session.context(style="openai", tools=True)
        if body is None:
            return None
        if self.opening is None:
            before = own[: run_start(own)]
            said = {text_of(one.content) for one in own[len(before) :]}
            news = (one for one in body["messages"] if one["role"] in ("user", "assistant") and one["content"])
            is_new = all(one["content"] in said for one in news)
            self.opening = frozenset(one.id for one in before if one.id) if is_new else frozenset()
        messages: list[Any] = body["messages"]
        return messages


class Threads:
    """The sessions of one middleware. Nothing here raises."""

    def __init__(
        self, client: Client | SyncClient, record: Collection[str], config: Mapping[str, Any] | None, producer: str
    ) -> None:
        self.client = client._client if isinstance(client, SyncClient) else client
        self.loop: asyncio.AbstractEventLoop | None = client._thread.loop if isinstance(client, SyncClient) else None
        """Where sessions live; that of an asynchronous client is known once it is used."""
        self.kinds = record
        self.config = config
        self.producer = producer
        self.threads: dict[str, ThreadMemory] = {}
        self.logged: set[str] = set()

    def thread(self, session_id: str) -> ThreadMemory:
        """The memory of a thread; on the event loop only."""
        found = self.threads.get(session_id)
        if found is None or found.is_over:
            background = BackgroundSession(self.client, session_id, self.producer, self.config)
            found = self.threads[session_id] = ThreadMemory(background, self.kinds)
        return found

    def find_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of this thread, which becomes that of an asynchronous client."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        self.loop = self.loop or running
        return running

    def soon(self, session_id: str, do: Callable[[ThreadMemory], object]) -> None:
        """Do something with a thread's memory that waits for nothing: here, or soon on the event loop."""

        def safely() -> None:
            try:
                do(self.thread(session_id))
            except Exception as error:  # whatever it is, the agent goes on
                self.log_once(f"The memory has missed something of a run: {error!r}.")

        try:
            if self.find_loop() is self.loop is not None:
                safely()
            elif self.loop is not None:
                self.loop.call_soon_threadsafe(safely)
            else:
                self.log_once("Runs without asyncio are not remembered: the middleware needs a SyncClient.")
        except RuntimeError as error:  # the loop was closed, and the middleware is still used
            self.log_once(f"Runs are not remembered: {error}.")

    async def ask(self, session_id: str, ask: Callable[[ThreadMemory], Coroutine[Any, Any, T]]) -> T | None:
        """What a thread's memory answers; None if it does not."""
        try:
            if self.find_loop() is self.loop:
                return await ask(self.thread(session_id))
            return await asyncio.wait_for(asyncio.wrap_future(self.submitted(session_id, ask)), self.limit_s)
        except Exception as error:  # whatever it is, the agent goes on
            self.log_once(f"The agent goes on with its own messages: {error!r}.")
            return None

    def wait(self, session_id: str, ask: Callable[[ThreadMemory], Coroutine[Any, Any, T]]) -> T | None:
        """`ask` for code that is not asynchronous."""
        try:
            if self.find_loop() is self.loop:
                raise RuntimeError("a run on the client's own event loop must be asynchronous, such as ainvoke")
            answer: T = self.submitted(session_id, ask).result(self.limit_s)
        except Exception as error:  # whatever it is, the agent goes on
            self.log_once(f"The agent goes on with its own messages: {error!r}.")
            return None
        return answer

    @property
    def limit_s(self) -> float:
        return self.client.options.context_timeout_s + GRACE_S

    def submitted(self, session_id: str, ask: Callable[[ThreadMemory], Coroutine[Any, Any, T]]) -> Any:
        """A future of another event loop's answer. Raises `RuntimeError` if there is no such loop."""
        if self.loop is None or self.loop.is_closed():
            raise RuntimeError("the client's event loop does not run")

        async def asked() -> T:
            return await ask(self.thread(session_id))

        return asyncio.run_coroutine_threadsafe(asked(), self.loop)

    def log_once(self, sentence: str) -> None:
        if sentence not in self.logged:
            self.logged.add(sentence)
            LOG.warning("%s", sentence)
