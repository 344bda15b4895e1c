"""Readers of live tails, who keep what they are told and hold it to the OpenAPI document."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import NamedTuple

import aiohttp
from yarl import URL

from tests.support.callers.rest import RestClient
from tests.support.checks import openapi
from voicemem.protocol.types import JsonObject

ACCEPT = {"Accept": "text/event-stream"}
ONE = "/v1/sessions/s/events"
SEVERAL = "/v1/events"
TIMEOUT_S = 20.0


class TailEvent(NamedTuple):
    """One server-sent event; `id` is the last that was given by then."""

    id: str
    event: str
    data: JsonObject


class Tail:
    """An open tail."""

    def __init__(self, response: aiohttp.ClientResponse, path: str, last_id: str) -> None:
        self.response = response
        self.schema = openapi.schema(
            *("paths", str(openapi.template_of(path)), "get", "responses", "200"),
            *("content", "text/event-stream", "schema"),
        )
        self.id = last_id
        self.comments = 0
        self.retry: int | None = None

    async def next(self) -> TailEvent | None:
        """What is told next; None at the end. What gives only a position, a pause or a comment is passed over."""
        fields: dict[str, str] = {}
        async with asyncio.timeout(TIMEOUT_S):
            while line := await self.response.content.readline():
                text = line.decode().removesuffix("\n")
                name, _, value = text.partition(": ")
                if text and name:
                    fields[name] = value
                self.comments += text.startswith(":")
                if not text:
                    self.id = fields.get("id", self.id)
                    self.retry = int(fields.get("retry", self.retry or 0)) or None
                    if "data" in fields:
                        data = json.loads(fields["data"])
                        self.schema.validate(data)
                        return TailEvent(self.id, fields["event"], data)
                    fields = {}
        return None

    async def some(self, count: int) -> list[TailEvent]:
        found = []
        for _ in range(count):
            told = await self.next()
            assert told is not None
            found.append(told)
        return found

    async def rest(self) -> list[TailEvent]:
        """Everything until the end."""
        found = []
        while (told := await self.next()) is not None:
            found.append(told)
        return found


@asynccontextmanager
async def open_tail(
    api: RestClient, path: str = ONE, last_id: str | None = None, limit: int = 2**22
) -> AsyncIterator[Tail]:
    """A tail, closed with the block."""
    headers = {**api.headers, **ACCEPT, **({} if last_id is None else {"Last-Event-ID": last_id})}
    timeout = aiohttp.ClientTimeout(total=None)
    async with (
        aiohttp.ClientSession(headers=headers, timeout=timeout, read_bufsize=limit) as http,
        http.get(URL(api.base + path, encoded=True)) as response,
    ):
        assert 200 == response.status, await response.read()
        assert "text/event-stream" == response.headers["Content-Type"]
        yield Tail(response, path, last_id or "")


async def refused_tail(api: RestClient, path: str = ONE, last_id: str | None = None) -> tuple[int, str]:
    """Status and code of a tail that is not begun."""
    headers = {**ACCEPT, **({} if last_id is None else {"Last-Event-ID": last_id})}
    return (await api.get(path, headers)).problem


def entries(told: list[TailEvent]) -> list[tuple[str, int]]:
    """Session and position of the entries that were told."""
    return [(one.data["session_id"], one.data["position"]) for one in told if one.event == "entry"]
