"""`voicemem backup` and `voicemem restore`."""

from collections.abc import Callable

import click

from voicemem.cli.common import CommandFailed, audit_to_terminal, progress, sqlite_path
from voicemem.cli.service_settings import store_option
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.store.sqlite.backup import CopyFailed, Progress, back_up, restore_backup

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
    """Do the work with a progress bar that counts pages. The label also stands before the error, if there is one."""
    audit_to_terminal()
    with progress(1, label) as bar:

        def show(done: int, total: int) -> None:
            bar.length = max(total, 1)
            bar.update(done - bar.pos)

        try:
            work(show)
        except CopyFailed as error:
            raise CommandFailed(str(error)) from None
