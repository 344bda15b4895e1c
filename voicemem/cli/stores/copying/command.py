"""`voicemem copy`."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from voicemem.cli.common import CommandFailed, audit_to_terminal, run
from voicemem.cli.stores.copying.histories import HISTORIES, compare_histories
from voicemem.cli.stores.copying.progress import shown_progress
from voicemem.config.service import MEMORY_STORE, POSTGRESQL_PREFIXES, SQLITE_PREFIX, shown_store
from voicemem.errors import CannotStart
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.store.copying import begin_copy, compare_rows, copy_rows, finish_copy, previous_target
from voicemem.store.engines import open_copy_end
from voicemem.store.ports.copying import CopyEnd, CopyFailed, CopyMark, Differs, Volume

DIFFERS = 3
"""The exit code for a copy that was made, and is not what the source is."""
URL = "sqlite:PATH or postgresql://…"


class CopyDiffers(CommandFailed):
    """Ends the command with a code of its own."""

    exit_code = DIFFERS


@click.command(short_help="Move the store into another engine: SQLite and PostgreSQL.")
@click.option("--from", "source", required=True, metavar="STORE", help=f"The store that is copied, {URL}")
@click.option("--to", "target", required=True, metavar="STORE", help=f"The store that it becomes, an empty one; {URL}")
@click.option("--dry-run", is_flag=True, help="Check both, say what would be copied, and change nothing.")
def copy(source: str, target: str, dry_run: bool) -> None:
    """Move a store from SQLite to PostgreSQL, or back, while no server runs on either.

    Everything moves: sessions with their journals, keys, webhooks with what is still to be sent, Agora apps. Clients
    notice nothing but the time in between: their keys, tokens and positions hold. The copy is then compared with the
    source, row by row. At the end the source is not served any more, so that nothing is sent twice.

    A copy that was cut off goes on when the same command is run again. The exit code is 0 for a copy that is the same,
    3 for one that is not, and 1 for any other failure.

    \b
    Example:
      voicemem copy --from sqlite:calls.db --to postgresql://voicemem@db.example/voicemem
    """
    check_stores(source, target)
    audit_to_terminal()
    with failing_plainly(), opened_end(source, False, dry_run) as ours, opened_end(target, True, dry_run) as theirs:
        mark = begin_copy(ours, theirs)
        tell_volume(mark.volume, previous_target(ours))
        if dry_run:
            click.echo(f"nothing was copied to {shown_store(target)}: this was a dry run")
            return
        move(ours, theirs, mark, target)
    audit("copy", COMMAND_LINE, None, store=shown_store(source), to=shown_store(target))
    click.echo(f"{shown_store(target)} is the store now; {shown_store(source)} is not served any more")


def move(source: CopyEnd, target: CopyEnd, mark: CopyMark, url: str) -> None:
    """Copy what is missing, compare both ends, and put the copy into service."""
    if mark.table:
        click.echo(f"going on behind {mark.rows:,} rows that were copied before")
    with shown_progress("copying", mark) as report:
        copied = copy_rows(source, target, mark, report)
    with shown_progress("comparing", CopyMark(incarnation=mark.incarnation, volume=mark.volume)) as report:
        damaged = compare_rows(source, target, report)
    count = run(compare_histories(source, url, mark.volume))
    click.echo(f"{copied.rows:,} rows are the same, and so are {count} histories of at most {HISTORIES}")
    if damaged:
        keys = ", ".join(str(key) for key in sorted(damaged)[:10])
        click.echo(f"{len(damaged)} journals are damaged in the source, and so in the copy; keys: {keys}", err=True)
    finish_copy(source, target, shown_store(url), time.time_ns() // 1_000_000)


def check_stores(source: str, target: str) -> None:
    """Raise `CommandFailed` for stores between which nothing is copied."""
    for store in (source, target):
        if store == MEMORY_STORE:
            raise CommandFailed("A store in memory ends with its server, so it cannot be copied.")
        if not store.startswith((SQLITE_PREFIX, *POSTGRESQL_PREFIXES)) or store == SQLITE_PREFIX:
            raise CommandFailed(f"The store {store!r} is unknown; write {URL}.")
    if source.startswith(SQLITE_PREFIX) and target.startswith(SQLITE_PREFIX):
        raise CommandFailed("Both are files: copy one with voicemem backup and restore.")
    if not source.startswith(SQLITE_PREFIX) and not target.startswith(SQLITE_PREFIX):
        raise CommandFailed("Both are PostgreSQL: copy a database with its own tools (docs/postgresql.md).")


@contextmanager
def opened_end(store: str, is_target: bool, dry_run: bool) -> Iterator[CopyEnd]:
    end = open_copy_end(store, is_target, dry_run)
    try:
        yield end
    finally:
        end.close()


@contextmanager
def failing_plainly() -> Iterator[None]:
    """Turn what may fail into one sentence, and an exit code."""
    try:
        yield
    except CannotStart as error:
        raise CommandFailed(error.detail) from None
    except Differs as error:
        raise CopyDiffers(str(error)) from None
    except CopyFailed as error:
        raise CommandFailed(str(error)) from None


def tell_volume(volume: Volume, before: str | None) -> None:
    click.echo(
        f"{volume.sessions:,} sessions ({volume.running:,} running), {volume.events:,} events, {volume.users:,} users,"
        f" {volume.keys:,} keys, {volume.endpoints:,} endpoints, {volume.pending:,} deliveries to send"
    )
    if before is not None:
        click.echo(f"it was copied to {before} before: what that store took since is not in this one", err=True)
