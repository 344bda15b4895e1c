"""The slim list of sessions, with a few figures of each memory, once or as server-sent events while it changes.

A list that is followed is read again at most once a second, and only after something was journaled, or when it is due
anyway. What was sent is kept as a digest of each row, so a slow reader takes no memory. A page costs the same however
many calls there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Iterable, Iterator
from contextlib import contextmanager, suppress
from hashlib import blake2b
from typing import NamedTuple

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, Struct, UnsetType

from voicemem.errors import CODES, Refused, VoicememError
from voicemem.memory.statistics import OverviewFigures
from voicemem.protocol import sse
from voicemem.protocol.types import SessionId
from voicemem.server.http.request import json_response, services_of, stream_body
from voicemem.server.http.routes import JSON
from voicemem.server.rest.tails import KEEP_ALIVE_S, PREAMBLE, TailCut, check_reader, encode_event
from voicemem.services import Services
from voicemem.sessions.lifecycle import StateName
from voicemem.store.admission import AppendResult
from voicemem.store.deliveries import DeliveryState
from voicemem.store.records import SessionFilter, SessionOverview
from voicemem.store.streams import Stream

PAGE = 50
"""Rows that are read and written at a time, so that figures of many running calls do not hold up others."""


class SessionWebhooks(Struct, frozen=True):
    """The webhooks of a session: `failed` if any has, else `pending` if any is, else `delivered`."""

    state: DeliveryState
    next_attempt_at: int | None


class SessionRow(Struct, frozen=True):
    """A session in a slim list; times are Unix ms, `active_at` is that of the last entry of its journal.

    `name` and `reason` have at most 160 characters. `labels` is null without any, and where they take more than 2,048.
    `webhooks` is null where there was nothing to deliver.
    """

    session_id: SessionId
    name: str | None
    user_id: str | None
    labels: dict[str, str] | None
    state: StateName
    reason: str | None
    started_at: int
    ended_at: int | None
    active_at: int
    webhooks: SessionWebhooks | None


class Overview(SessionRow, frozen=True):
    """`figures` are null until they are made, within seconds; those of a running session may be seconds old."""

    figures: OverviewFigures | None


class EncodedOverview(SessionRow, frozen=True):
    """An overview whose figures, and labels, are already JSON."""

    labels: Raw | None  # type: ignore[assignment]
    figures: Raw | None


class OverviewPage(Struct, frozen=True):
    """With `fields=overview`: the newest sessions first; `next_cursor` is null on the last page.

    `total` is there with `count=true`: how many match over all pages, 10,001 for more than 10,000, and null where too
    many sessions would have to be looked at.
    """

    sessions: list[Overview]
    next_cursor: str | None
    total: int | UnsetType | None = UNSET


async def answer_overviews(
    request: web.Request, conditions: SessionFilter, cursor: str | None, with_total: bool
) -> web.StreamResponse:
    """Answer with an `OverviewPage`."""
    services, limit = services_of(request), conditions.limit
    first = msgspec.structs.replace(conditions, limit=min(PAGE, limit))
    total = b""
    if with_total:
        total = b',"total":' + msgspec.json.encode(await services.sessions.count_overviews(conditions))
    page, cursor = await services.sessions.list_overviews(first, cursor)
    if cursor is None or limit <= PAGE or len(page) < first.limit:
        return json_response(Raw(b'{"sessions":[' + encode_rows(services, page) + end_of_page(cursor, total)))
    pieces = rows_in_pieces(services, conditions, page, cursor, total)
    return await stream_body(request, {"Content-Type": JSON}, pieces)


async def rows_in_pieces(
    services: Services, conditions: SessionFilter, page: list[SessionOverview], cursor: str | None, total: bytes
) -> AsyncGenerator[bytes, None]:
    """Yield an `OverviewPage` that begins with this page. It ends where many were looked at."""
    yield b'{"sessions":[' + encode_rows(services, page)
    count, asked = len(page), len(page)
    while cursor is not None and count < conditions.limit and len(page) == asked:
        asked = min(PAGE, conditions.limit - count)
        page, cursor = await services.sessions.list_overviews(msgspec.structs.replace(conditions, limit=asked), cursor)
        if page:
            yield b"," + encode_rows(services, page)
        count += len(page)
    yield end_of_page(cursor, total)


def end_of_page(cursor: str | None, total: bytes) -> bytes:
    return b'],"next_cursor":' + msgspec.json.encode(cursor) + total + b"}"


def encode_rows(services: Services, page: list[SessionOverview]) -> bytes:
    return b",".join(msgspec.json.encode(overview_of(services, row)) for row in page)


def overview_of(services: Services, row: SessionOverview) -> EncodedOverview:
    figures = services.overviews.figures(row)
    return EncodedOverview(
        session_id=row.session_id,
        name=row.name,
        user_id=row.user_id,
        labels=None if row.labels is None else Raw(row.labels.encode()),
        state=row.state,
        reason=row.reason,
        started_at=row.started_ms,
        ended_at=row.ended_ms,
        active_at=row.active_ms,
        webhooks=None if row.webhooks is None else SessionWebhooks(row.webhooks, row.next_attempt_ms),
        figures=None if figures is None else Raw(figures),
    )


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
    """Yield the changes that are reported of a project, for as long as its list is followed."""
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
    due = looked_at + (FIGURES_S if services.overviews.pending else quiet_s)
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
            stream = await services.store.journal.find_session(wanted.project, gone.session_id)
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
