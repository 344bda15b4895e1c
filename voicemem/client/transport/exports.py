"""Reads exports in lines, of a user and of many calls, and notices when they are cut short."""

from __future__ import annotations

from collections.abc import AsyncGenerator, Mapping
from contextlib import aclosing
from typing import Any, Literal, TypedDict
from urllib.parse import quote

from voicemem.client.errors import Unreachable
from voicemem.client.transport.failures import display_url
from voicemem.client.transport.rest import RestClient, query_params
from voicemem.protocol.types import JsonObject


class CallFilters(TypedDict, total=False):
    """Which calls to export; all without any. Times are Unix ms."""

    state: Literal["running", "ended"]
    user_id: str
    label: str
    started_after: int
    started_before: int


def read_export(rest: RestClient, user_id: str, events: bool = False) -> AsyncGenerator[JsonObject, None]:
    """The lines of an export of a user. Raises as `read_lines`."""
    path = f"/v1/users/{quote(user_id, safe='')}/export"
    return read_lines(rest, path, {"events": events or None})


def read_calls(rest: RestClient, form: str, filters: Mapping[str, Any]) -> AsyncGenerator[JsonObject, None]:
    """The lines of an export of many calls. Raises as `read_lines`."""
    return read_lines(rest, "/v1/exports", {"format": form, **filters})


async def read_lines(rest: RestClient, path: str, query: Mapping[str, Any]) -> AsyncGenerator[JsonObject, None]:
    """The lines of an export, the last of which is of the type `end`. Raises `Unreachable` if it does not come."""
    async with aclosing(rest.lines(path, query_params(query))) as lines:
        async for line in lines:
            yield line
            if line["type"] == "end":
                return
    raise Unreachable(f"GET {display_url(rest.address(path, None))}: the export was cut short.")
