"""A session for code that nothing may hold up: opened in the background, and read in bounded time or not at all."""

from __future__ import annotations

import asyncio
import logging
import secrets
import time
from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, TypeVar

from voicemem.client import Client, ClientError, ProducerSession, Unreachable
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
MAX_EARLY = 10_000
"""Events that wait for the session to be open."""
QUIET_S = 5.0
"""After a read that failed, the memory is not asked for so long."""
OPENED_AGAIN_S = 0.5
T = TypeVar("T")


class BackgroundSession:
    """One producer's session. `send` and `context` never raise; what they cannot do is logged, once for each reason.

    Without an id it makes one, so that the session is the same however often it has to be opened.
    """

    def __init__(self, client: Client, session_id: str | None, producer: str, config: Mapping[str, Any] | None) -> None:
        self.client = client
        self.session_id = session_id or secrets.token_hex(16)
        self.producer = producer
        self.config = config
        self.session: ProducerSession | None = None
        """None until the server has answered."""
        self.error: ClientError | None = None
        """Why there will be no session."""
        self.early: deque[JsonObject] = deque(maxlen=MAX_EARLY)
        self.quiet_until = 0.0
        self.logged: set[str] = set()
        self.opening = asyncio.create_task(self.open())

    async def open(self) -> None:
        """Try until the session is open, or the server says that it never will be."""
        while self.session is None and self.error is None:
            try:
                self.session = await self.client.open(self.session_id, producer=self.producer, config=self.config)
            except Unreachable as error:
                self.log_once("The session is not open yet; what happens on the call waits.", error)
                await asyncio.sleep(OPENED_AGAIN_S)
            except ClientError as error:
                self.error = error
                self.log_once("This call is not remembered.", error)
            except (TypeError, ValueError) as error:
                self.error = ClientError("invalid_request", str(error))
                self.log_once("This call is not remembered.", self.error)
        while self.session is not None and self.early:
            self.session.send(self.early.popleft())

    def send(self, event: JsonObject) -> None:
        """Hand an event on at once, or keep it until the session is open. It should have its `ts`."""
        if self.session is not None and not self.early:
            self.session.send(event)
        elif self.error is None:
            self.early.append(event)

    async def context(self, **params: Any) -> JsonObject | None:
        """The body of the next LLM request, with everything that was sent before; None if it does not come in time.

        It takes at most the option `context_timeout_s` of the client in all. Half of that may be for a session that is
        not open yet, so that the first request of a call has what earlier calls left. After a failure the next are None
        at once, for five seconds.
        """
        deadline = time.monotonic() + self.client.options.context_timeout_s

        def left_s() -> float:
            return max(0.0, deadline - time.monotonic())

        async def read(session: ProducerSession) -> JsonObject:
            await session.flush(left_s() / 2)
            return await session.context(timeout=left_s(), **params)

        return await self.read(read)

    async def read(self, ask: Callable[[ProducerSession], Awaitable[T]]) -> T | None:
        """What the session answers, or None."""
        if time.monotonic() < self.quiet_until:
            return None
        if self.session is None and self.error is None:
            await asyncio.wait({self.opening}, timeout=self.client.options.context_timeout_s / 2)
        if self.session is None:
            self.quiet_until = time.monotonic() + QUIET_S
            return None
        try:
            return await ask(self.session)
        except ClientError as error:
            self.quiet_until = time.monotonic() + QUIET_S
            self.log_once("The agent goes on with the framework's own messages.", error)
        return None

    def log_once(self, consequence: str, error: ClientError) -> None:
        if error.code not in self.logged:
            self.logged.add(error.code)
            LOG.warning("%s Session %s: %s", consequence, self.session_id, error.detail)

    async def aclose(self, timeout: float | None = None) -> None:  # noqa: ASYNC109 (it is not a cancellation)
        """Wait until everything that was sent is on disk, at most `timeout` seconds (`close_timeout_s` by default)."""
        deadline_s = self.client.options.close_timeout_s if timeout is None else timeout
        began = time.monotonic()
        await asyncio.wait({self.opening}, timeout=deadline_s)
        if self.session is None:
            self.opening.cancel()
            if self.early and self.error is None:
                LOG.warning(
                    "%d events of a call are lost. Session %s: it was never open.", len(self.early), self.session_id
                )
            return
        try:
            await self.session.flush(max(0.0, deadline_s - (time.monotonic() - began)))
        except ClientError as error:
            self.log_once("Not everything of a call is stored yet.", error)
