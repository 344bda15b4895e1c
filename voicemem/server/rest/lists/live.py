"""The first page of a slim list as it changes, as server-sent events.

It is read again at most once a second, and only after something was journaled, or when it is due anyway. What was sent
is kept as a digest of each row, so a slow reader takes no memory. A page costs the same however many calls there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from aiohttp import web
from msgspec import Struct

from voicemem.errors import CODES, Refused, VoicememError
from voicemem.protocol import sse
from voicemem.protocol.types import SessionId
from voicemem.server.http.request import services_of, stream_body
from voicemem.server.rest.lists.overviews import PAGE, Overview, overview_of
from voicemem.server.rest.tails import KEEP_ALIVE_S, PREAMBLE, TailCut, check_reader, encode_event
from voicemem.services import Services
from voicemem.store.records import AppendResult, SessionFilter, SessionOverview
from voicemem.store.streams import Stream

PAUSE_S = 1.0
"""Between two looks at the page, at least."""
QUIET_S, QUIET_OF_SEVERAL_S = 5.0, 2.0
"""Between two looks without a reported change: those of deliveries and of other nodes are not reported."""
FIGURES_S = 1.5
"""The same while figures are being made that the page lacks."""
TICK_S = 0.5
"""Between two looks at whether the reader is still there and still allowed."""
MAX_FOLLOWED = 200
"""Rows that are followed."""


class SessionGone(Struct, frozen=True):
    """A session that is not in the list any more: it was erased, or does not match now."""

    session_id: SessionId
    erased: bool


LiveListData = Overview | SessionGone | TailCut
"""The `data` of the events `session` and `gone`, and of `goaway` and `error`."""


class SentRow(NamedTuple):
    """The row of a session that a reader has."""

    session_id: str
    place: tuple[int, int]
    digest: bytes


class Changes:
    """Notes whether anything may have changed in the sessions of a project."""

    def __init__(self, project: str) -> None:
        self.project = project
        self.noted = asyncio.Event()

    def on_commit(self, appended: Iterable[AppendResult]) -> None:
        if not self.noted.is_set() and any(one.stream.project == self.project for one in appended):
            self.noted.set()

    def on_change(self, stream: Stream) -> None:
        if stream.project == self.project:
            self.noted.set()

    async def wait(self, at_most_s: float) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(at_most_s):
                await self.noted.wait()


async def answer_live(request: web.Request, conditions: SessionFilter) -> web.StreamResponse:
    """Answer with the first rows, and then with what changes, until the reader has hung up."""
    if services_of(request).draining.is_set():
        raise Refused("draining")
    wanted = msgspec.structs.replace(conditions, limit=min(MAX_FOLLOWED, conditions.limit))
    return await stream_body(request, sse.HEADERS, live_events(request, wanted))


async def live_events(request: web.Request, wanted: SessionFilter) -> AsyncGenerator[bytes, None]:
    """Yield rows as server-sent events; the last one says why they end."""
    services = services_of(request)
    yield PREAMBLE
    time = asyncio.get_running_loop().time
    last_write = time()
    sent: dict[int, SentRow] = {}
    try:
        with noted_changes(services, wanted.project) as changes:
            while not services.draining.is_set():
                looked_at = time()
                changes.noted.clear()
                async for piece in look(services, wanted, sent):
                    yield piece
                    last_write = time()
                if time() - last_write >= KEEP_ALIVE_S:
                    yield sse.KEEP_ALIVE
                    last_write = time()
                await rest(request, changes, looked_at)
    except VoicememError as error:
        yield encode_event(None, "error", TailCut(error.code, error.detail))
    else:
        yield encode_event(None, "goaway", TailCut("draining", CODES["draining"].sentence))


@contextmanager
def noted_changes(services: Services, project: str) -> Iterator[Changes]:
    """What is reported of a project, for as long as somebody follows its list."""
    changes, listeners = Changes(project), services.sessions.list_listeners
    services.recorder.feed.subscribe(changes.on_commit)
    listeners.append(changes.on_change)
    try:
        yield changes
    finally:
        services.recorder.feed.unsubscribe(changes.on_commit)
        listeners.remove(changes.on_change)


async def rest(request: web.Request, changes: Changes, looked_at: float) -> None:
    """Wait until the page is worth another look, or the service shuts down; raises as `check_reader`."""
    services, time = services_of(request), asyncio.get_running_loop().time
    quiet_s = QUIET_S if services.store.is_exclusive else QUIET_OF_SEVERAL_S
    due = looked_at + (FIGURES_S if services.overviews.wanted else quiet_s)
    await check_reader(request)
    while time() < due and not (changes.noted.is_set() or services.draining.is_set()):
        await changes.wait(TICK_S)
        await check_reader(request)
    left = looked_at + PAUSE_S - time()
    if left > 0:
        with suppress(TimeoutError):
            async with asyncio.timeout(left):
                await services.draining.wait()


async def look(services: Services, wanted: SessionFilter, sent: dict[int, SentRow]) -> AsyncGenerator[bytes, None]:
    """Yield what has changed on the page since it was sent; `sent` is brought up to date."""
    met: set[int] = set()
    cursor: str | None = None
    while True:
        part = msgspec.structs.replace(wanted, limit=min(PAGE, wanted.limit - len(met)))
        page, cursor = await services.sessions.list_overviews(part, cursor)
        met.update(row.key for row in page)
        if changed := encode_changed(services, page, sent):
            yield changed
        if cursor is None or len(met) == wanted.limit or len(page) < part.limit:
            break
    last = min((sent[key].place for key in met), default=None) if cursor is not None else None
    for key in sent.keys() - met:
        gone = sent.pop(key)
        if last is None or gone.place > last:  # newer calls have pushed the others off the page
            stream = await services.store.find_session(wanted.project, gone.session_id)
            yield encode_event(None, "gone", SessionGone(gone.session_id, erased=stream is None))


def encode_changed(services: Services, page: list[SessionOverview], sent: dict[int, SentRow]) -> bytes:
    """The rows of a page that differ from what was sent."""
    pieces = []
    for row in page:
        encoded = msgspec.json.encode(overview_of(services, row))
        now = SentRow(row.session_id, (row.started_ms, row.key), blake2b(encoded, digest_size=16).digest())
        if sent.get(row.key) != now:
            sent[row.key] = now
            pieces.append(sse.encode(encoded, event="session"))
    return b"".join(pieces)
