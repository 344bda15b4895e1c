"""`voicemem users`: the ids of callers, which are made of their numbers; and two ids of one person."""

import click

from voicemem.cli.common import CommandFailed, Server, read_secret, rest_options, variable_option
from voicemem.cli.service_settings import store_option
from voicemem.cli.stores import in_store, project_option
from voicemem.client.transport.rest import user_path
from voicemem.runtime import now_ms
from voicemem.security.access import check_project
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.security.caller_ids import Callers
from voicemem.store.port import Store


@click.group(short_help="Find users by number, and link their ids.")
def users() -> None:
    """Find users by their telephone numbers, which are never stored: a user's id is made of one with a secret.

    Two ids of one person, such as those of a number and of an account, can be linked.

    \b
    Example:
      voicemem users id --number --store sqlite:calls.db
      voicemem users same-as tel_4711 ann
    """


@users.command("id", short_help="Print the ids of a number.")
@store_option
@project_option("The project in which they call.")
@variable_option(
    "--phone-region", "VOICEMEM_PHONE_REGION", "The country of a number that is written without one, such as DE."
)
@click.option("--number", is_flag=True, help="Read a telephone number, from standard input; nothing else has ids yet.")
def user_ids(store: str, project: str, phone_region: str | None, number: bool) -> None:
    """Print the ids that a caller's number has as a user: the newest, then those of secrets before a rotation.

    So someone can be looked up, exported or erased by number. It is asked for, or read from standard input.

    \b
    Example:
      voicemem users id --number --store sqlite:calls.db --project shop
    """
    number_text = read_secret("Number")
    check_project(project)

    async def find(opened: Store) -> list[str]:
        return await Callers(opened, now_ms, phone_region).ids(project, number_text)

    ids = in_store(store, find)
    if not ids:
        raise CommandFailed(
            "That is no telephone number with its country; write +49…, or give the country of national numbers as"
            " --phone-region."
        )
    click.echo("\n".join(ids))


@users.command("rotate-secret", short_help="Make ids of new callers with another secret.")
@store_option
@project_option("The project whose callers' ids it makes.")
def rotate_secret(store: str, project: str) -> None:
    """Make the ids of callers who are new from now on with another secret. Those who are known keep theirs.

    \b
    Example:
      voicemem users rotate-secret --store sqlite:calls.db --project shop
    """
    check_project(project)
    in_store(store, lambda opened: Callers(opened, now_ms).add_secret(project))
    audit("caller_secret_rotated", COMMAND_LINE, project)
    click.echo(f"new callers of the project {project} have ids made with a new secret")


@users.command("same-as", short_help="Link two ids of one person.")
@click.argument("user_id")
@click.argument("other_id", required=False)
@rest_options
@click.option("--undo", is_flag=True, help="Remove the link of the id.")
def same_as(server: Server, user_id: str, other_id: str | None, undo: bool) -> None:
    """Make two ids one person's, with a key of the scope admin: what is read of either is then of both.

    An id has one partner at most. With --undo, which takes either of the two, each is a user of its own again.

    \b
    Examples:
      voicemem users same-as tel_4711 ann
      voicemem users same-as tel_4711 --undo
    """
    if undo == (other_id is not None):
        raise click.UsageError("Name the other id, or use --undo with one id.")
    if other_id is None:
        server.ask("DELETE", user_path(user_id, "/same-as"))
        click.echo(f"{user_id} is linked with no other id")
    else:
        server.ask("PUT", user_path(user_id, "/same-as"), {"user_id": other_id})
        click.echo(f"{user_id} and {other_id} are one person's")
