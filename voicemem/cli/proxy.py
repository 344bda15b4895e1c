"""`voicemem proxy`: forwards calls to another stack, and remembers them."""

from __future__ import annotations

import asyncio
import logging
import os
import signal
import sys
from collections.abc import Coroutine
from typing import Any

import click

from voicemem.cli import logs
from voicemem.cli.common import Command, check_rest_url, run, unknown_variables
from voicemem.cli.service import notify, tune_interpreter
from voicemem.cli.service_settings import LOG_OPTIONS
from voicemem.config.service import parse_address
from voicemem.proxy.requests import PREFIX
from voicemem.proxy.server import ProxyServer
from voicemem.proxy.settings import (
    Settings,
    check_settings,
    parse_upstream_keys,
    parse_upstreams,
)
from voicemem.version import __version__

LOG = logging.getLogger("voicemem.proxy")
DEFAULTS = Settings(upstreams={})
OPTIONS = (
    click.option(
        "--upstream",
        multiple=True,
        envvar="VOICEMEM_PROXY_UPSTREAM",
        show_envvar=True,
        help="Where calls of a dialect go, DIALECT=URL, such as openai-realtime=wss://api.openai.com/v1. May be"
        " repeated (in the variable, separate with spaces).",
    ),
    click.option(
        "--upstream-key-env",
        multiple=True,
        envvar="VOICEMEM_PROXY_UPSTREAM_KEY_ENV",
        show_envvar=True,
        help="Keep the vendor's key here: DIALECT=NAME or DIALECT=HEADER:NAME, with the variable that holds it. Callers"
        " then show a key of the memory in its place. May be repeated.",
    ),
    click.option(
        "--listen",
        default=str(DEFAULTS.listen),
        show_default=True,
        envvar="VOICEMEM_PROXY_LISTEN",
        show_envvar=True,
        help="HOST:PORT to listen on. Beyond loopback, every caller must show a key of the memory.",
    ),
    click.option(
        "--ingest-url",
        default=DEFAULTS.ingest_url,
        show_default=True,
        envvar="VOICEMEM_INGEST_URL",
        show_envvar=True,
        help="Address of the memory's ingest.",
    ),
    click.option(
        "--url",
        default=DEFAULTS.rest_url,
        show_default=True,
        envvar="VOICEMEM_URL",
        show_envvar=True,
        callback=check_rest_url,
        help="Address of the memory's REST API.",
    ),
    click.option(
        "--key",
        envvar="VOICEMEM_KEY",
        show_envvar=True,
        help="A key with the scope ingest, for callers on loopback who show none. Use the variable, since other users"
        " of the machine can see flags.",
    ),
    click.option(
        "--allow-origin",
        multiple=True,
        envvar="VOICEMEM_PROXY_ALLOW_ORIGIN",
        show_envvar=True,
        help="An origin whose pages may use the proxy, such as https://app.example.com. May be repeated. Default:"
        " none.",
    ),
    click.option(
        "--tls-cert",
        envvar="VOICEMEM_PROXY_TLS_CERT",
        show_envvar=True,
        help="PEM file with the certificates for wss://, the proxy's own first.",
    ),
    click.option("--tls-key", envvar="VOICEMEM_PROXY_TLS_KEY", show_envvar=True, help="PEM file with its private key."),
    click.option(
        "--connect-timeout",
        type=float,
        default=DEFAULTS.connect_timeout,
        show_default=True,
        envvar="VOICEMEM_PROXY_CONNECT_TIMEOUT",
        show_envvar=True,
        help="How long the upstream may take to answer a handshake, in seconds.",
    ),
    click.option(
        "--drain-timeout",
        type=float,
        envvar="VOICEMEM_PROXY_DRAIN_TIMEOUT",
        show_envvar=True,
        help="How long calls may go on after SIGTERM, in seconds. Default: as long as they last.",
    ),
    click.option(
        "--buffer-bytes",
        type=int,
        default=DEFAULTS.buffer_bytes,
        show_default=True,
        envvar="VOICEMEM_PROXY_BUFFER_BYTES",
        show_envvar=True,
        help="How much all calls together may keep for a memory that is away.",
    ),
    click.option(
        "--max-calls",
        type=int,
        default=DEFAULTS.max_calls,
        show_default=True,
        envvar="VOICEMEM_PROXY_MAX_CALLS",
        show_envvar=True,
        help="How many calls may be under way; more are refused with 503.",
    ),
    click.option("--insecure", is_flag=True, help="Beyond loopback, also take callers who show no key of the memory."),
    *LOG_OPTIONS,
)


