"""A session for code that must not block: opened in the background, and read in bounded time or not at all.

`AttachedMemory` is what integrations return for a call that they follow.
"""

import asyncio
import logging
import secrets
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from typing import Any, NamedTuple, TypeVar

import msgspec

from voicemem.client import BufferFull, Client, ClientError, ProducerSession, Unreachable
from voicemem.client.metrics import DroppedEvents
from voicemem.integrations.ledger import Ledger
from voicemem.protocol.types import JsonObject

LOG = logging.getLogger("voicemem.integrations")
NAMES_BYTES = 64
"""The bytes that the client adds to an event, besides its ids."""
QUIET_S = 5.0
"""After a failed read, the memory is not asked for this long."""
OPENED_AGAIN_S = 0.5
K = TypeVar("K")
V = TypeVar("V")


class NewestEntries(OrderedDict[K, V]):
    """A mapping that keeps only its newest entries."""

    def __init__(self, at_most: int) -> None:
        super().__init__()
        self.at_most = at_most

    def __setitem__(self, key: K, value: V) -> None:
        super().__setitem__(key, value)
        if len(self) > self.at_most:
            self.popitem(last=False)


class EarlyEvent(NamedTuple):
    """An event that waits for the session to open, whether it ends the session, and its size in bytes."""

    event: JsonObject
    ends: bool
    size: int
    missing: int = 0
    """The number of events before it that could not be kept."""


def config_of(user_id: str | None, config: Mapping[str, Any] | None) -> Mapping[str, Any] | None:
    """Return the configuration of a user's new session."""
    return config if user_id is None else {**(config or {}), "user_id": user_id}


