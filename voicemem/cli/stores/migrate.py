"""`voicemem migrate`."""

from __future__ import annotations

import click

from voicemem.cli.common import CommandFailed, run, store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.store.engines import open_store


@click.command(short_help="Bring a PostgreSQL database to this version's schema.")
@store_option
def migrate(store: str) -> None:
    """Make the schema in a PostgreSQL database, or bring that of an older version to this one.

    Nodes make it in an empty database by themselves; they refuse an older one, on which nodes of the older version may
    still run. A file of SQLite needs none of this: the server that opens it brings it to its version.

    \b
    Example:
      voicemem migrate --store postgresql://voicemem@db.example/voicemem
    """
    if not store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed("Only a PostgreSQL store is migrated by a command; a file is by the server that opens it.")

    async def work() -> None:
        await open_store(store, upgrade=True).close_store()

    run(work())
    click.echo("the schema is up to date")
