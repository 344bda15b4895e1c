"""`voicemem quickstart`: three questions, a settings file, and the next command."""

import json
import re
import secrets
import shlex
import sys
from collections.abc import Callable
from pathlib import Path

import click

from voicemem.cli.common import CommandFailed, written_file
from voicemem.config import service
from voicemem.errors import CannotStart
from voicemem.webhooks.endpoints import new_webhook_secret

FILE = "voicemem.toml"
REACHES = ("local", "network")
USUAL = (REACHES[0], service.NO_WEBHOOK)
HEAD = """\
# Settings of voicemem: voicemem serve --config {file}
# Flags of `serve` and VOICEMEM_... variables win over this file.
# Every setting: docs/operations.md. What is valid, and what it comes to: voicemem check-config --config {file}

# Where calls are kept: sqlite:PATH, postgresql://... for several nodes, or memory: for nothing after the end.
store = {store}

# Where it listens: the REST API with the page (/ui/), and the websocket that takes events.
rest = {rest}
ingest = {ingest}
"""
KEY = """
# A first key with every scope. Clients send it, and one signs in with it on the page. Keep this file to yourself.
# Keys for single programs: {command}
admin-key = {key}
# Beyond this machine, put a proxy with TLS before it (docs/operations.md, "Behind a proxy"), and name its address:
# ui-origin = "https://memory.example"
"""
NO_KEY = """
# Only programs of this machine can reach it, so it has no keys. For the network, take 0.0.0.0, and set a key:
# admin-key = "at least 16 characters, 32 random ones are right"
"""
WEBHOOK = """
# Gets the memory of every call at its end, signed with the secret.
webhook-url = {url}
webhook-secret = {secret}
"""
NO_WEBHOOK_YET = """
# To get the memory of every call at its end:
# webhook-url = "https://example.com/calls"
# webhook-secret = "my-secret"
"""
TAIL = """
# What else is often set:
# redact = ["cards", "otp"]                          # what is not kept of what is said
# memory = {policy = "window", max_tokens = 4000}    # what the next LLM request gets of a call
# llm-url = "https://api.openai.com/v1"              # for the gateway and for summaries
# log-level = "info"
"""


@click.command(short_help="Write a settings file, after three questions.")
@click.option("--store", help="The first answer: sqlite:PATH, postgresql://… or memory:.")
@click.option(
    "--reach", type=click.Choice(REACHES), help="The second: whether only this machine reaches it, or the network."
)
@click.option("--webhook-url", help="The third: what gets the memory of every call at its end; none for nothing.")
@click.option("--file", type=click.Path(path_type=Path), default=FILE, show_default=True, help="What to write.")
@click.option("--force", is_flag=True, help="Replace a file that is there.")
@click.option("--yes", is_flag=True, help="Ask nothing: take the usual answers where no flag gives one.")
def quickstart(
    store: str | None, reach: str | None, webhook_url: str | None, file: Path, force: bool, yes: bool
) -> None:
    """Write a settings file with comments, and say how to start the service with it.

    It asks where calls are kept, who can reach the service, and what is to get the memory of a call at its end. Flags
    answer instead; nothing is asked with --yes, or where there is no terminal. For the network a first key is made.

    \b
    Examples:
      voicemem quickstart
      voicemem quickstart --yes --reach network --webhook-url https://example.com/calls
    """
    if file.exists() and not force:
        raise CommandFailed(f"{file} is there already; --force replaces it, --file names another.")
    asks = not yes and sys.stdin.isatty()
    if store is None:
        store = ask("1/3 Where are calls kept?", service.Settings().store, asks, lambda answer: chosen(answer, *USUAL))
    if reach is None:
        reach = ask("2/3 Who reaches it: this machine alone, or the network?", REACHES[0], asks, check_reach)
    if webhook_url is None:
        question = "3/3 A URL that gets the memory of every call at its end?"
        webhook_url = ask(
            question, service.NO_WEBHOOK, asks, lambda answer: chosen(service.MEMORY_STORE, REACHES[0], answer)
        )
    settings = chosen(store, reach, webhook_url)
    for path in (
        str(file),
        *([settings.store.removeprefix(service.SQLITE_PREFIX)] * settings.store.startswith(service.SQLITE_PREFIX)),
    ):
        Path(path).parent.mkdir(mode=0o700, parents=True, exist_ok=True)
    with written_file(file, force) as opened:
        opened.write(settings_text(file, settings).encode())
    click.echo(f"Wrote {file}: calls in {service.shown_store(settings.store)}, REST on {settings.rest}.")
    click.echo(f"Next:  voicemem serve --config {shlex.quote(str(file))}")
    click.echo("then:  voicemem ui")
    if settings.admin_key is not None:
        click.echo(f"The key for clients, and to sign in on the page, is admin-key in {file}.")


def ask(question: str, usual: str, asks: bool, check: Callable[[str], object]) -> str:
    """Return the answer to a question, which is asked again until `check` accepts it."""

    def checked(answer: str) -> str:
        try:
            check(answer)
        except CannotStart as error:
            raise click.UsageError(error.detail) from None
        return answer

    return str(click.prompt(question, default=usual, value_proc=checked, err=True)) if asks else usual


def check_reach(answer: str) -> None:
    if answer not in REACHES:
        raise CannotStart(f"Write {' or '.join(REACHES)}.")


def chosen(store: str, reach: str, webhook_url: str) -> service.Settings:
    """Return the settings for the answers. Raises `CannotStart` if `serve` would not accept them."""
    usual, hooked = service.Settings(), webhook_url != service.NO_WEBHOOK
    store = re.sub(f"^{service.SQLITE_PREFIX}~/", f"{service.SQLITE_PREFIX}{Path.home()}/", store)
    host = service.ANY_HOST if reach == "network" else usual.rest.host
    settings = service.Settings(
        store=store,
        rest=service.Address(host, usual.rest.port),
        ingest=service.Address(host, usual.ingest.port),
        admin_key=secrets.token_urlsafe(32) if reach == "network" else None,
        webhook_url=webhook_url if hooked else None,
        webhook_secret=new_webhook_secret() if hooked else None,
    )
    service.check_service_settings(settings)
    return settings


def settings_text(file: Path, settings: service.Settings) -> str:
    head = HEAD.format(
        file=file, store=text(settings.store), rest=text(str(settings.rest)), ingest=text(str(settings.ingest))
    )
    key, command = NO_KEY, service.key_command(settings.store) or "POST /v1/keys"
    if settings.admin_key is not None:
        key = KEY.format(key=text(settings.admin_key), command=command)
    hook = NO_WEBHOOK_YET
    if settings.webhook_url is not None:
        hook = WEBHOOK.format(url=text(settings.webhook_url), secret=text(settings.webhook_secret or ""))
    return head + key + hook + TAIL


def text(value: str) -> str:
    """Return a text in TOML, whose basic strings are written like JSON's."""
    return json.dumps(value, ensure_ascii=False)
