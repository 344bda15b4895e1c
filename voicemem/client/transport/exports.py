"""Reads the export of a user, and notices when it is cut short."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from urllib.parse import quote

from voicemem.client.errors import Unreachable
from voicemem.client.transport.failures import display_url
from voicemem.client.transport.rest import RestClient, query_params
from voicemem.protocol.types import JsonObject


async def read_export(rest: RestClient, user_id: str, events: bool = False) -> AsyncGenerator[JsonObject, None]:
    """The lines of an export, the last of which is of the type `end`. Raises `Unreachable` if it does not come."""
    path = f"/v1/users/{quote(user_id, safe='')}/export"
    async with aclosing(rest.lines(path, query_params({"events": events or None}))) as lines:
        async for line in lines:
            yield line
            if line["type"] == "end":
                return
    raise Unreachable(f"GET {display_url(rest.address(path, None))}: the export was cut short.")
