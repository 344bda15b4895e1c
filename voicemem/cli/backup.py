"""`voicemem backup` and `voicemem restore`."""

from __future__ import annotations

import sys
from collections.abc import Callable

import click

from voicemem.cli.common import CommandFailed, audit_to_terminal, setting, sqlite_path
from voicemem.config.service import Settings
from voicemem.errors import CannotStart
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.store.sqlite.backup import CopyFailed, Progress, back_up, opened, refuse_existing
from voicemem.store.sqlite.backup import restore as restore_copy

STORE = setting("--store", "The server's store, sqlite:PATH.", default=Settings().store, show_default=True)
FORCE = click.option("--force", is_flag=True, help="Replace what is there already.")


@click.command()
@STORE
@FORCE
@click.argument("file", type=click.Path(dir_okay=False))
def backup(store: str, force: bool, file: str) -> None:
    """Copy the store into FILE, as it is at one moment; the server may be running.

    The file holds everything, keys (hashed) and webhook secrets included: only its owner may read it.
    """
    path = store_path(store)
    copy_with_progress("copying", lambda progress: back_up(path, file, force, progress))
    audit("backup", COMMAND_LINE, None, store=path, file=file)
    click.echo(f"{file} is a backup of {path}")


@click.command()
@STORE
@FORCE
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
def restore(store: str, force: bool, file: str) -> None:
    """Make the store of the backup FILE, while no server runs on it.

    Producers see another incarnation then, and send on from what they still have.
    """
    path = store_path(store)

    def work(progress: Progress) -> None:
        refuse_existing(path, force)
        with opened(file):  # what is no backup is refused before the store is locked, which makes a file
            pass
        restore_copy(file, path, force, progress)

    copy_with_progress("restoring", work)
    audit("restore", COMMAND_LINE, None, store=path, file=file)
    click.echo(f"{path} is restored from {file}")


def store_path(store: str) -> str:
    return sqlite_path(store, "A store in memory is gone with its server; there is nothing to copy.")


def copy_with_progress(label: str, work: Callable[[Progress], None]) -> None:
    """Do it with a bar that shows the pages; `label` says what is being done, since it stands there when that fails."""
    audit_to_terminal()
    with click.progressbar(length=1, label=label, file=sys.stderr) as bar:

        def show(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(done - bar.pos)

        try:
            work(show)
        except CannotStart as error:
            raise CommandFailed(error.detail) from None
        except CopyFailed as error:
            raise CommandFailed(str(error)) from None
