"""The calls that are observed: begun and stopped by callers, and done by one node each (docs/observer.md).

What is to be observed stands in the store. Each node looks there once a second, takes what no node has, and ends what
somebody has stopped. What a node had is free once it is retired, so another goes on, in the middle of a call.
"""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from contextlib import suppress
from functools import partial
from typing import NamedTuple

from voicemem.errors import Refused, StoreUnavailable
from voicemem.observer.observation import ObservedCall, Parts, Patience
from voicemem.observer.vendors import find_vendor
from voicemem.runtime import Runtime
from voicemem.sessions.nodes.own_node import OwnNode
from voicemem.sessions.nodes.presence import Presence
from voicemem.sessions.recording.recorder import Recorder
from voicemem.store.port import Observations
from voicemem.store.records import Observation, ObservationState, ObservedSession
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Metrics

LOOK_S = 1.0
READING_THREADS = 2


class ObserverSettings(NamedTuple):
    """What the operator has set; without a key nothing is observed."""

    key: str | None
    urls: Mapping[str, str]
    """In place of the vendors' own, by dialect."""
    limit: int
    """How many calls are observed at a time, on all nodes together."""


class Running(NamedTuple):
    """An observation that this node is doing, under the token that it had then."""

    task: asyncio.Task[None]
    token: str


class Observers:
    """Begins, shows and stops observations, and does those that are this node's."""

    def __init__(
        self,
        store: Observations,
        recorder: Recorder,
        presence: Presence,
        node: OwnNode,
        runtime: Runtime,
        metrics: Metrics,
        settings: ObserverSettings,
        patience: Patience = Patience(),  # noqa: B008 (it is a constant)
    ) -> None:
        self.store = store
        self.node = node
        self.clock = runtime.clock
        self.metrics = metrics
        self.settings = settings
        threads = asyncio.Semaphore(READING_THREADS)
        self.parts = Parts(recorder, presence, runtime, metrics, threads, patience)
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
        kept = await self.store.begin_observation(new, self.settings.limit)
        if kept is None:
            raise Refused("too_many_observations")
        if (kept.dialect, kept.call) != (dialect, call):
            raise Refused("already_observed")
        self.wake.set()
        return kept, kept == new

    async def get(self, stream: Stream) -> Observation:
        """The observation of a session, also one that is over. Raises `Refused` (`unknown_observation`)."""
        found = await self.store.find_observation(stream.key)
        if found is None:
            raise Refused("unknown_observation")
        return found

    async def stop(self, stream: Stream) -> Observation:
        """End the observation of a session; one that is over stays as it is.

        Raises `Refused` (`unknown_observation`).
        """
        await self.store.change_observation(stream.key, None, "stopped", None, None, self.clock())
        self.wake.set()
        return await self.get(stream)

    def on_closed(self, stream: Stream) -> None:
        """A session was closed on this node."""
        if stream.key in self.running:
            self.wake.set()

    # What this node does

    async def look(self) -> None:
        """Take what no node has, and end what is not to go on. Raises `StoreUnavailable`."""
        token, key = self.node.current_token(), self.settings.key
        if self.is_stopping or key is None or not token:
            return
        listed = {one.observation.key: one for one in await self.store.list_observations()}
        for session, one in list(listed.items()):
            if one.state != "running":
                await self.store.change_observation(session, None, "ended", "session_over", None, self.clock())
                del listed[session]
        self.end_all_but({session for session, one in listed.items() if one.observation.node == token}, token)
        wanted = [session for session, one in listed.items() if one.observation.node in (None, token)]
        wanted = [session for session in wanted if session not in self.running]
        for session in await self.store.claim_observations(wanted, token) if wanted else ():
            self.start(listed[session], token, key)

    def end_all_but(self, ours: set[int], token: str) -> None:
        """End what is not this node's under its token; a task is forgotten once it has ended."""
        for session, running in self.running.items():
            if session not in ours or running.token != token:
                running.task.cancel()

    def start(self, observed: ObservedSession, token: str, key: str) -> None:
        session, observation = observed.observation.key, observed.observation
        try:
            vendor = find_vendor(observation.dialect)
        except Refused:  # another version of the service has begun it
            return
        address = vendor.address(self.settings.urls.get(observation.dialect, vendor.url), observation.call)
        note = partial(self.note, session, token)
        task = asyncio.create_task(ObservedCall(observed, address, key, self.parts, note).run())
        self.running[session] = Running(task, token)
        self.metrics.observations.set(len(self.running))
        task.add_done_callback(partial(self.on_end, session))

    def on_end(self, session: int, task: asyncio.Task[None]) -> None:
        self.running.pop(session, None)
        self.metrics.observations.set(len(self.running))
        if not task.cancelled():
            task.exception()  # it was logged

    async def note(
        self, session: int, token: str, state: ObservationState, reason: str | None, status: int | None
    ) -> bool:
        return await self.store.change_observation(session, token, state, reason, status, self.clock())

    async def close(self, grace_s: float) -> None:
        """Let go of everything; what was taken is stored first, and another node or the next process goes on."""
        self.is_stopping = True
        for _ in range(2):  # the second time nothing is stored any more
            tasks = [running.task for running in self.running.values()]
            for task in tasks:
                task.cancel()
            if tasks:
                await asyncio.wait(tasks, timeout=grace_s)


async def observe_forever(observers: Observers) -> None:
    """Background task: observe what is to be observed."""
    while True:
        with suppress(StoreUnavailable):
            await observers.look()
        with suppress(TimeoutError):
            async with asyncio.timeout(LOOK_S):
                await observers.wake.wait()
        observers.wake.clear()