class BackgroundSession:
    """One producer's session. `send` and `context` never raise; failures are logged once for each reason.

    Without an id it makes one, so that the session is the same however often it must be opened.
    """

    def __init__(self, client: Client, session_id: str | None, producer: str, config: Mapping[str, Any] | None) -> None:
        self.client = client
        self.session_id = session_id or secrets.token_hex(16)
        self.producer = producer
        self.config = config
        self.session: ProducerSession | None = None
        """None until the server has answered."""
        self.error: ClientError | None = None
        self.early: deque[EarlyEvent] = deque()
        """Events that wait for the session to open, within the limits of the client's buffer."""
        self.early_bytes = 0
        self.missing = 0
        """The number of events since the last of these for which there was no room."""
        self.times_found = 0
        """How often the session had been found when this object got it."""
        self.drops = DroppedEvents(client.options.on_dropped)
        self.quiet_until = 0.0
        self.logged: set[str] = set()
        self.opening = asyncio.create_task(self.open())

    async def open(self) -> None:
        """Try until the session is open, or the server refuses it for good."""
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
                if self.client.is_open(self.session_id, self.producer):  # by an earlier connection of the same call
                    await asyncio.sleep(OPENED_AGAIN_S)
                    self.session = self.client.find(self.session_id, self.producer)
                else:
                    self.error = ClientError("invalid_request", str(error))
                    self.log_once("This call is not remembered.", self.error)
        if self.session is not None:
            self.times_found = self.session.times_found
        while self.early:  # new events wait behind these
            for _ in range(min(100, len(self.early))):  # then other tasks get their turn
                event, ends, size, missing = self.early.popleft()
                self.release(size)
                self.forward(event, ends, missing)
            await asyncio.sleep(0)

    def send(self, event: JsonObject, ends: bool = False) -> None:
        """Send an event at once, or keep it until the session is open. It should have its `ts`.

        `ends` marks an event that ends the session, besides `session.end`.
        """
        if self.early or (self.session is None and self.error is None):
            self.keep(event, ends)
        else:
            missing, self.missing = self.missing, 0
            self.forward(event, ends, missing)

    def forward(self, event: JsonObject, ends: bool, missing: int) -> None:
        if self.session is not None:
            if missing:
                self.session.leave_gap(missing)
            self.session.send(event, ends=ends)
        elif self.error is not None:
            self.drops.count(self.error)

    def keep(self, event: JsonObject, ends: bool) -> None:
        """Keep an event until the session is open, if the client's buffer would have room for it."""
        options = self.client.options
        try:
            size = len(msgspec.json.encode(event)) + len(self.session_id) + len(self.producer) + NAMES_BYTES
        except (TypeError, ValueError, RecursionError):  # the client will report it
            size = 0
        full = len(self.early) >= options.max_events or self.early_bytes + size > options.max_bytes
        is_taken = ends or not full
        if is_taken and options.room is not None:
            is_taken = options.room.take(size, ignore_limit=ends)
        if is_taken:
            missing, self.missing = self.missing, 0
            self.early.append(EarlyEvent(event, ends, size, missing))
            self.early_bytes += size
        else:
            self.missing += options.leaves_gaps
            self.drops.report(self.session_id, self.producer, BufferFull(len(self.early), self.early_bytes))

    def release(self, size: int) -> None:
        self.early_bytes -= size
        if self.client.options.room is not None:
            self.client.options.room.give_back(size)

    @property
    def is_alone(self) -> bool:
        """True if no other code has found the same producer's session since this object got it."""
        return self.session is None or self.session.times_found == self.times_found

    @property
    def dropped(self) -> int:
        return self.drops.counts.total() + (0 if self.session is None else self.session.dropped)

    async def context(self, **params: Any) -> JsonObject | None:
        """Return the body of the next LLM request, with everything sent before; None if it does not come in time.

        It takes at most the client's option `context_timeout_s`. Half of that may be the wait for the session to open,
        so that the first request of a call has text from earlier calls. For five seconds after a failure, it returns
        None at once.
        """
        began, timeout_s = time.monotonic(), self.client.options.context_timeout_s
        if began < self.quiet_until:
            return None
        await asyncio.wait({self.opening}, timeout=timeout_s / 2)
        if self.session is not None:
            try:
                left_s = max(0.0, began + timeout_s - time.monotonic()) / 2
                await asyncio.gather(self.session.flush(left_s), self.client.flush(self.session_id, left_s))
                return await self.session.context(timeout=max(0.0, began + timeout_s - time.monotonic()), **params)
            except ClientError as error:
                self.log_once("The agent continues with the framework's own messages.", error)
        self.quiet_until = time.monotonic() + QUIET_S
        return None

    def log_once(self, consequence: str, error: Exception) -> None:
        reason, detail = (error.code, error.detail) if isinstance(error, ClientError) else (consequence, repr(error))
        if reason not in self.logged:
            self.logged.add(reason)
            LOG.warning("%s Session %s: %s", consequence, self.session_id, detail)

    async def aclose(self, timeout: float | None = None) -> None:
        """Wait until everything sent is on disk, at most `timeout` seconds (`close_timeout_s` by default)."""
        deadline_s = self.client.options.close_timeout_s if timeout is None else timeout
        began = time.monotonic()
        await asyncio.wait({self.opening}, timeout=deadline_s)
        if self.session is None:
            self.opening.cancel()
            if self.early and self.error is None:
                LOG.warning(
                    "%d events of a call are lost. Session %s: it was never open.", len(self.early), self.session_id
                )
            while self.early:
                self.release(self.early.popleft().size)
            return
        try:
            await self.session.flush(max(0.0, deadline_s - (time.monotonic() - began)))
        except ClientError as error:
            self.log_once("Not everything of a call is stored yet.", error)


class AttachedMemory:
    """The memory of a call that an integration follows; `end` reports the end of the call, with a reason."""

    def __init__(self, session: BackgroundSession, ledger: Ledger, end: Callable[[str | None], object]) -> None:
        self.session = session
        """The way to the memory; `session.session` is the client's session once it is open, else None."""
        self.ledger = ledger
        self.end = end

    def speaks(self, agent: str | None) -> None:
        """Name the agent that speaks from now on, if there are several and the framework does not name it."""
        self.ledger.agent = agent

    async def aclose(self, reason: str | None = None, *, timeout: float | None = None) -> None:
        """End the call, if it has not ended, and wait until all of it is on disk. Never raises.

        It takes at most `timeout` seconds, by default the client's `close_timeout_s`, and can be a shutdown callback.
        """
        self.end(reason)
        await self.session.aclose(timeout)


@cache
def joined_type(name: str, ours: type, module: str, base: str) -> Any:
    """Return a class that inherits from ours and from a framework's, which must be installed."""
    return type(name, (ours, getattr(import_module(module), base)), {})


def check_installed(module: str, name: str, extra: str) -> None:
    """Raise `ImportError`, with the extra to install, if a framework is not installed."""
    try:
        is_installed = find_spec(module) is not None
    except ModuleNotFoundError:  # nor is its parent package
        is_installed = False
    if not is_installed:
        raise ImportError(f"{name} is not installed: pip install 'voicemem-core[{extra}]'")
