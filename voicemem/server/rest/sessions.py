"""Sessions: create, list, read, change, end, erase; lists with a few figures of each memory, once or as they change.

A followed list is read again at most once a second, and only after something was journaled, or when it is due anyway.
Of the rows that were sent only digests are kept, so a slow reader takes no memory. A page costs the same however many
calls there are.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from hashlib import blake2b
from typing import Annotated, Literal, NamedTuple, TypeVar

import msgspec
from aiohttp import web
from msgspec import UNSET, Meta, Raw, Struct, UnsetType, structs

from voicemem.config.session import SessionConfig, changes_outbound
from voicemem.errors import Refused
from voicemem.memory.search import Millis
from voicemem.memory.statistics import OverviewFigures
from voicemem.protocol import sse
from voicemem.protocol.codec import check_text
from voicemem.protocol.memories import MAX_OUTCOME
from voicemem.protocol.sse import EVENT_STREAM
from voicemem.protocol.types import MAX_INTEGER, JsonObject, SessionId
from voicemem.security.audit import audit
from voicemem.server.http.openapi import reference
from voicemem.server.http.request import Request, check_session_id, json_response, read_object, stream_body
from voicemem.server.http.routes import JSON, MergePatch, ResponseSpec, Routes, optional
from voicemem.server.rest.memories import token_scope
from voicemem.server.rest.tails import TailCut, encode_event, stream_events, wants_tail
from voicemem.services import Services
from voicemem.sessions.lifecycle import Label, SessionInfo, StateName, info_of, session_filter
from voicemem.store.append_rules import AppendResult
from voicemem.store.deliveries import DeliveryState
from voicemem.store.records import MAX_COUNTED, SessionOverview
from voicemem.store.scopes import NAMESPACE_LABEL
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import Stream

ROUTES = Routes()
CONFIG_CODES = "invalid_field address_not_allowed"
WHAT_TOKENS_LIST = (
    "A session token lists sessions only if it reaches the memories of its user: then those of this user and its "
    "namespace, with fields=overview."
)
NOT_CREATOR = "After the end, `user_id` is set with the scope admin, or with the key that created the session."
MAX_QUERY = 500
R = TypeVar("R")
PAGE = 50
"""Rows that are read and written at a time, so that figures of many running calls do not hold up others."""
PAGE_IN_FULL = 20
"""Sessions with their configurations that are read and written at a time, each of which may have 256 KiB."""
MAX_PAGE_BYTES = 4 * 1024 * 1024
"""A page ends with the piece that brings it to this size, and `next_cursor` continues from there."""


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
    """A page of overviews (`fields=overview`), the newest sessions first; `next_cursor` is null on the last page.

    `total` is there with `count=true`: how many match over all pages, 10,001 for more than 10,000, and null where too
    many sessions would have to be looked at.
    """

    sessions: list[Overview]
    next_cursor: str | None
    total: int | UnsetType | None = UNSET


async def answer_overviews(
    request: Request, conditions: SessionFilter, cursor: str | None, with_total: bool
) -> web.StreamResponse:
    services, total = request.services, b""
    if with_total:
        total = b',"total":' + msgspec.json.encode(
            await services.store.overviews.count_overviews(conditions, MAX_COUNTED + 1)
        )
    read, view = services.sessions.list_overviews, partial(overview_of, services)
    return await answer_page(request, conditions, cursor, read, view, PAGE, ends_short=True, total=total)


async def answer_page(
    request: Request,
    conditions: SessionFilter,
    cursor: str | None,
    read: Callable[[SessionFilter, str | None], Awaitable[tuple[list[R], str | None]]],
    view: Callable[[R], Struct],
    at_once: int,
    *,
    ends_short: bool = False,
    total: bytes = b"",
) -> web.StreamResponse:
    """Answer with a page of sessions, reading and writing `at_once` of them at a time.

    It ends early once it has `MAX_PAGE_BYTES`, and with `ends_short` if a read finds fewer than requested.
    """

    async def read_piece(count: int, cursor: str | None) -> tuple[bytes, int, str | None, bool]:
        part = structs.replace(conditions, limit=min(at_once, conditions.limit - count))
        rows, cursor = await read(part, cursor)
        count += len(rows)
        is_last = cursor is None or count >= conditions.limit or (ends_short and len(rows) < part.limit)
        return b",".join(msgspec.json.encode(view(row)) for row in rows), count, cursor, is_last

    async def pieces() -> AsyncGenerator[bytes, None]:
        piece, count, cursor, is_last = first
        yield b'{"sessions":[' + piece
        size = len(piece)
        while not is_last and size < MAX_PAGE_BYTES:
            piece, count, cursor, is_last = await read_piece(count, cursor)
            if piece:
                yield b"," + piece
            size += len(piece)
        yield b'],"next_cursor":' + msgspec.json.encode(cursor) + total + b"}"

    first = await read_piece(0, cursor)  # an error must come before the head of the answer
    if first[-1]:
        return json_response(Raw(b"".join([piece async for piece in pieces()])))
    return await stream_body(request, {"Content-Type": JSON}, pieces())


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
"""The shortest time between two reads of the page."""
QUIET_S, QUIET_OF_SEVERAL_S = 5.0, 2.0
"""The time between two reads without a reported change: changes of deliveries and of other nodes are not reported."""
FIGURES_S = 1.5
"""The time between two reads while figures are being made that the page lacks."""
TICK_S = 0.5
"""The time between two checks that the reader is still connected and still allowed."""
MAX_FOLLOWED = 200


class SessionGone(Struct, frozen=True):
    """A session that is not in the list any more: it was erased, or does not match now."""

    session_id: SessionId
    erased: bool


LiveListData = Overview | SessionGone | TailCut
"""The `data` of the events `session` and `gone`, and of `goaway` and `error`."""


class SentRow(NamedTuple):
    """A session's row that was sent to a reader."""

    session_id: str
    place: tuple[int, int]
    digest: bytes


