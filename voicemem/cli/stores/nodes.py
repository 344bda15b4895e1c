"""`voicemem nodes`."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from voicemem.cli.access.keys import with_store
from voicemem.cli.common import CommandFailed, run
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.store.port import Store
from voicemem.store.records import Node


@click.command(short_help="List the nodes that serve a store.")
@store_option
def nodes(store: str) -> None:
    """List the nodes that serve a store: token, state, where it listens, version, and since when it runs (UTC).

    A node whose lease is over is lost: within a second, another node frees what it held, and forgets it.

    \b
    Example:
      voicemem nodes --store postgresql://voicemem@db.example/voicemem
    """

    if not store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed("A file has one node, the server that has it open; only a PostgreSQL store has several.")

    async def work(opened: Store) -> tuple[list[Node], int]:
        there = await opened.read_clock()
        return await opened.list_nodes(), time.time_ns() // 1_000_000 if there is None else there

    found, now_ms = run(with_store(store, work))
    for node in found:
        state = "alive" if node.expires_ms > now_ms else "lost"
        since = datetime.fromtimestamp(node.started_ms / 1000, UTC).isoformat(timespec="seconds")
        click.echo(f"{node.token}  {state:5}  {node.address}  {node.version}  {since}")
    if not found:
        click.echo("no node serves this store")
