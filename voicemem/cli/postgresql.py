"""Commands for PostgreSQL stores: `voicemem nodes`, `migrate` and `restored`."""

from __future__ import annotations

import time
from datetime import UTC, datetime

import click

from voicemem.cli.common import CommandFailed, run
from voicemem.cli.keys import with_store
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.errors import CannotStart
from voicemem.store.engines import migrate_store
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
        return await opened.nodes.list_nodes(), time.time_ns() // 1_000_000 if there is None else there

    found, now_ms = run(with_store(store, work))
    for node in found:
        state = "alive" if node.expires_ms > now_ms else "lost"
        since = datetime.fromtimestamp(node.started_ms / 1000, UTC).isoformat(timespec="seconds")
        click.echo(f"{node.token}  {state:5}  {node.address}  {node.version}  {since}")
    if not found:
        click.echo("no node serves this store")


@click.command(short_help="Record that a PostgreSQL database was restored.")
@store_option
def restored(store: str) -> None:
    """Record that a PostgreSQL database was restored from a backup, or may have lost events in a failover.

    Nodes notice most of that by themselves. The store gets a new incarnation: all nodes let their producers connect
    again, who send what is missing, or leave a visible gap. Nothing is lost by doing it once too often.

    \b
    Example:
      voicemem restored --store postgresql://voicemem@db.example/voicemem
    """
    if not store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed("voicemem restore records this for a file; the command is for a PostgreSQL database.")

    async def work(opened: Store) -> int:
        there = await opened.read_clock()
        nodes = await opened.nodes.list_nodes()
        await opened.nodes.renew_incarnation(time.time_ns() // 1_000_000 if there is None else there)
        return len(nodes)

    count = run(with_store(store, work))
    click.echo(f"the store has a new incarnation; nodes that reconnect their producers: {count}")


@click.command(short_help="Bring a PostgreSQL database to this version's schema.")
@store_option
def migrate(store: str) -> None:
    """Make the schema in a PostgreSQL database, or bring that of an older version to this one; it says what it did.

    Nodes make it in an empty database by themselves; they refuse an older one, on which nodes of the older version may
    still run. A file of SQLite needs none of this: the server that opens it brings it to its version.

    \b
    Example:
      voicemem migrate --store postgresql://voicemem@db.example/voicemem
    """
    if not store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed("Only a PostgreSQL store is migrated by a command; a file is by the server that opens it.")

    try:
        click.echo(what_was_done(*migrate_store(store)))
    except CannotStart as error:
        raise CommandFailed(error.detail) from None


def what_was_done(before: int, now: int) -> str:
    """The sentence for the schema's versions before and now; 0 before is an empty database."""
    if not before:
        return f"the database was empty: its schema is made, of version {now}"
    if before == now:
        return f"the schema has version {now} already; nothing was changed"
    return f"the schema is brought from version {before} to version {now}"