async def live_rows(services: Services, session_filter: SessionFilter) -> AsyncGenerator[list[bytes], None]:
    """Yield rows that have changed, as server-sent events, and an empty list now and then, until the service stops."""
    time, draining = asyncio.get_running_loop().time, services.draining
    quiet_s = QUIET_S if services.store.is_exclusive else QUIET_OF_SEVERAL_S
    sent: dict[int, SentRow] = {}
    with noted_changes(services, session_filter.project) as changed:
        while not draining.is_set():
            looked_at = time()
            changed.clear()
            async for piece in changed_rows(services, session_filter, sent):
                yield [piece]
            yield []
            due = looked_at + (FIGURES_S if services.overviews.pending else quiet_s)
            while time() < due and not (changed.is_set() or draining.is_set()):
                await wait_for(changed, TICK_S)
                yield []
            await wait_for(draining, looked_at + PAUSE_S - time())


async def wait_for(event: asyncio.Event, at_most_s: float) -> None:
    with suppress(TimeoutError):
        async with asyncio.timeout(at_most_s):
            await event.wait()


@contextmanager
def noted_changes(services: Services, project: str) -> Iterator[asyncio.Event]:
    """Yield an event that is set when anything may have changed in the sessions of a project."""
    changed, feed, listeners = asyncio.Event(), services.recorder.feed, services.sessions.list_listeners

    def on_commit(appended: Iterable[AppendResult]) -> None:
        if not changed.is_set() and any(one.stream.project == project for one in appended):
            changed.set()

    def on_change(stream: Stream) -> None:
        if stream.project == project:
            changed.set()

    feed.listeners.append(on_commit)
    listeners.append(on_change)
    try:
        yield changed
    finally:
        feed.listeners.remove(on_commit)
        listeners.remove(on_change)


async def changed_rows(
    services: Services, session_filter: SessionFilter, sent: dict[int, SentRow]
) -> AsyncGenerator[bytes, None]:
    """Yield the rows of the page that have changed since they were sent; `sent` is updated."""
    met: set[int] = set()
    cursor: str | None = None
    while True:
        part = structs.replace(session_filter, limit=min(PAGE, session_filter.limit - len(met)))
        page, cursor = await services.sessions.list_overviews(part, cursor)
        met.update(row.key for row in page)
        if changed := encode_changed(services, page, sent):
            yield changed
        if cursor is None or len(met) == session_filter.limit or len(page) < part.limit:
            break
    last = min((sent[key].place for key in met), default=None) if cursor is not None else None
    for key in sent.keys() - met:
        gone = sent.pop(key)
        if last is None or gone.place > last:  # newer calls have pushed the others off the page
            stream = await services.store.journal.find_session(session_filter.project, gone.session_id)
            yield encode_event(None, "gone", SessionGone(gone.session_id, erased=stream is None))


