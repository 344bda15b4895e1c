"""The slim list of sessions, for pages that show many: no configuration, and a few figures of each memory."""

from __future__ import annotations

from collections.abc import AsyncGenerator

import msgspec
from aiohttp import web
from msgspec import UNSET, Raw, Struct, UnsetType

from voicemem.memory.overviews import OverviewFigures
from voicemem.protocol.types import SessionId
from voicemem.server.http.request import json_response, services_of, stream_body
from voicemem.server.http.routes import JSON
from voicemem.services import Services
from voicemem.sessions.session_info import StateName
from voicemem.store.records import DeliveryState, SessionFilter, SessionOverview

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
