"""Where a PostgreSQL server of a URL is, and the same URL through a proxy."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import NamedTuple
from urllib.parse import quote, urlencode

from psycopg.conninfo import conninfo_to_dict

DEFAULT_PORT = 5432


class Upstream(NamedTuple):
    """A host, or the folder of a socket, and a port."""

    host: str
    port: int


def upstream_of(url: str) -> Upstream:
    """The server of a URL."""
    given = conninfo_to_dict(url)
    return Upstream(str(given.get("host") or "127.0.0.1"), int(given.get("port") or DEFAULT_PORT))


def url_through(url: str, port: int) -> str:
    """A URL for the same database through a proxy on a port of this machine."""
    given = {name: str(value) for name, value in conninfo_to_dict(url).items() if value is not None}
    database = quote(given.pop("dbname", "postgres"), safe="")
    more = {name: value for name, value in given.items() if name not in ("host", "hostaddr", "port")}
    return f"postgresql://127.0.0.1:{port}/{database}?{urlencode(more, quote_via=quote)}"


async def connect(upstream: Upstream) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    """Open a connection there. Raises `OSError`."""
    if upstream.host.startswith("/"):
        return await asyncio.open_unix_connection(str(Path(upstream.host) / f".s.PGSQL.{upstream.port}"))
    return await asyncio.open_connection(upstream.host, upstream.port)