def encode_changed(services: Services, page: list[SessionOverview], sent: dict[int, SentRow]) -> bytes:
    pieces = []
    for row in page:
        encoded = msgspec.json.encode(overview_of(services, row))
        now = SentRow(row.session_id, (row.started_ms, row.key), blake2b(encoded, digest_size=16).digest())
        if sent.get(row.key) != now:
            sent[row.key] = now
            pieces.append(sse.encode(encoded, event="session"))
    return b"".join(pieces)


# Routes


class SessionsQuery(Struct, frozen=True, forbid_unknown_fields=True):
    """The query of a list of sessions: `label` is `key:value` or `key=value`; the first of the two signs ends the key.

    With `fields=overview` the rows have no configuration, but figures of the memory. Only these have `total`, for
    `count=true`. `interrupted`, `slow` in ms and `outcome`, that of the analysis, go by the figures that were saved
    last; `webhook` means calls with any delivery in that state. `q` means words that were heard in one message, or the
    beginning of an id or a user.
    """

    fields: Literal["full", "overview"] = "full"
    state: Literal["running", "ended"] | None = None
    user_id: str | None = None
    label: Label | None = None
    interrupted: bool | None = None
    slow: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] | None = None
    outcome: Annotated[str, Meta(min_length=1, max_length=MAX_OUTCOME)] | None = None
    webhook: Literal["failed", "pending"] | None = None
    q: Annotated[str, Meta(min_length=1, max_length=MAX_QUERY)] | None = None
    count: bool = False
    started_after: Millis | None = None
    started_before: Millis | None = None
    limit: Annotated[int, Meta(ge=1, le=1000)] = 100
    cursor: str | None = None


class GivenConfig(SessionConfig, frozen=True, forbid_unknown_fields=True):
    """A configuration as clients send it; `system_messages` at the top is short for `llm.system_messages`."""

    system_messages: tuple[Annotated[JsonObject, Meta(extra_json_schema=reference("SystemMessage"))], ...] = ()
    """Short for `llm.system_messages`."""


class NewSession(GivenConfig, frozen=True, forbid_unknown_fields=True):
    """A configuration, and an id; without one the server generates it."""

    session_id: SessionId | None = None


class Ending(Struct, frozen=True, forbid_unknown_fields=True):
    """The reason for which a session ends."""

    reason: str | None = None


class SessionPage(Struct, frozen=True):
    """A page of sessions, the newest first; `next_cursor` is null on the last page."""

    sessions: list[SessionInfo]
    next_cursor: str | None


@ROUTES.add(
    "POST /v1/sessions",
    "ingest",
    dict.fromkeys((200, 201), ResponseSpec({JSON: SessionInfo}, id_field="session_id")),
    optional(MergePatch(NewSession)),
    f"{CONFIG_CODES} session_exists session_erased quota_exceeded",
)
async def create_session(request: Request) -> web.StreamResponse:
    """Create a session from its configuration.

    The answer is 200 if it exists with the same configuration, and 409 if it exists with another one.
    """
    config = await read_object(request)
    session_id = config.pop("session_id", None)
    if session_id is not None:
        session_id = check_session_id(session_id)
    check_outbound_change(request, config)
    grant = request.grant
    stream, new = await request.services.sessions.create(grant.project, session_id, config, grant.key_id)
    if new:
        note_outbound_change(request, config, stream)
    return json_response(info_of(stream), 201 if new else 200)


def check_outbound_change(request: Request, config: JsonObject) -> None:
    """Require the scope `admin` for settings that make the service send requests. Raises `Refused`."""
    if changes_outbound(config):
        request.grant.require("admin")


def note_outbound_change(request: Request, config: JsonObject, stream: Stream) -> None:
    if changes_outbound(config):
        audit("calling_out_changed", request.grant, session=stream.id)


