"""`voicemem copy`, `backup` and `restore`."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, closing, contextmanager
from itertools import islice
from typing import Any

import click

from voicemem.cli.common import CommandFailed, audit_to_terminal, end_at_sigterm, number_of, progress, run, sqlite_path
from voicemem.cli.service_settings import store_option
from voicemem.config.service import MEMORY_STORE, POSTGRESQL_PREFIXES, SQLITE_PREFIX, shown_store
from voicemem.errors import DamagedEntry
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.sessions.read_models.read_model import decode_rows
from voicemem.store import copying
from voicemem.store.engines import open_copy_end, open_store
from voicemem.store.sqlite.backup import Progress, back_up, restore_backup
from voicemem.transcript.fold import fold_all
from voicemem.transcript.state import State, encode_state

URL = "sqlite:PATH or postgresql://…"


@click.command(short_help="Move the store into another engine: SQLite and PostgreSQL.")
@click.option("--from", "source", required=True, metavar="STORE", help=f"The store that is copied, {URL}")
@click.option("--to", "target", required=True, metavar="STORE", help=f"The store that it becomes, an empty one; {URL}")
@click.option("--dry-run", is_flag=True, help="Check both, say what would be copied, and change nothing.")
def copy(source: str, target: str, dry_run: bool) -> None:
    """Move a store from SQLite to PostgreSQL, or back, while no server runs on either.

    Everything moves: sessions with their journals, keys, webhooks with what is still to be sent, Agora apps. Clients
    notice nothing but the time in between: their keys, tokens and positions hold. The copy is then compared with the
    source, row by row. At the end the source is no longer served, so that nothing is sent twice.

    A copy that was cut off continues when the same command is run again. The exit code is 0 for a copy that is the
    same, 3 for one that is not, and 1 for any other failure.

    \b
    Example:
      voicemem copy --from sqlite:calls.db --to postgresql://voicemem@db.example/voicemem
    """
    check_stores(source, target)
    audit_to_terminal()
    with ExitStack() as ends:
        ours = ends.enter_context(closing(open_copy_end(source, False, dry_run)))
        theirs = ends.enter_context(closing(open_copy_end(target, True, dry_run)))
        mark = copying.begin_copy(ours, theirs)
        volume, before = mark.volume, copying.previous_target(ours)
        click.echo(
            f"{number_of(volume.sessions, 'session')} ({volume.running:,} running),"
            f" {number_of(volume.events, 'event')}, {number_of(volume.users, 'user')},"
            f" {number_of(volume.keys, 'key')}, {number_of(volume.endpoints, 'endpoint')},"
            f" {volume.pending:,} to be delivered"
        )
        if before is not None:
            click.echo(f"it was copied to {before} before: what that store took since is not in this one", err=True)
        if dry_run:
            click.echo(f"nothing was copied to {shown_store(target)}: this was a dry run")
            return
        try:
            move(ours, theirs, mark, target)
        except copying.Differs as error:
            CommandFailed(str(error)).show()
            raise click.exceptions.Exit(3) from None  # the copy is complete, and differs from the source
    audit("copy", COMMAND_LINE, None, store=shown_store(source), to=shown_store(target))
    click.echo(f"{shown_store(target)} is the store now; {shown_store(source)} is no longer served")


def move(source: copying.CopyEnd, target: copying.CopyEnd, mark: copying.CopyMark, url: str) -> None:
    """Copy what is missing, compare both ends, and put the copy into service."""
    if mark.table:
        click.echo(f"going on behind {mark.rows:,} rows that were copied before")
    with shown_progress("copying", mark) as report:
        copied = copying.copy_rows(source, target, mark, report)
    with shown_progress("comparing", copying.CopyMark(incarnation=mark.incarnation, volume=mark.volume)) as report:
        damaged = copying.compare_rows(source, target, report)
    count = run(compare_histories(source, url, mark.volume))
    click.echo(f"{copied.rows:,} rows are the same, and so are {count} histories of at most {HISTORIES}")
    if damaged:
        keys = ", ".join(str(key) for key in sorted(damaged)[:10])
        click.echo(f"{len(damaged)} journals are damaged in the source, and so in the copy; keys: {keys}", err=True)
    copying.finish_copy(source, target, shown_store(url), time.time_ns() // 1_000_000)


def check_stores(source: str, target: str) -> None:
    """Raise `CommandFailed` for stores that cannot be copied into each other."""
    for store in (source, target):
        if store == MEMORY_STORE:
            raise CommandFailed("A store in memory ends with its server, so it cannot be copied.")
        if not store.startswith((SQLITE_PREFIX, *POSTGRESQL_PREFIXES)) or store == SQLITE_PREFIX:
            raise CommandFailed(f"The store {store!r} is unknown; write {URL}.")
    if source.startswith(SQLITE_PREFIX) and target.startswith(SQLITE_PREFIX):
        raise CommandFailed("Both are files: copy one with voicemem backup and restore.")
    if not source.startswith(SQLITE_PREFIX) and not target.startswith(SQLITE_PREFIX):
        raise CommandFailed("Both are PostgreSQL: copy a database with its own tools (docs/postgresql.md).")


HISTORIES, EVENTS = 100, 10_000
"""How many sessions, spread over all of them, are folded, and how many events of each."""
PAGE = 1_000


async def compare_histories(source: copying.CopyEnd, target: str, volume: copying.Volume) -> int:
    """Fold some sessions from both ends, except damaged ones; return their number. Raises `Differs`."""
    store = open_store(target, exclusive=False, unfinished=True)
    try:
        count = 0
        step = max(1, (volume.sessions + volume.users) // HISTORIES)  # spread evenly over all sessions and users
        for key in [*islice(source.read_keys(), 0, step * HISTORIES, step)]:
            ours, theirs, position = State(), State(), 0
            try:
                while position < EVENTS and (page := source.read_entries(key, position, PAGE)):
                    fold_all(ours, decode_rows(page))
                    position = page[-1].position
            except DamagedEntry:
                continue
            position = 0  # damage of the copy alone is not left out
            while position < EVENTS and (page := await store.journal.read_rows(key, position, PAGE)):
                fold_all(theirs, decode_rows(page))
                position = page[-1].position
            if encode_state(theirs) != encode_state(ours):
                raise copying.Differs(
                    f"The history of the session with the key {key} is another one. Do not serve the copy."
                )
            count += 1
        return count
    finally:
        await store.close_store()


@contextmanager
def shown_progress(label: str, begun: copying.CopyMark) -> Iterator[copying.Report]:
    """Show progress on standard error, from `begun` on, as events out of all events."""
    total = max(begun.volume.events, 1)
    if sys.stderr.isatty():
        with click.progressbar(length=total, label=label, file=sys.stderr, item_show_func=figures) as bar:

            def show(mark: copying.CopyMark) -> None:
                bar.update(min(mark.events, total) - bar.pos, mark)

            show(begun)
            bar.start = time.time()
            bar.avg = []  # the work of an earlier run says nothing about the speed of this one
            yield show
            bar.update(total - bar.pos)
        return
    began_s = shown_s = time.monotonic()

    def print_line(mark: copying.CopyMark) -> None:
        nonlocal shown_s
        now = time.monotonic()
        if now - shown_s >= 5.0:
            shown_s = now
            done = mark.events - begun.events
            left = (mark.volume.events - mark.events) * (now - began_s) / done if done > 0 else 0.0
            click.echo(f"{label}: {figures(mark)} of {mark.volume.events:,}, {max(left, 0):.0f} s left", err=True)

    yield print_line


def figures(mark: copying.CopyMark | None) -> str | None:
    return None if mark is None else f"{mark.size / 1e6:,.0f} MB, {number_of(mark.events, 'event')}"


IN_MEMORY = "A store in memory ends with its server, so it cannot be copied; write sqlite:PATH."
FORCE = click.option("--force", is_flag=True, help="Replace what exists already.")


@click.command(short_help="Copy the store into a file, even while the server runs.")
@store_option
@FORCE
@click.argument("file", type=click.Path(dir_okay=False))
def backup(store: str, force: bool, file: str) -> None:
    """Copy the store into FILE, even while the server runs.

    The copy is the store at one moment. It contains everything, including keys (hashed) and the secrets of webhooks, so
    only its owner may read it.

    \b
    Example:
      voicemem backup --store sqlite:calls.db calls-2026-11-21.db
    """
    path = sqlite_path(store, IN_MEMORY)
    copy_with_progress("copying", lambda progress: back_up(path, file, force, progress))
    audit("backup", COMMAND_LINE, None, store=path, file=file)
    click.echo(f"{file} is a backup of {path}")


@click.command(short_help="Restore the store from a backup, while no server runs on it.")
@store_option
@FORCE
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def restore(store: str, force: bool, file: str) -> None:
    """Restore the store from the backup FILE, while no server runs on it.

    The restored store is a new incarnation: producers notice it, and resend what they still have.

    \b
    Example:
      voicemem restore --store sqlite:calls.db --force calls-2026-11-21.db
    """
    path = sqlite_path(store, IN_MEMORY)
    copy_with_progress("restoring", lambda progress: restore_backup(file, path, force, progress))
    audit("restore", COMMAND_LINE, None, store=path, file=file)
    click.echo(f"{path} is restored from {file}")


def copy_with_progress(label: str, work: Callable[[Progress], None]) -> None:
    """Do the work with a progress bar that counts pages, from the first of them on."""
    end_at_sigterm()
    audit_to_terminal()
    with ExitStack() as stack:
        bars: list[Any] = []

        def show(done: int, total: int) -> None:
            if not bars:
                bars.append(stack.enter_context(progress(1, label)))
            bars[0].length = max(total, 1)
            bars[0].update(done - bars[0].pos)

        work(show)
