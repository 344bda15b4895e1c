"""Observed calls: started and stopped over REST, each observed by one node (docs/observer.md).

The store lists the observations. Each node polls it once a second, claims observations that no node has, and ends those
that were stopped. Another node can claim the calls of a retired node, and continues them in the middle of a call.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from voicemem.backoff import exponential_s, spread
from voicemem.errors import Refused, StoreUnavailable
from voicemem.observer.connection import OVER, DialFailed, Interrupted, RetryPolicy, VendorConnection, dial
from voicemem.observer.vendors import find_vendor
from voicemem.protocol.events import SessionOpen
from voicemem.runtime import Runtime
from voicemem.sessions.lifecycle import Presence
from voicemem.sessions.node_lease import NodeLease
from voicemem.sessions.recording.batches import ProducerLease
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.observations import Observation, Observations, ObservationState, ObservedSession
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Metrics

LOG = logging.getLogger("voicemem.observer")
SaveState = Callable[[ObservationState, str | None, int | None], Awaitable[bool]]
"""Stores the state of an observation; returns False when it is no longer this node's."""
LOOK_S = 1.0
READING_THREADS = 2


class Parts(NamedTuple):
    """The parts of the service that an observation uses."""

    recorder: Recorder
    presence: Presence
    runtime: Runtime
    metrics: Metrics
    threads: asyncio.Semaphore
    retry: RetryPolicy


class NotOursError(Exception):
    """The observation was stopped, or another node has it."""


class ObservedCall:
    """Observes one call. `address` and `key` are for its vendor; nothing else gets the key."""

    def __init__(self, observed: ObservedSession, address: str, key: str, parts: Parts, save_state: SaveState) -> None:
        self.observed = observed
        self.address = address
        self.key = key
        self.parts = parts
        self.save_state = save_state
        self.lease: ProducerLease | None = None
        self.was_connected = observed.observation.connections > 0

    async def run(self) -> None:
        """Observe until the call is over, the observation is stopped, or attempts are exhausted. Never raises."""
        over: Interrupted | None = None
        try:
            over = await self.observe()
            await self.report(*over)
            level = logging.WARNING if over.state == "failed" else logging.INFO
            more = {"project": self.observed.project, "session": self.observed.session_id, "status": over.status}
            LOG.log(level, "An observation is over: %s", over.reason, extra=more)
        except NotOursError:
            pass
        except Exception as error:  # a bug of ours would recur with every attempt
            LOG.exception("An observation has failed: %s", type(error).__name__)
            with suppress(NotOursError):
                await self.report("failed", "internal", None)
        finally:
            await self.leave(over)

    async def observe(self) -> Interrupted:
        """Connect again and again, and return why there will be no further connection."""
        attempt = 0
        while True:
            begun = asyncio.get_running_loop().time()
            interrupted = await self.connect_once()
            if interrupted.reason == "unknown_call" and attempt + 1 < self.parts.retry.unknown_attempts:
                interrupted = interrupted._replace(state="waiting")
            if interrupted.state != "waiting":
                return interrupted
            lasted = asyncio.get_running_loop().time() - begun >= self.parts.retry.lasting_s
            attempt = 0 if lasted and interrupted.reason == "dropped" else attempt + 1
            if attempt >= self.parts.retry.attempts:
                return interrupted._replace(state="failed")
            await self.report(*interrupted)
            delay_s = exponential_s(max(0, attempt - 1), self.parts.retry.first_s, self.parts.retry.longest_s)
            await asyncio.sleep(spread(delay_s, self.parts.runtime.random(), 0.5, 1.0))

    async def connect_once(self) -> Interrupted:
        dialect = self.observed.observation.dialect
        try:
            if self.lease is None:
                await self.enter()
            await self.report("connecting", None, None)
            assert self.lease is not None
            socket = await dial(self.address, self.key, self.parts.retry)
        except Refused as refused:
            return Interrupted("ended" if refused.code in OVER else "failed", OVER.get(refused.code, refused.code))
        except StoreUnavailable as unavailable:
            return Interrupted("waiting", unavailable.code)
        except DialFailed as failed:
            why = failed.why
            self.count("unreachable" if why.state == "waiting" else "refused")
            if why.reason == "unknown_call" and self.was_connected:  # the vendor knew it before, so it is over
                return Interrupted("ended", "call_over", why.status)
            return why
        self.count("connected")
        threads, recorder = self.parts.threads, self.parts.recorder
        connection = VendorConnection(socket, recorder, self.lease, dialect, threads, self.parts.retry.store_again_s)
        listening = asyncio.create_task(connection.run())
        try:
            await self.report("observing", None, None)
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

    async def enter(self) -> None:
        """Open a producer of the session for as long as the call is observed. Raises `Refused`."""
        observed, producer = self.observed, f"{self.observed.observation.dialect}.observer"
        opened, *_ = await self.parts.recorder.open_producer(
            observed.project, observed.session_id, SessionOpen(), may_call_out=False, own_name=producer
        )
        self.lease = ProducerLease(opened.stream, producer, opened.epoch, may_call_out=False, may_set=False)
        self.parts.presence.connect(self.lease)

    async def leave(self, over: Interrupted | None) -> None:
        """Close the producer. A session whose call is over closes soon, unless another producer is connected."""
        if self.lease is None:
            return
        presence = self.parts.presence
        with suppress(StoreUnavailable):  # the next sweep repeats it
            await presence.disconnect(self.lease, lost=over is None)
        if over is not None and over.reason == "call_over":
            presence.close_if_left(self.lease)

    async def report(self, state: ObservationState, reason: str | None, status: int | None) -> None:
        """Store the observation's state, or leave it to the next report if the store is away. Raises `NotOursError`."""
        with suppress(StoreUnavailable):
            if not await self.save_state(state, reason, status):
                raise NotOursError

    def count(self, result: str) -> None:
        self.parts.metrics.observer_connections.labels(self.observed.observation.dialect, result).inc()


