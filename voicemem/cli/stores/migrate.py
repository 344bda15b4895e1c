"""`voicemem migrate`."""

from __future__ import annotations

import click

from voicemem.cli.common import CommandFailed
from voicemem.cli.service_settings import store_option
from voicemem.config.service import POSTGRESQL_PREFIXES
from voicemem.errors import CannotStart
from voicemem.store.engines import migrate_store


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
