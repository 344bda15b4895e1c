"""`voicemem demo`, `replay`, `history` and `receive`: calls, in and out."""

import asyncio
import sys
from pathlib import Path

import click
from rich.console import Console

from voicemem.cli import common
from voicemem.cli.demo.one_call import demo as run_demo
from voicemem.cli.demo.one_call import recorded_call, render_message
from voicemem.cli.truth import KINDS, LONGEST_PAUSE_S, TrueReply, read_true_call, stage
from voicemem.client.replay import Replay, load_recording
from voicemem.client.transport.connection import PATH
from voicemem.client.transport.rest import session_path
from voicemem.config.service import Settings, parse_address
from voicemem.config.session import check_webhook_secret
from voicemem.webhooks.requests import WebhookEvent, WebhookReceiver


@click.command(short_help="Show what voicemem does, with a recorded call.")
@click.option("--fast", is_flag=True, help="Play the call in a second or two, instead of at its own speed.")
def demo(fast: bool) -> None:
    """Show what voicemem does, with a recorded call.

    Starts the real service on free ports with a temporary store, and plays a call into it. You see the caller interrupt
    the agent, and what was never heard struck out; then what the next LLM request has of it, in two formats; then the
    signed webhook at the end of the call. It changes nothing on your machine and needs no network.

    \b
    Example:
      voicemem demo --fast
    """
    console = Console(width=None if sys.stdout.isatty() else 120)
    common.run(run_demo(console, fast))


@click.command(short_help="Send a recorded call to a running server.")
@click.argument("file", required=False, type=click.Path(exists=True, dir_okay=False, path_type=Path))
@click.option("--session", help="Session id; without it, a new one is made.")
@common.variable_option(
    "--url", "VOICEMEM_INGEST_URL", "Address of the ingest.", default=f"ws://{Settings().ingest}{PATH}"
)
@common.variable_option("--key", "VOICEMEM_KEY", "A key with the scope ingest, if keys are used.")
@click.option(
    "--pace",
    type=click.FloatRange(min=0.01),
    help="Speed: 1 is that of the call, 2 twice as fast. Without it, as fast as the server takes it.",
)
@click.option("--truth", is_flag=True, help="FILE is a true call (`voicemem truth export`); its speed is 1 by default.")
@click.option(
    "--evidence",
    type=click.Choice(list(KINDS)),
    help="What the engine of a true call knows of the playback: docs/evidence.md explains the kinds (words).",
)
@common.variable_option(
    "--rest-url",
    "VOICEMEM_URL",
    "With --truth: address of the REST API, where what was played is kept beside the call. Default: this one's,"
    " if --url is.",
)
@click.pass_context
def replay(
    context: click.Context,
    file: Path | None,
    session: str | None,
    url: str,
    key: str | None,
    pace: float | None,
    truth: bool,
    evidence: str | None,
    rest_url: str | None,
) -> None:
    """Send a recorded call to a running server.

    FILE has one event per line, as JSON; without it, the call of `voicemem demo` is sent. If the session has a part of
    it already, only the rest is sent, so a replay may be repeated.

    With --truth, FILE says what was really played on a call. The events that an engine would send about it are sent in
    real time, as of a call that begins now, and then you see what was really heard of each interrupted reply. What was
    played, word by word, is kept in the session's data, so that the page (`voicemem ui`) shows it beside the memory.

    \b
    Examples:
      voicemem replay --session recorded-1 --pace 1
      voicemem replay fixtures/voicemem/seed_call.jsonl
      voicemem replay --truth calls/taxi.json --evidence position --session recorded-2
    """
    if evidence is not None and not truth:
        raise click.UsageError("--evidence is for true calls; add --truth.")
    if truth and file is None:
        raise click.UsageError("--truth needs the FILE of a true call, as `voicemem truth export` writes them.")
    cut_replies: list[TrueReply] = []
    longest_pause_s: float | None = None
    if truth and file is not None:
        at_home = context.get_parameter_source("url") is click.core.ParameterSource.DEFAULT
        rest_url = rest_url or (f"http://{Settings().rest}" if at_home else None)
        rest, pace = common.Server(rest_url, key) if rest_url else None, pace or 1.0
        call, session, events = common.run(stage(read_true_call(file), KINDS[evidence or "words"], session, rest, pace))
        cut_replies, longest_pause_s = call.cut_replies, LONGEST_PAUSE_S
    else:
        events = recorded_call() if file is None else load_recording(file)
    with common.progress(len(events), f"sending {common.number_of(len(events), 'event')} to {url}") as bar:
        result = common.run(Replay(events, lambda event: bar.update(1), longest_pause_s).run(url, session, key, pace))
    for error in result.errors:
        click.secho(f"seq {error.get('seq')}: {error['code']}: {error['detail']}", fg="yellow", err=True)
    skipped = f", {result.skipped} were there already" if result.skipped else ""
    click.echo(
        f"session {result.session_id}: {common.number_of(result.sent, 'event')} sent{skipped},"
        f" {len(result.errors)} refused"
    )
    for reply in cut_replies:
        click.echo(f"{reply.item}: {reply.heard()!r} was heard of {reply.text!r}")


@click.command(short_help="Show the memory of a session.")
@click.argument("session")
@common.rest_options
@click.option("--open", "unfinished", is_flag=True, help="Also show replies and transcripts in progress.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of the REST API.")
def history(session: str, server: common.Server, unfinished: bool, as_json: bool) -> None:
    """Show the memory of a session, during the call or after it.

    What an interruption kept from being heard is struck out.

    \b
    Examples:
      voicemem history call-1
      voicemem history call-1 --open --json
    """
    body = server.ask("GET", session_path(session, "/history"), query={"open": unfinished or None})
    if as_json:
        click.echo(common.json_shown(body, 2))
        return
    console = Console(highlight=False)
    in_pipe = not console.is_terminal  # there a line stays one, for grep
    console.print(
        f"[bold]{body['session_id']}[/] {body['state']}, {common.number_of(len(body['contents']), 'message')}",
        soft_wrap=in_pipe,
    )
    for message in body["contents"]:
        console.print(render_message(message, console.is_terminal), soft_wrap=in_pipe)


@click.command(short_help="Receive webhooks, verify and print them.")
@click.option("--listen", default="127.0.0.1:9000", show_default=True, help="Where to listen, HOST:PORT.")
@common.variable_option(
    "--secret",
    "VOICEMEM_WEBHOOK_SECRET",
    "The secret that the webhooks are signed with; without it, signatures are not verified.",
)
def receive(listen: str, secret: str | None) -> None:
    """Receive webhooks, verify their three signatures, and print them, until Ctrl-C.

    For trying things out: start the service with --webhook-url and the same secret.

    \b
    Example:
      voicemem receive --secret my-secret
      voicemem serve --webhook-url http://127.0.0.1:9000/ --webhook-secret my-secret
    """
    check_webhook_secret(secret)
    common.run_until_interrupted(receive_forever(listen, secret))


async def receive_forever(listen: str, secret: str | None) -> None:
    def show(event: WebhookEvent) -> None:
        for name, valid in event.verified.items():
            click.secho(f"{'verified' if valid else 'NOT VERIFIED':13}{name}", fg="green" if valid else "red")
        click.echo(common.json_shown(event.body, 2))

    receiver = WebhookReceiver(secret, show)
    try:
        click.echo(f"listening on http://{await receiver.start(parse_address(listen))}/")
        if secret is None:
            click.echo("signatures are not verified: there is no secret (--secret)")
        await asyncio.Event().wait()
    finally:
        await receiver.stop()