class ObserverSettings(NamedTuple):
    """The operator's settings; without a key nothing is observed."""

    key: str | None
    urls: Mapping[str, str]
    """URLs in place of the vendors' own, by dialect."""
    limit: int
    """How many calls are observed at a time, on all nodes together."""


class Running(NamedTuple):
    """An observation that this node runs, and the node's token when it began."""

    task: asyncio.Task[None]
    token: str


class Observers:
    """Begins, shows and stops observations, and runs those of this node."""

    def __init__(
        self,
        observations: Observations,
        recorder: Recorder,
        presence: Presence,
        node: NodeLease,
        runtime: Runtime,
        metrics: Metrics,
        settings: ObserverSettings,
    ) -> None:
        self.observations = observations
        self.node = node
        self.clock = runtime.clock
        self.metrics = metrics
        self.settings = settings
        threads = asyncio.Semaphore(READING_THREADS)
        self.parts = Parts(recorder, presence, runtime, metrics, threads, RetryPolicy())
        self.running: dict[int, Running] = {}
        """By session key."""
        self.wake = asyncio.Event()
        self.is_stopping = False

    # For the REST routes

    async def begin(self, stream: Stream, dialect: str, call: str) -> tuple[Observation, bool]:
        """Observe a call for a session. Return the observation, and whether it is new.

        Raises `Refused` (`unknown_dialect`, `observer_not_configured`, `session_ended`, `session_erased`,
        `already_observed`, `too_many_observations`).
        """
        find_vendor(dialect)
        if self.settings.key is None:
            raise Refused("observer_not_configured")
        if stream.state != "running":
            raise Refused("session_erased" if stream.state == "erased" else "session_ended")
        now = self.clock()
        new = Observation(key=stream.key, dialect=dialect, call=call, started_ms=now, changed_ms=now)
        kept = await self.observations.begin_observation(new, stream.project, self.settings.limit)
        if kept is None:
            raise Refused("too_many_observations")
        if (kept.dialect, kept.call) != (dialect, call):
            raise Refused("already_observed")
        self.wake.set()
        return kept, kept == new

    async def get(self, stream: Stream) -> Observation:
        """Return a session's observation, even if it is over. Raises `Refused` (`unknown_observation`)."""
        observation = await self.observations.find_observation(stream.key)
        if observation is None:
            raise Refused("unknown_observation")
        return observation

    async def stop(self, stream: Stream) -> Observation:
        """End an observation; one that is over stays as it is. Raises `Refused` (`unknown_observation`)."""
        await self.observations.change_observation(stream.key, None, "stopped", None, None, self.clock())
        self.wake.set()
        return await self.get(stream)

    # Observations of this node

    async def poll(self) -> None:
        """Claim observations that no node has, and end those that were stopped. Raises `StoreUnavailable`."""
        token, key = self.node.token, self.settings.key
        if self.is_stopping or key is None or not token:
            return
        listed = {one.observation.key: one for one in await self.observations.list_observations()}
        for session, one in list(listed.items()):
            if one.state != "running":
                await self.observations.change_observation(session, None, "ended", "session_over", None, self.clock())
                del listed[session]
        ours = {session for session, one in listed.items() if one.observation.node == token}
        for session, running in self.running.items():
            if session not in ours or running.token != token:
                running.task.cancel()  # `on_end` removes it
        claimable = [session for session, one in listed.items() if one.observation.node in (None, token)]
        free = [session for session in claimable if session not in self.running]
        for session in await self.observations.claim_observations(free, token) if free else ():
            self.start(listed[session], token, key)

    def start(self, observed: ObservedSession, token: str, key: str) -> None:
        session, observation = observed.observation.key, observed.observation
        try:
            vendor = find_vendor(observation.dialect)
        except Refused:  # a different version of the service started it
            return
        address = vendor.address(self.settings.urls.get(observation.dialect, vendor.url), observation.call)
        save_state = partial(self.save_state, session, token)
        task = asyncio.create_task(ObservedCall(observed, address, key, self.parts, save_state).run())
        self.running[session] = Running(task, token)
        self.metrics.observations.set(len(self.running))
        task.add_done_callback(partial(self.on_end, session))

    def on_end(self, session: int, task: asyncio.Task[None]) -> None:
        self.running.pop(session, None)
        self.metrics.observations.set(len(self.running))
        if not task.cancelled():
            task.exception()  # it was logged

    async def save_state(
        self, session: int, token: str, state: ObservationState, reason: str | None, status: int | None
    ) -> bool:
        return await self.observations.change_observation(session, token, state, reason, status, self.clock())

    async def close(self, grace_s: float) -> None:
        """Store the frames that have arrived, and release all calls to another node or the next process."""
        self.is_stopping = True
        for _ in range(2):  # the second cancel ends the storing too
            tasks = [running.task for running in self.running.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)


async def observe_forever(observers: Observers) -> None:
    """Background task: poll for observations, once a second and when woken."""
    while True:
        with suppress(StoreUnavailable):
            await observers.poll()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await observers.wake.wait()
        observers.wake.clear()
