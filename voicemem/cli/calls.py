"""`voicemem demo`, `replay`, `history` and `receive`: calls, in and out."""

from __future__ import annotations

import asyncio
import json
import sys
from pathlib import Path
from typing import Any

import aiohttp
import click
from rich.console import Console

from voicemem.cli.common import CommandFailed, rest_url, run
from voicemem.cli.demo import demo as run_demo
from voicemem.cli.demo import render_message
from voicemem.client.replay import Replay, load_recording
from voicemem.config.secrets import check_webhook_secret
from voicemem.config.service import parse_address
from voicemem.errors import Refused
from voicemem.webhooks.receiver import Notice, WebhookReceiver

REST_URL = "http://127.0.0.1:8080"
INGEST_URL = "ws://127.0.0.1:8765/v1/ingest"


@click.command()
@click.option("--fast", is_flag=True, help="Play the call in a second or two.")
def demo(fast: bool) -> None:
    """Show everything at once: a recorded call plays, an interruption strikes out what was not heard,
    both formats for the next LLM call, and the signed webhook arriving."""
    console = Console(width=None if sys.stdout.isatty() else 120)
    run(run_demo(console, fast))


@click.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--session", help="Session id; the server makes one when there is none.")
@click.option("--url", envvar="VOICEMEM_INGEST_URL", default=INGEST_URL, show_default=True, show_envvar=True)
@click.option("--key", envvar="VOICEMEM_KEY", show_envvar=True, help="A key with the scope ingest.")
@click.option("--pace", type=click.FloatRange(min=0.01), help="1 is as fast as it happened; without, at once.")
def replay(file: Path, session: str | None, url: str, key: str | None, pace: float | None) -> None:
    """Send a recorded call (one event a line, such as fixtures/voicemem/*.jsonl) to a running server.

    Replaying a file into the same session again sends only what the server does not have yet.
    """
    run(send_recording(file, session, url, key, pace))


async def send_recording(file: Path, session: str | None, url: str, key: str | None, pace: float | None) -> None:
    events = load_recording(file)
    with click.progressbar(length=len(events), label="sending", file=sys.stderr) as bar:
        done = await Replay(events, lambda event: bar.update(1)).run(url, session, key, pace)
    for error in done.errors:
        click.secho(f"seq {error.get('seq')}: {error['code']}: {error['detail']}", fg="yellow", err=True)
    skipped = f", {done.skipped} were there already" if done.skipped else ""
    click.echo(f"session {done.session_id}: {done.sent} events sent{skipped}, {len(done.errors)} refused")


@click.command()
@click.argument("session")
@click.option("--url", envvar="VOICEMEM_URL", default=REST_URL, show_default=True, show_envvar=True, callback=rest_url)
@click.option("--key", envvar="VOICEMEM_KEY", show_envvar=True, help="A key with the scope read.")
@click.option("--open", "unfinished", is_flag=True, help="With replies and partials in progress.")
@click.option("--json", "as_json", is_flag=True, help="The document as the API gives it.")
def history(session: str, url: str, key: str | None, unfinished: bool, as_json: bool) -> None:
    """Show a session's memory; what an interruption kept from being heard is struck out."""
    body = run(fetch_history(session, url, key, unfinished))
    if as_json:
        click.echo(json.dumps(body, ensure_ascii=False, indent=2))
        return
    console = Console()
    console.print(f"[bold]{body['session_id']}[/] {body['state']}, {len(body['contents'])} messages", highlight=False)
    for message in body["contents"]:
        console.print(render_message(message, console.is_terminal))


async def fetch_history(session: str, url: str, key: str | None, unfinished: bool) -> Any:
    headers = {"Authorization": f"Bearer {key}"} if key else {}
    query = "?open=true" if unfinished else ""
    address = f"{url.rstrip('/')}/v1/sessions/{session}/history{query}"
    async with aiohttp.ClientSession(headers=headers) as http, http.get(address) as response:
        try:
            body = await response.json(content_type=None)
        except ValueError:
            raise CommandFailed(
                f"{url} is not the REST API: it answered HTTP {response.status} without JSON."
            ) from None
    if response.status != 200:
        raise CommandFailed(f"{body.get('detail', response.reason)} ({body.get('reason', response.status)})")
    return body


@click.command()
@click.option("--listen", default="127.0.0.1:9000", show_default=True, help="HOST:PORT")
@click.option("--secret", envvar="VOICEMEM_WEBHOOK_SECRET", show_envvar=True, help="What the webhooks are signed with.")
def receive(listen: str, secret: str | None) -> None:
    """Receive webhooks, verify their three signatures, and print them."""
    try:
        check_webhook_secret(secret)
    except Refused as refused:
        raise CommandFailed(refused.detail) from None
    run(receive_until_stopped(listen, secret))


async def receive_until_stopped(listen: str, secret: str | None) -> None:
    receiver = WebhookReceiver(secret, print_notice)
    try:
        click.echo(f"listening on http://{await receiver.start(parse_address(listen))}/")
        if secret is None:
            click.echo("no secret was given, so signatures cannot be verified (--secret)")
        sys.stdout.flush()
        await asyncio.Event().wait()
    finally:
        await receiver.stop()


def print_notice(notice: Notice) -> None:
    for name, right in notice.verified.items():
        click.secho(f"{'verified' if right else 'NOT VERIFIED':13}{name}", fg="green" if right else "red")
    click.echo(json.dumps(notice.body, ensure_ascii=False, indent=2))
    sys.stdout.flush()