@ROUTES.add(
    "GET /v1/sessions",
    "read",
    {JSON: SessionPage | OverviewPage, EVENT_STREAM: LiveListData},
    codes="invalid_cursor draining",
    for_tokens=True,
)
async def list_sessions(request: Request, query: SessionsQuery) -> web.StreamResponse:
    """List the sessions of the project, the newest first.

    With `fields=overview` and `Accept: text/event-stream` the first rows are followed: `docs/tail.md`.

    A session token that reaches the memories of its user lists the user's, with `fields=overview`.
    """
    query = await within_reach(request, query)
    conditions = session_filter(request.grant.project, query, slow_ms=query.slow)
    if query.q is not None:
        keys = await request.services.finder.find_calls(conditions.project, query.user_id, query.q)
        conditions = msgspec.structs.replace(conditions, keys=keys)
    if query.fields == "overview" and wants_tail(request):
        followed = structs.replace(conditions, limit=min(MAX_FOLLOWED, conditions.limit))
        return await stream_events(request, live_rows(request.services, followed), iter, lambda: True)
    if query.fields == "overview":
        return await answer_overviews(request, conditions, query.cursor, query.count)
    return await answer_page(request, conditions, query.cursor, request.services.sessions.list, info_of, PAGE_IN_FULL)


async def within_reach(request: Request, query: SessionsQuery) -> SessionsQuery:
    """Return the query within the client's scope. Raises `Refused` (`forbidden`) if it exceeds a token's scope."""
    reach = await token_scope(request)
    if reach is None:
        return query
    if reach.user_id is None or query.fields != "overview" or query.user_id not in (None, *reach.user_ids):
        raise Refused("forbidden", WHAT_TOKENS_LIST)
    label = query.label if reach.namespace is None else f"{NAMESPACE_LABEL}:{reach.namespace}"
    if query.label not in (None, label):
        raise Refused("forbidden", WHAT_TOKENS_LIST)
    return msgspec.structs.replace(query, user_id=reach.user_id, label=label)


@ROUTES.add("GET /v1/sessions/{id}", "read")
async def read_session(request: Request, stream: Stream) -> SessionInfo:
    """Read a session's state and configuration."""
    return info_of(stream, await request.services.read_models.quarantined.find(stream.key))


@ROUTES.add(
    "PATCH /v1/sessions/{id}",
    "ingest",
    body=optional(MergePatch(GivenConfig)),
    codes=f"{CONFIG_CODES} session_ended user_conflict user_erased quota_exceeded",
    keys_only=True,
)
async def change_session(request: Request, stream: Stream) -> SessionInfo:
    """Change the configuration with a merge patch (RFC 7396); null removes a setting.

    After the end only `labels` and `recording` can change, and `user_id` be set once where none was: by `admin`, or
    with the key that created the session.
    """
    patch = await read_object(request)
    check_outbound_change(request, patch)
    if stream.state == "ended" and "user_id" in patch:
        await require_creator(request, stream)
    changed = await request.services.sessions.change(stream, patch)
    note_outbound_change(request, patch, stream)
    return info_of(changed)


async def require_creator(request: Request, stream: Stream) -> None:
    """Raise `Refused` (`forbidden`) unless the client has `admin`, or the key that created the session."""
    grant = request.grant
    if grant.allows("admin") or grant.key_id is None:
        return
    if grant.key_id != await request.services.store.journal.find_creator(stream.key):
        raise Refused("forbidden", NOT_CREATOR)


@ROUTES.add("POST /v1/sessions/{id}/end", "ingest", codes="text_too_long")
async def end_session(request: Request, stream: Stream, ending: Ending) -> SessionInfo:
    """End a session and close it at once; one that is already closed stays as it is."""
    check_text(ending.reason)
    ended = await request.services.sessions.end(stream, ending.reason)
    if request.grant.via is not None:  # agents end calls all the time; a person at the page acts
        audit("session_ended", request.grant, session=stream.id)
    return info_of(ended)


@ROUTES.add("POST /v1/sessions/{id}/refold", "admin", codes="session_set_aside")
async def refold_session(request: Request, stream: Stream) -> SessionInfo:
    """Make the memory from the whole journal again; one that was quarantined is there again if it succeeds.

    Webhooks that have waited for it are sent then.
    """
    services = request.services
    await services.read_models.refold(stream)
    services.sessions.on_changed(stream)
    services.sessions.webhooks_due.set()
    return info_of(stream)


@ROUTES.add("DELETE /v1/sessions/{id}", "admin")
async def erase_session(request: Request, stream: Stream) -> None:
    """Erase a session: nothing of it can be read any more, and its id cannot be used again."""
    await request.services.sessions.erase(stream)
    request.services.read_models.discard(stream.key)
    audit("session_erased", request.grant, session=stream.id)
