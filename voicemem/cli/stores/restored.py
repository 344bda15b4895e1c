"""`voicemem restored`."""

from __future__ import annotations

import time

import click

from voicemem.cli.access.keys import with_store
from voicemem.cli.common import CommandFailed, run
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.store.port import Store


@click.command(short_help="Tell that a PostgreSQL database was restored.")
@store_option
def restored(store: str) -> None:
    """Tell that a PostgreSQL database was restored from a backup, or may have lost events in a failover.

    Nodes notice most of that by themselves. The store gets a new incarnation: all nodes let their producers connect
    again, who send what is missing, or leave a visible gap. Nothing is lost by doing it once too often.

    \b
    Example:
      voicemem restored --store postgresql://voicemem@db.example/voicemem
    """
    if not store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed("voicemem restore has already told a file; this is for a PostgreSQL database.")

    async def work(opened: Store) -> int:
        there = await opened.read_clock()
        nodes = await opened.list_nodes()
        await opened.renew_incarnation(time.time_ns() // 1_000_000 if there is None else there)
        return len(nodes)

    count = run(with_store(store, work))
    click.echo(f"the store has a new incarnation; nodes that start anew: {count}")