def proxy_options(command: Command) -> Command:
    for option in reversed(OPTIONS):
        command = option(command)
    return command


@click.command(short_help="Forward calls to another voice stack, and remember them.")
@proxy_options
@click.pass_context
def proxy(context: click.Context, /, **options: Any) -> None:
    """Forward calls to another voice stack, and remember both sides of them, until SIGTERM or Ctrl-C.

    Calls come to /v1/proxy/DIALECT, and go to the upstream that is set for that dialect, with the rest of their path.
    They go on whatever becomes of the memory. SIGTERM lets the calls that there are come to their end; a second one
    ends them.

    \b
    Examples:
      voicemem proxy --upstream openai-realtime=wss://api.openai.com/v1
      voicemem proxy --upstream openai-realtime=wss://api.openai.com/v1 \\
          --upstream-key-env openai-realtime=OPENAI_API_KEY
    """
    unknown = unknown_variables(context, os.environ)
    logs.configure_logging(options["log_format"], options["log_level"])
    if unknown:
        LOG.warning("Ignored, since there is no such setting: %s", ", ".join(unknown))
    tune_interpreter()
    run(serve_until_drained(options))


def to_settings(options: dict[str, Any]) -> Settings:
    """The settings from the command's options, checked. Raises `CannotStart`."""
    keys = parse_upstream_keys(options["upstream_key_env"], os.environ)
    settings = Settings(
        upstreams=parse_upstreams(options["upstream"], keys),
        listen=parse_address(options["listen"]),
        ingest_url=options["ingest_url"],
        rest_url=options["url"],
        key=options["key"],
        insecure=options["insecure"],
        allow_origins=tuple(options["allow_origin"]),
        tls_cert=options["tls_cert"],
        tls_key=options["tls_key"],
        connect_timeout=options["connect_timeout"],
        drain_timeout=options["drain_timeout"],
        buffer_bytes=options["buffer_bytes"],
        max_calls=options["max_calls"],
    )
    check_settings(settings)
    return settings


async def serve_until_drained(options: dict[str, Any]) -> None:
    """Serve until the first signal, then until the last call has ended or the second signal."""
    settings = to_settings(options)
    logs.log_lost_errors(asyncio.get_running_loop())
    stopped, ended = asyncio.Event(), asyncio.Event()

    def on_signal() -> None:
        (ended if stopped.is_set() else stopped).set()

    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, on_signal)
    server = ProxyServer(settings)
    try:
        port = await server.start()
        announce(settings, port)
        notify("READY=1")
        await stopped.wait()
        notify("STOPPING=1")
        server.drain()
        click.echo(f"draining: {len(server.calls)} calls go on; a second signal ends them")
        sys.stdout.flush()
        await wait_for_first(server.wait_for_calls(settings.drain_timeout), ended.wait())
    finally:
        await server.close()


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def announce(settings: Settings, port: int) -> None:
    """Say where everything is."""
    scheme = "ws" if settings.tls_cert is None else "wss"
    address = settings.listen._replace(port=port)
    click.echo(f"voicemem proxy {__version__}, memory {settings.ingest_url}")
    for dialect, upstream in sorted(settings.upstreams.items()):
        target = f"{'wss' if upstream.secure else 'ws'}://{upstream.authority}{upstream.path}"
        kept = "; the vendor's key is kept here" if upstream.key else ""
        click.echo(f"  {scheme}://{address}{PREFIX}{dialect}  ->  {target}{kept}")
    if not settings.listen.is_loopback:
        who = "anyone may call" if settings.insecure else "callers show a key of the memory"
        click.echo(f"  keys     {who}")
    sys.stdout.flush()
    LOG.info("Started", extra={"version": __version__, "address": str(address)})
