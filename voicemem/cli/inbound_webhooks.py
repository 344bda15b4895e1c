"""`voicemem hooks`: signing secrets of inbound webhooks, by project and dialect."""

from __future__ import annotations

from datetime import UTC, datetime

import click

from voicemem.cli.common import read_secret
from voicemem.cli.keys import in_store, project_option
from voicemem.cli.service_settings import store_option
from voicemem.runtime import now_ms
from voicemem.security.access import check_project
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.security.hook_secrets import MAX_OVERLAP_S, OVERLAP_S, HookSecrets, check_hook_secret, new_hook_secret
from voicemem.store.port import Store

of_project = project_option("The project whose webhooks it signs.")


@click.group(short_help="Manage signing secrets of inbound webhooks.")
def hooks() -> None:
    """Manage the signing secrets of inbound webhooks, those of other stacks, even while the server runs.

    Every node uses what is set from then on. A secret counts for one project and one dialect. Those of the setting
    hook-secret of `serve` verify beside it.

    \b
    Examples:
      voicemem hooks set --store sqlite:calls.db elevenlabs-agents
      voicemem hooks list --store sqlite:calls.db
    """


def secrets_in(store: Store) -> HookSecrets:
    return HookSecrets(store.directory, {}, now_ms)


@hooks.command("set", short_help="Set a secret, or rotate it.")
@store_option
@of_project
@click.option("--generate", is_flag=True, help="Make a secret and print it, for platforms that let you choose it.")
@click.option(
    "--overlap",
    type=click.IntRange(0, MAX_OVERLAP_S),
    default=OVERLAP_S,
    show_default=True,
    help="For how many seconds the secret before it verifies too.",
)
@click.argument("dialect")
def set_secret(store: str, project: str, generate: bool, overlap: int, dialect: str) -> None:
    """Set the secret that signs the webhooks of DIALECT. It is asked for, or read from standard input.

    The secret before it verifies too until the overlap is over.

    \b
    Examples:
      voicemem hooks set --store sqlite:calls.db --project shop elevenlabs-agents
      voicemem hooks set --store sqlite:calls.db --generate --overlap 0 elevenlabs-agents
    """
    secret = new_hook_secret() if generate else read_secret("Secret")
    check_project(project)
    check_hook_secret(secret)
    in_store(store, lambda opened: secrets_in(opened).set(project, dialect, secret, overlap), make=True)
    audit("hook_secret_set", COMMAND_LINE, project, dialect=dialect)
    click.echo(f"webhooks of {dialect} in the project {project} are signed with the new secret", err=generate)
    if generate:
        click.echo(secret)


@hooks.command("list", short_help="List the dialects of a project that have a secret.")
@store_option
@of_project
def list_secrets(store: str, project: str) -> None:
    """List the dialects that have a secret in a project, and until when the one before verifies; never the secrets.

    Secrets in the settings of `serve` are not listed.

    \b
    Example:
      voicemem hooks list --store sqlite:calls.db --project shop
    """
    for one in in_store(store, lambda opened: secrets_in(opened).list(project)):
        old = "" if one.old_until_ms is None else f"  the one before verifies until {shown_time(one.old_until_ms)}"
        click.echo(f"{one.dialect}  set {shown_time(one.set_ms or 0)}{old}")


@hooks.command("remove", short_help="Remove a secret.")
@store_option
@of_project
@click.argument("dialect")
def remove_secret(store: str, project: str, dialect: str) -> None:
    """Remove the secret that signs the webhooks of DIALECT in a project, and the one before it.

    Without another one, in the settings of `serve`, these webhooks need a key from then on.

    \b
    Example:
      voicemem hooks remove --store sqlite:calls.db elevenlabs-agents
    """
    in_store(store, lambda opened: secrets_in(opened).remove(project, dialect))
    audit("hook_secret_removed", COMMAND_LINE, project, dialect=dialect)
    click.echo(f"webhooks of {dialect} in the project {project} have no secret in the store any more")


def shown_time(ms: int) -> str:
    return f"{datetime.fromtimestamp(ms // 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
