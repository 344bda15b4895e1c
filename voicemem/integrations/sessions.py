"""The sessions of an agent's runs, on the event loop of the client, whatever thread or event loop a run has."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Coroutine, Mapping
from typing import Any, Generic, TypeVar

from voicemem.client import Client, SyncClient
from voicemem.integrations.background_session import BackgroundSession
from voicemem.integrations.conversation import Conversation

LOG = logging.getLogger("voicemem.integrations")
GRACE_S = 1.0
"""What a run that waits for another event loop waits longer than the read may take."""
T = TypeVar("T")
M = TypeVar("M", bound=Conversation)


class Sessions(Generic[M]):
    """The sessions of one plugin, which `make` makes the conversations of. Nothing here raises."""

    def __init__(
        self,
        client: Client | SyncClient,
        make: Callable[[BackgroundSession], M],
        config: Mapping[str, Any] | None,
        producer: str,
    ) -> None:
        self.client = client._client if isinstance(client, SyncClient) else client
        self.loop: asyncio.AbstractEventLoop | None = client._thread.loop if isinstance(client, SyncClient) else None
        """Where sessions live; that of an asynchronous client is known once it is used."""
        self.make = make
        self.config = config
        self.producer = producer
        self.open: dict[str, M] = {}
        self.logged: set[str] = set()

    def session(self, session_id: str) -> M:
        """A session's conversation; on the event loop only."""
        found = self.open.get(session_id)
        if found is None or found.is_over:
            background = BackgroundSession(self.client, session_id, self.producer, self.config)
            found = self.open[session_id] = self.make(background)
        return found

    def find_loop(self) -> asyncio.AbstractEventLoop | None:
        """The event loop of this thread of the process, which becomes that of an asynchronous client."""
        try:
            running = asyncio.get_running_loop()
        except RuntimeError:
            return None
        self.loop = self.loop or running
        return running

    def soon(self, session_id: str, do: Callable[[M], object]) -> None:
        """Do something with a session's conversation that waits for nothing: here, or soon on the event loop."""

        def safely() -> None:
            try:
                do(self.session(session_id))
            except Exception as error:  # whatever it is, the agent goes on
                self.log_once(f"The memory has missed something of a run: {error!r}.")

        try:
            if self.find_loop() is self.loop is not None:
                safely()
            elif self.loop is not None:
                self.loop.call_soon_threadsafe(safely)
            else:
                self.log_once("Runs without asyncio are not remembered: they need a SyncClient.")
        except RuntimeError as error:  # the loop was closed, and the plugin is still used
            self.log_once(f"Runs are not remembered: {error}.")

    async def ask(self, session_id: str, ask: Callable[[M], Coroutine[Any, Any, T]]) -> T | None:
        """What a session's conversation answers; None if it does not."""
        try:
            if self.find_loop() is self.loop:
                return await ask(self.session(session_id))
            return await asyncio.wait_for(asyncio.wrap_future(self.submitted(session_id, ask)), self.limit_s)
        except Exception as error:  # whatever it is, the agent goes on
            self.log_once(f"The agent goes on with its own messages: {error!r}.")
            return None

    def wait(self, session_id: str, ask: Callable[[M], Coroutine[Any, Any, T]]) -> T | None:
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

    def submitted(self, session_id: str, ask: Callable[[M], Coroutine[Any, Any, T]]) -> Any:
        """A future of another event loop's answer. Raises `RuntimeError` if there is no such loop."""
        if self.loop is None or self.loop.is_closed():
            raise RuntimeError("the client's event loop does not run")

        async def asked() -> T:
            return await ask(self.session(session_id))

        return asyncio.run_coroutine_threadsafe(asked(), self.loop)

    def log_once(self, sentence: str) -> None:
        if sentence not in self.logged:
            self.logged.add(sentence)
            LOG.warning("%s", sentence)
