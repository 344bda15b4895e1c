"""One call that is observed: connections to its vendor, one after the other, until it is over."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from voicemem.backoff import exponential_s, spread
from voicemem.errors import Refused, StoreUnavailable
from voicemem.observer.connection import OVER, VendorConnection
from voicemem.observer.dialing import DialFailed, Interrupted, dial
from voicemem.protocol.events import SessionOpen
from voicemem.runtime import Runtime
from voicemem.sessions.nodes.presence import Presence
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.records import ObservationState, ObservedSession
from voicemem.telemetry.metrics import Metrics

LOG = logging.getLogger("voicemem.observer")


class Patience(NamedTuple):
    """How connections are tried again."""

    first_s: float = 0.25
    longest_s: float = 15.0
    attempts: int = 30
    """In a row, none of which gave a connection that lasted; then the observation has failed, after some 6 minutes."""
    lasting_s: float = 10.0
    """A connection that was open for so long was no failed attempt."""
    unknown_attempts: int = 8
    """For a call that the vendor does not know: one that has just been made may take a while. Half a minute in all."""


class Parts(NamedTuple):
    """What an observation works with."""

    recorder: Recorder
    presence: Presence
    runtime: Runtime
    metrics: Metrics
    threads: asyncio.Semaphore
    patience: Patience


Note = Callable[[ObservationState, str | None, int | None], Awaitable[bool]]
"""Tells the store how an observation stands; False when it is not this node's any more."""


class NotOursError(Exception):
    """Somebody has stopped the observation, or another node has it."""


class ObservedCall:
    """Observes one call. `address` and `key` are for its vendor; nothing else gets the key."""

    def __init__(self, observed: ObservedSession, address: str, key: str, parts: Parts, note: Note) -> None:
        self.observed = observed
        self.address = address
        self.key = key
        self.parts = parts
        self.note = note
        self.lease: ProducerLease | None = None
        self.was_connected = observed.observation.connections > 0

    async def run(self) -> None:
        """Observe until the call is over, somebody stops it, or nothing helps. It is silent in all of these cases."""
        over: Interrupted | None = None
        try:
            over = await self.observe()
            await self.tell(*over)
            self.log("over", over)
        except NotOursError:
            pass
        except Exception as error:  # a fault of ours would come again and again
            LOG.exception("An observation broke off: %s", type(error).__name__)
            with suppress(NotOursError):
                await self.tell("failed", "internal", None)
        finally:
            await self.leave(over)

    async def observe(self) -> Interrupted:
        """Connect, again and again; why there will be no further connection."""
        attempt = 0
        while True:
            begun = asyncio.get_running_loop().time()
            interrupted = await self.connect_once()
            if interrupted.reason == "unknown_call" and attempt + 1 < self.parts.patience.unknown_attempts:
                interrupted = interrupted._replace(state="waiting")
            if interrupted.state != "waiting":
                return interrupted
            lasted = asyncio.get_running_loop().time() - begun >= self.parts.patience.lasting_s
            attempt = 0 if lasted and interrupted.reason == "dropped" else attempt + 1
            if attempt >= self.parts.patience.attempts:
                return interrupted._replace(state="failed")
            await self.tell(*interrupted)
            delay_s = exponential_s(max(0, attempt - 1), self.parts.patience.first_s, self.parts.patience.longest_s)
            await asyncio.sleep(spread(delay_s, self.parts.runtime.random(), 0.5, 1.0))

    async def connect_once(self) -> Interrupted:
        """One connection from its beginning to its end."""
        dialect = self.observed.observation.dialect
        try:
            if self.lease is None:
                await self.enter()
            await self.tell("connecting", None, None)
            assert self.lease is not None
            socket = await dial(self.address, self.key)
        except Refused as refused:
            return Interrupted("ended" if refused.code in OVER else "failed", OVER.get(refused.code, refused.code))
        except StoreUnavailable as unavailable:
            return Interrupted("waiting", unavailable.code)
        except DialFailed as failed:
            return self.after_failed_dial(failed.why)
        self.count("connected")
        threads, recorder = self.parts.threads, self.parts.recorder
        connection = VendorConnection(socket, recorder, self.lease, dialect, threads)
        listening = asyncio.create_task(connection.run())
        try:
            await self.tell("observing", None, None)
            self.was_connected = True
            interrupted = await listening
        finally:
            if not listening.done():
                listening.cancel()
                with suppress(asyncio.CancelledError):
                    await listening
        if interrupted.reason == "dropped":
            self.count("dropped")
        return interrupted

    def after_failed_dial(self, why: Interrupted) -> Interrupted:
        """A call that was observed before, and is not known any more, is over."""
        self.count("unreachable" if why.state == "waiting" else "refused")
        if why.reason == "unknown_call" and self.was_connected:
            return Interrupted("ended", "call_over", why.status)
        return why

    async def enter(self) -> None:
        """Be a producer of the session, which goes on while its call is observed. Raises `Refused`."""
        observed, producer = self.observed, f"{self.observed.observation.dialect}.observer"
        opening = SessionOpen(session_id=observed.session_id, producer=producer)
        opened, _ = await self.parts.recorder.open_producer(observed.project, observed.session_id, opening, False)
        self.lease = ProducerLease(opened.stream, producer, opened.epoch, may_call_out=False, may_set=False)
        self.parts.presence.connect(self.lease)

    async def leave(self, over: Interrupted | None) -> None:
        """Be no producer any more; a session whose call is over closes soon, unless somebody else is connected."""
        if self.lease is None:
            return
        presence = self.parts.presence
        with suppress(StoreUnavailable):  # the next sweep repeats it
            await presence.disconnect(self.lease, lost=over is None)
        if over is not None and over.reason == "call_over":
            presence.close_if_left(self.lease)

    async def tell(self, state: ObservationState, reason: str | None, status: int | None) -> None:
        """Let everybody know how it stands. Raises `NotOursError`; a store that is away is told the next time."""
        with suppress(StoreUnavailable):
            if not await self.note(state, reason, status):
                raise NotOursError

    def count(self, result: str) -> None:
        self.parts.metrics.observer_connections.labels(self.observed.observation.dialect, result).inc()

    def log(self, what: str, why: Interrupted) -> None:
        level = logging.WARNING if why.state == "failed" else logging.INFO
        more = {"project": self.observed.project, "session": self.observed.session_id, "status": why.status}
        LOG.log(level, "An observation is %s: %s", what, why.reason, extra=more)
