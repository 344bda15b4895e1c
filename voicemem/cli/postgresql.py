"""Commands for PostgreSQL stores: `voicemem nodes`, `migrate` and `restored`."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from voicemem.cli.common import CommandFailed
from voicemem.cli.keys import in_store
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.runtime import now_ms
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
    check_postgresql(store, "A file has one node, the server that has it open; only a PostgreSQL store has several.")

    async def work(opened: Store) -> tuple[int, list[Node]]:
        return await clock_of(opened), await opened.nodes.list_nodes()

    time_ms, found = in_store(store, work)
    for node in found:
        state = "alive" if node.expires_ms > time_ms else "lost"
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
    check_postgresql(store, "voicemem restore records this for a file; the command is for a PostgreSQL database.")

    async def work(opened: Store) -> int:
        nodes = await opened.nodes.list_nodes()
        await opened.nodes.renew_incarnation(await clock_of(opened))
        return len(nodes)

    count = in_store(store, work)
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
    check_postgresql(store, "Only a PostgreSQL store is migrated by a command; a file is by the server that opens it.")
    before, now = migrate_store(store)
    if not before:
        click.echo(f"the database was empty: its schema is made, of version {now}")
    elif before == now:
        click.echo(f"the schema has version {now} already; nothing was changed")
    else:
        click.echo(f"the schema is brought from version {before} to version {now}")


def check_postgresql(store: str, otherwise: str) -> None:
    if not store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed(otherwise)


async def clock_of(opened: Store) -> int:
    """The clock that leases are counted by."""
    there = await opened.read_clock()
    return now_ms() if there is None else there
