"""Observed calls: begun and stopped over REST, and each observed by one node (docs/observer.md).

The store has what is to be observed. Each node looks there once a second, claims what no node has, and ends what was
stopped. The calls of a retired node are free to claim, so another continues them, in the middle of a call.
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
"""Stores the state of an observation; False when it is no longer this node's."""
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
        except Exception as error:  # a fault of ours would come again and again
            LOG.exception("An observation broke off: %s", type(error).__name__)
            with suppress(NotOursError):
                await self.report("failed", "internal", None)
        finally:
            await self.leave(over)

    async def observe(self) -> Interrupted:
        """Connect, again and again; why there will be no further connection."""
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
            if why.reason == "unknown_call" and self.was_connected:  # it was observed before, so it is over
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
        """Open a producer of the session, which stays open while its call is observed. Raises `Refused`."""
        observed, producer = self.observed, f"{self.observed.observation.dialect}.observer"
        opened, *_ = await self.parts.recorder.open_producer(
            observed.project, observed.session_id, SessionOpen(), may_call_out=False, own_name=producer
        )
        self.lease = ProducerLease(opened.stream, producer, opened.epoch, may_call_out=False, may_set=False)
        self.parts.presence.connect(self.lease)

    async def leave(self, over: Interrupted | None) -> None:
        """Close the producer; a session whose call is over closes soon, unless another producer is connected."""
        if self.lease is None:
            return
        presence = self.parts.presence
        with suppress(StoreUnavailable):  # the next sweep repeats it
            await presence.disconnect(self.lease, lost=over is None)
        if over is not None and over.reason == "call_over":
            presence.close_if_left(self.lease)

    async def report(self, state: ObservationState, reason: str | None, status: int | None) -> None:
        """Store the state of the observation. Raises `NotOursError`; a store that is away gets it the next time."""
        with suppress(StoreUnavailable):
            if not await self.save_state(state, reason, status):
                raise NotOursError

    def count(self, result: str) -> None:
        self.parts.metrics.observer_connections.labels(self.observed.observation.dialect, result).inc()


class ObserverSettings(NamedTuple):
    """Settings of the operator; without a key nothing is observed."""

    key: str | None
    urls: Mapping[str, str]
    """URLs in place of the vendors' own, by dialect."""
    limit: int
    """How many calls are observed at a time, on all nodes together."""


class Running(NamedTuple):
    """An observation that this node is doing, under the token that it had then."""

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
        """By the keys of sessions."""
        self.wake = asyncio.Event()
        self.is_stopping = False

    # For callers

    async def begin(self, stream: Stream, dialect: str, call: str) -> tuple[Observation, bool]:
        """Observe a call for a session; the observation, and whether it is new.

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
        """The observation of a session, also one that is over. Raises `Refused` (`unknown_observation`)."""
        observation = await self.observations.find_observation(stream.key)
        if observation is None:
            raise Refused("unknown_observation")
        return observation

    async def stop(self, stream: Stream) -> Observation:
        """End an observation; one that is over stays as it is. Raises `Refused` (`unknown_observation`)."""
        await self.observations.change_observation(stream.key, None, "stopped", None, None, self.clock())
        self.wake.set()
        return await self.get(stream)

    # What this node does

    async def poll(self) -> None:
        """Claim what no node has, and end what was stopped. Raises `StoreUnavailable`."""
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
                running.task.cancel()  # it is forgotten once it has ended
        claimable = [session for session, one in listed.items() if one.observation.node in (None, token)]
        free = [session for session in claimable if session not in self.running]
        for session in await self.observations.claim_observations(free, token) if free else ():
            self.start(listed[session], token, key)

    def start(self, observed: ObservedSession, token: str, key: str) -> None:
        session, observation = observed.observation.key, observed.observation
        try:
            vendor = find_vendor(observation.dialect)
        except Refused:  # another version of the service has begun it
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
        """Release everything; what was taken is stored first, and another node or the next process continues."""
        self.is_stopping = True
        for _ in range(2):  # the second time nothing is stored any more
            tasks = [running.task for running in self.running.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)


async def observe_forever(observers: Observers) -> None:
    """Background task: look for observations, once a second and when woken."""
    while True:
        with suppress(StoreUnavailable):
            await observers.poll()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await observers.wake.wait()
        observers.wake.clear()
