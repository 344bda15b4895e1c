"""Who is connected to a session, who is expected back, and what is therefore due: silence, an end, a close."""

from __future__ import annotations

import asyncio
from collections import Counter
from contextlib import suppress
from typing import NamedTuple

from voicemem.errors import StoreUnavailable
from voicemem.sessions.batches import ProducerLease
from voicemem.sessions.lifecycle import Sessions

SWEEP_BATCH = 200
AWAITED_MS = 10_000
"""For whom an end waits (never longer than the grace): producers whose connections were lost so lately that they are
probably on their way back, those that sent over HTTP, and after a start all that were ever connected."""
SWEEP_S = 0.2


class Expected(NamedTuple):
    """Producers of a session that may still have something to say.

    With `seen`, also those that were connected at some time, and are not among these.
    """

    producers: frozenset[str]
    seen: frozenset[str] | None


class Waiting(NamedTuple):
    """A session whose end has come, and for whom it waits; after `until_ms` it was closed long ago."""

    line: ProducerLease
    expected: Expected
    until_ms: int


class Presence:
    """The connections that this process has to sessions, and the closing of those that are over."""

    def __init__(self, sessions: Sessions) -> None:
        self.sessions = sessions
        self.connected: dict[tuple[str, str], Counter[str]] = {}
        """How many connections each producer has, by project and session id."""
        self.left: dict[tuple[str, str], ProducerLease] = {}
        """Of each connected session, the line that left it last."""
        self.fallen_silent: dict[int, tuple[ProducerLease, int]] = {}
        """Lines that were their sessions' last, and since when (Unix ms), where the store could not be told yet."""
        self.awaited: dict[tuple[str, str], dict[str, int]] = {}
        """Until when producers without a connection are waited for (Unix ms), by project and session id."""
        self.waiting: dict[tuple[str, str], Waiting] = {}
        """Sessions whose end has come, and that are not closed yet, by project and id."""
        self.began_ms = sessions.clock()
        self.seen: dict[tuple[str, str], set[str]] = {}
        """Producers that were connected since then, by project and session id; kept for a while."""

    def connect(self, project: str, session_id: str, producer: str) -> None:
        """Note a connection, before its open is committed, so that no disconnection in between counts as silence."""
        self.awaited.get((project, session_id), {}).pop(producer, None)
        if self.sessions.clock() < self.began_ms + AWAITED_MS:
            self.seen.setdefault((project, session_id), set()).add(producer)
        self.connected.setdefault((project, session_id), Counter())[producer] += 1

    def wait_for(self, line: ProducerLease) -> None:
        """Its producer is not connected, and may still have something to say."""
        self.awaited.setdefault((line.project, line.session_id), {})[line.producer] = self.sessions.clock() + AWAITED_MS

    async def disconnect(self, line: ProducerLease, lost: bool = False) -> None:
        """The session falls silent with its last connection, or closes when only this one kept it from its end.

        `lost` says that the connection broke, so that its producer may be on its way back.
        """
        if lost:
            self.wait_for(line)
        self.left[line.project, line.session_id] = line
        await self.count_out(line.project, line.session_id, line.producer)
        await self.close_unless_expected(line, self.expected(line))

    async def abandon(self, project: str, session_id: str, producer: str) -> None:
        """The connection whose open failed is none; the session may have lost its last real one meanwhile."""
        with suppress(StoreUnavailable):
            await self.count_out(project, session_id, producer)

    async def count_out(self, project: str, session_id: str, producer: str) -> None:
        """The opposite of `connect`. Raises `StoreUnavailable`."""
        producers = self.connected.get((project, session_id), Counter[str]())
        producers[producer] -= 1
        if producers[producer] <= 0:
            del producers[producer]
        if producers:
            return
        self.connected.pop((project, session_id), None)
        line = self.left.pop((project, session_id), None)
        if line is not None:
            self.fallen_silent[line.key] = (line, self.sessions.clock())
            await self.tell_silence()

    async def tell_silence(self) -> None:
        """Tell the store of sessions without a connection. Raises `StoreUnavailable`; the sweep then calls it again."""
        while self.fallen_silent:
            key, (line, since) = self.fallen_silent.popitem()
            if (line.project, line.session_id) in self.connected:
                continue  # it came back meanwhile
            try:
                await self.sessions.store.silence(key, since)
            except StoreUnavailable:
                self.fallen_silent.setdefault(key, (line, since))
                raise

    async def close_when_ended(self, line: ProducerLease) -> None:
        """Close a session whose end was committed, unless another producer that is expected has not ended."""
        expected = self.expected(line)
        if not await self.close_unless_expected(line, expected):
            self.waiting[line.project, line.session_id] = Waiting(line, expected, self.sessions.clock() + AWAITED_MS)

    def expected(self, line: ProducerLease) -> Expected:
        """Who is connected, or probably on the way back."""
        session, now = (line.project, line.session_id), self.sessions.clock()
        awaited = [name for name, until in self.awaited.get(session, {}).items() if until > now]
        seen = self.seen.get(session, set()) if now < self.began_ms + AWAITED_MS else None
        return Expected(
            frozenset([*self.connected.get(session, ()), *awaited]), None if seen is None else frozenset(seen)
        )

    async def close_unless_expected(self, line: ProducerLease, expected: Expected) -> bool:
        closed = await self.sessions.store.close_ended(
            line.key, sorted(expected.producers), expected.seen, self.sessions.new_id(), self.sessions.clock()
        )
        if closed is None:
            return False
        self.waiting.pop((line.project, line.session_id), None)
        self.sessions.notices_due.set()
        return True

    async def close_waiting(self) -> None:
        """Close what waited for producers that are not expected any more."""
        for session, waiting in list(self.waiting.items()):
            expected = self.expected(waiting.line)
            if expected != waiting.expected:
                await self.close_unless_expected(waiting.line, expected)
            if session in self.waiting:
                self.waiting[session] = waiting._replace(expected=expected)
                if self.sessions.clock() >= waiting.until_ms:
                    del self.waiting[session]

    async def sweep(self) -> int:
        """Close what is due; how many sessions were closed."""
        if not self.sessions.store.healthy:
            await self.sessions.store.probe()
        await self.tell_silence()
        now, count = self.sessions.clock(), 0
        await self.close_waiting()
        self.forget_awaited(now)
        for key in await self.sessions.store.due(now, SWEEP_BATCH):
            if await self.sessions.store.close(key, None, self.sessions.new_id(), now) is not None:
                count += 1
        if count:
            self.sessions.notices_due.set()
        return count

    def forget_awaited(self, now: int) -> None:
        """Those that did not come back."""
        if now >= self.began_ms + AWAITED_MS:
            self.seen.clear()
        for session, producers in list(self.awaited.items()):
            if all(until <= now for until in producers.values()):
                del self.awaited[session]


async def sweep_forever(presence: Presence) -> None:
    """Close what is due, a few times a second."""
    while True:
        with suppress(StoreUnavailable):  # what is due now is due later too
            await presence.sweep()
        await asyncio.sleep(SWEEP_S)
