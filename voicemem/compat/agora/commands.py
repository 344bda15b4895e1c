"""`voicemem keys agora`: apps of Agora's, whose tokens open a project on Agora's paths."""

from __future__ import annotations

import click

from voicemem.cli.common import read_secret, variable_option
from voicemem.cli.service_settings import store_option
from voicemem.cli.stores import in_store, project_option, scope_option, wait_for_services
from voicemem.compat.agora.apps import AppRegistry
from voicemem.security.access import SCOPES, Access
from voicemem.security.audit import COMMAND_LINE, audit
from voicemem.store.port import Store

EVERY_PROJECT = None
certificate_option = variable_option(
    "--certificate",
    "AGORA_APP_CERTIFICATE",
    "The app's certificate; without it, it is asked for, or read from standard input.",
)


@click.group(short_help="Register apps of Agora's, whose tokens are accepted on Agora's paths.")
def agora() -> None:
    """Register apps of Agora's: App ID and certificate, as Agora's console shows them.

    Agora's SDK signs a token for each request with the certificate. Such tokens are accepted on Agora's paths, and
    nowhere else.

    \b
    Examples:
      voicemem keys agora add --store sqlite:calls.db APP_ID
      voicemem keys agora list --store sqlite:calls.db
    """


@agora.command("add", short_help="Register an app.")
@store_option
@project_option("The project that its tokens open.")
@scope_option(SCOPES, "What its tokens may do; may be repeated. A join that names an LLM's URL or key needs admin.")
@certificate_option
@click.argument("app_id")
def add_app(store: str, project: str, scopes: tuple[str, ...], certificate: str | None, app_id: str) -> None:
    """Register the app APP_ID: tokens signed with its certificate open the project on Agora's paths.

    A store that does not exist is created. From then on the service answers only requests with a key or such a token.

    \b
    Example:
      voicemem keys agora add --store sqlite:calls.db --project shop 0123456789abcdef0123456789abcdef
    """
    text = read_secret("Certificate") if certificate is None else certificate
    app = in_store(store, lambda opened: registry(opened).add(project, app_id, text, scopes), make=True)
    wait_for_services()
    audit("agora_app_added", COMMAND_LINE, project, app=app_id, scopes=app.scopes)
    click.echo(f"app {app_id} opens the project {project}, scopes {', '.join(scopes)}")


@agora.command("list", short_help="List the apps of all projects.")
@store_option
def list_apps(store: str) -> None:
    """List the apps of all projects: App ID, how many certificates are valid, project, scopes; never certificates.

    \b
    Example:
      voicemem keys agora list --store sqlite:calls.db
    """
    for app in in_store(store, lambda opened: registry(opened).list(EVERY_PROJECT)):
        certificates = "1 certificate " if app.old_certificate is None else "2 certificates"
        click.echo(f"{app.app_id}  {certificates}  {app.project}  {','.join(app.scopes)}")


@agora.command("rotate", short_help="Give an app a new certificate; the old one stays valid.")
@store_option
@certificate_option
@click.argument("app_id")
def rotate_certificate(store: str, certificate: str | None, app_id: str) -> None:
    """Give the app APP_ID a new certificate. The one before stays valid until `retire`, or the next `rotate`.

    \b
    Example:
      voicemem keys agora rotate --store sqlite:calls.db 0123456789abcdef0123456789abcdef
    """
    text = read_secret("Certificate") if certificate is None else certificate
    app = in_store(store, lambda opened: registry(opened).rotate(EVERY_PROJECT, app_id, text))
    audit("agora_certificate_rotated", COMMAND_LINE, app.project, app=app_id)
    click.echo(f"app {app_id} has the new certificate; the previous one is valid until it is retired")


@agora.command("retire", short_help="Refuse an app's old certificate.")
@store_option
@click.argument("app_id")
def retire_certificate(store: str, app_id: str) -> None:
    """Refuse tokens signed with the certificate that the app APP_ID had before the last rotation.

    \b
    Example:
      voicemem keys agora retire --store sqlite:calls.db 0123456789abcdef0123456789abcdef
    """
    app = in_store(store, lambda opened: registry(opened).retire(EVERY_PROJECT, app_id))
    audit("agora_certificate_retired", COMMAND_LINE, app.project, app=app_id)
    click.echo(f"app {app_id} has one certificate")


@agora.command("remove", short_help="Remove an app.")
@store_option
@click.argument("app_id")
def remove_app(store: str, app_id: str) -> None:
    """Remove the app APP_ID and its certificates: its tokens are refused from then on.

    \b
    Example:
      voicemem keys agora remove --store sqlite:calls.db 0123456789abcdef0123456789abcdef
    """
    app = in_store(store, lambda opened: registry(opened).remove(EVERY_PROJECT, app_id))
    audit("agora_app_removed", COMMAND_LINE, app.project, app=app_id)
    click.echo(f"app {app_id} is removed")


def registry(opened: Store) -> AppRegistry:
    return AppRegistry(Access(opened.directory))
