"""Sessions from their creation to their close: who is connected, what is due, how they are listed and read."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, NamedTuple

import msgspec

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import validate_config
from voicemem.errors import Refused, StoreUnavailable
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.sessions.batches import Line
from voicemem.store.port import Store
from voicemem.store.records import Restored, StreamFilter
from voicemem.store.streams import Ending, Stream

CLOSED_BY_REQUEST = "api"
"""The reason of a close over REST that gives none."""
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

    line: Line
    expected: Expected
    until_ms: int


class Sessions:
    """The life of sessions.

    `check_settings` raises `Refused` for settings that may not be set.
    """

    def __init__(self, store: Store, runtime: Runtime, check_settings: Callable[[SessionPatch], None]) -> None:
        self.store = store
        self.clock = runtime.clock
        self.new_id = runtime.new_id
        self.check_settings = check_settings
        self.connected: dict[tuple[str, str], Counter[str]] = {}
        """How many connections each producer has, by project and session id."""
        self.left: dict[tuple[str, str], Line] = {}
        """Of each connected session, the line that left it last."""
        self.fallen_silent: dict[int, tuple[Line, int]] = {}
        """Lines that were their sessions' last, and since when (Unix ms), where the store could not be told yet."""
        self.awaited: dict[tuple[str, str], dict[str, int]] = {}
        """Until when producers without a connection are waited for (Unix ms), by project and session id."""
        self.waiting: dict[tuple[str, str], Waiting] = {}
        """Sessions whose end has come, and that are not closed yet, by project and id."""
        self.began_ms = self.clock()
        self.seen: dict[tuple[str, str], set[str]] = {}
        """Producers that were connected since then, by project and session id; kept for a while."""
        self.joining = asyncio.Lock()
        """Held from the look at a name until it is taken."""
        self.notices_due = asyncio.Event()
        """Set at every start and close: there may be notices to send."""

    # Reading

    async def get(self, project: str, session_id: str) -> Stream:
        """Raises `Refused` (`unknown_session`)."""
        stream = await self.store.stream(project, session_id)
        if stream is None:
            raise Refused("unknown_session")
        return stream

    async def list(self, wanted: StreamFilter, cursor: str | None) -> tuple[list[Stream], str | None]:
        """A page of sessions, the newest first, and the cursor of the next page. Raises `Refused`."""
        after = None if cursor is None else self.read_cursor(wanted.project, cursor)
        page = await self.store.streams(msgspec.structs.replace(wanted, after=after, limit=wanted.limit + 1))
        if len(page) <= wanted.limit:
            return page, None
        page = page[: wanted.limit]
        return page, self.write_cursor(wanted.project, page[-1])

    def write_cursor(self, project: str, last: Stream) -> str:
        body = msgspec.json.encode([last.started_ms, last.key])
        return base64.urlsafe_b64encode(self.sign(project, body) + body).decode().rstrip("=")

    def read_cursor(self, project: str, cursor: str) -> tuple[int, int]:
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raise Refused("invalid_cursor") from None
        signature, body = raw[:16], raw[16:]
        if not hmac.compare_digest(signature, self.sign(project, body)):
            raise Refused("invalid_cursor")
        return msgspec.json.decode(body, type=tuple[int, int])

    def sign(self, project: str, body: bytes) -> bytes:
        """Cursors hold for one project and one incarnation of the store."""
        scope = f"{self.store.incarnation}\0{project}\0".encode()
        return hmac.digest(self.store.cursor_secret, scope + body, "sha256")[:16]

    # Changing

    async def create(self, project: str, session_id: str | None, given: JsonObject) -> tuple[Stream, bool]:
        """A session, and whether it is new. Raises `Refused` (`session_exists`) when it is there but different."""
        session_patch = validate_config(given)
        self.check_settings(session_patch)
        stream, how = await self.store.create(project, session_id or self.new_id(), session_patch, self.clock())
        if how == "different":
            raise Refused("session_exists")
        if how == "created":
            self.notices_due.set()
        return stream, how == "created"

    async def restore(
        self, project: str, session_id: str | None, session_patch: SessionPatch, restored: Restored
    ) -> Stream:
        """A new session with a journal. Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`)."""
        self.check_settings(session_patch)
        stream = await self.store.restore(project, session_id or self.new_id(), session_patch, restored, self.clock())
        if stream is None:
            raise Refused("session_exists", "There is a session with this id.")
        self.notices_due.set()
        return stream

    async def join(self, project: str, given: JsonObject) -> Stream:
        """A new session. Raises `Refused` (`session_exists`) while another one of its name is running."""
        async with self.joining:
            name = given.get("name")
            if isinstance(name, str) and await self.store.is_running(project, name):
                raise Refused("session_exists", "A session of this name is running.")
            stream, _ = await self.create(project, None, given)
            return stream

    async def count(self, wanted: StreamFilter) -> int:
        """How many sessions a list has, over all its pages."""
        return await self.store.count_streams(wanted)

    async def change(self, stream: Stream, patch: JsonObject) -> Stream:
        """Merge a patch into the configuration. Raises `Refused` (`invalid_field`, `session_ended`)."""
        session_patch = validate_config(patch)
        self.check_settings(session_patch)
        payload = msgspec.json.encode({"type": "session.update", **without_type(session_patch.public)})
        return await self.store.change(stream.key, session_patch, payload, self.clock())

    async def end(self, stream: Stream, reason: str | None) -> Stream:
        """End and close at once; a session that was closed before stays as it was."""
        now = self.clock()
        closed = await self.store.close(stream.key, Ending(now, reason or CLOSED_BY_REQUEST), self.new_id(), now)
        if closed is None:
            return await self.get(stream.project, stream.id)
        self.notices_due.set()
        return closed

    async def erase(self, stream: Stream) -> None:
        await self.store.erase(stream.key, self.clock())

    # Connections and closing

    def connect(self, project: str, session_id: str, producer: str) -> None:
        """Note a connection, before its open is committed, so that no disconnection in between counts as silence."""
        self.awaited.get((project, session_id), {}).pop(producer, None)
        if self.clock() < self.began_ms + AWAITED_MS:
            self.seen.setdefault((project, session_id), set()).add(producer)
        self.connected.setdefault((project, session_id), Counter())[producer] += 1

    def wait_for(self, line: Line) -> None:
        """Its producer is not connected, and may still have something to say."""
        self.awaited.setdefault((line.project, line.session_id), {})[line.producer] = self.clock() + AWAITED_MS

    async def disconnect(self, line: Line, lost: bool = False) -> None:
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
            self.fallen_silent[line.key] = (line, self.clock())
            await self.tell_silence()

    async def tell_silence(self) -> None:
        """Tell the store of sessions without a connection. Raises `StoreUnavailable`; the sweep then calls it again."""
        while self.fallen_silent:
            key, (line, since) = self.fallen_silent.popitem()
            if (line.project, line.session_id) in self.connected:
                continue  # it came back meanwhile
            try:
                await self.store.silence(key, since)
            except StoreUnavailable:
                self.fallen_silent.setdefault(key, (line, since))
                raise

    async def close_when_ended(self, line: Line) -> None:
        """Close a session whose end was committed, unless another producer that is expected has not ended."""
        expected = self.expected(line)
        if not await self.close_unless_expected(line, expected):
            self.waiting[line.project, line.session_id] = Waiting(line, expected, self.clock() + AWAITED_MS)

    def expected(self, line: Line) -> Expected:
        """Who is connected, or probably on the way back."""
        session, now = (line.project, line.session_id), self.clock()
        awaited = [name for name, until in self.awaited.get(session, {}).items() if until > now]
        seen = self.seen.get(session, set()) if now < self.began_ms + AWAITED_MS else None
        return Expected(
            frozenset([*self.connected.get(session, ()), *awaited]), None if seen is None else frozenset(seen)
        )

    async def close_unless_expected(self, line: Line, expected: Expected) -> bool:
        closed = await self.store.close_ended(
            line.key, sorted(expected.producers), expected.seen, self.new_id(), self.clock()
        )
        if closed is None:
            return False
        self.waiting.pop((line.project, line.session_id), None)
        self.notices_due.set()
        return True

    async def close_waiting(self) -> None:
        """Close what waited for producers that are not expected any more."""
        for session, waiting in list(self.waiting.items()):
            expected = self.expected(waiting.line)
            if expected != waiting.expected:
                await self.close_unless_expected(waiting.line, expected)
            if session in self.waiting:
                self.waiting[session] = waiting._replace(expected=expected)
                if self.clock() >= waiting.until_ms:
                    del self.waiting[session]

    async def sweep(self) -> int:
        """Close what is due; how many sessions were closed."""
        if not self.store.healthy:
            await self.store.probe()
        await self.tell_silence()
        now, count = self.clock(), 0
        await self.close_waiting()
        self.forget_awaited(now)
        for key in await self.store.due(now, SWEEP_BATCH):
            if await self.store.close(key, None, self.new_id(), now) is not None:
                count += 1
        if count:
            self.notices_due.set()
        return count

    def forget_awaited(self, now: int) -> None:
        """Those that did not come back."""
        if now >= self.began_ms + AWAITED_MS:
            self.seen.clear()
        for session, producers in list(self.awaited.items()):
            if all(until <= now for until in producers.values()):
                del self.awaited[session]


async def sweep_forever(sessions: Sessions) -> None:
    """Close what is due, a few times a second."""
    while True:
        with suppress(StoreUnavailable):  # what is due now is due later too
            await sessions.sweep()
        await asyncio.sleep(SWEEP_S)


def without_type(values: JsonObject) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "type"}
