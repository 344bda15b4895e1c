"""`voicemem proxy`: forwards calls to another stack, and remembers them."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

import click

from voicemem.cli import logs
from voicemem.cli.common import Command, check_rest_url, number_of, options, run, variable_option
from voicemem.cli.service import notify, on_signals, start_logging, wait_for_first
from voicemem.cli.service_settings import LOG_OPTIONS
from voicemem.config.service import parse_address
from voicemem.proxy.requests import PREFIX
from voicemem.proxy.server import ProxyServer
from voicemem.proxy.settings import Settings, check_settings, parse_upstream_keys, parse_upstreams
from voicemem.version import __version__

LOG = logging.getLogger("voicemem.proxy")
DEFAULTS = Settings(upstreams={})
SAME = (
    *("ingest_url", "key", "insecure", "tls_cert", "tls_key"),
    *("connect_timeout", "drain_timeout", "buffer_bytes", "max_calls", "key_grace"),
)
"""Options that are settings as they are."""


def setting(flag: str, text: str, variable: str = "", **kind: Any) -> Callable[[Command], Command]:
    """An option for a flag and its variable: --listen is VOICEMEM_PROXY_LISTEN, unless it has another one."""
    name = flag.removeprefix("--").replace("-", "_")
    default = getattr(DEFAULTS, name, None)
    if default is not None:
        kind["default"] = str(default) if name == "listen" else default
    return variable_option(flag, variable or f"VOICEMEM_PROXY_{name.upper()}", text, **kind)


@click.command(short_help="Forward calls to another voice stack, and remember them.")
@setting(
    "--upstream",
    "Where calls of a dialect go, DIALECT=URL, such as openai-realtime=wss://api.openai.com/v1. May be repeated (in the"
    " variable, separate with spaces).",
    multiple=True,
)
@setting(
    "--upstream-key-env",
    "Keep the vendor's key here: DIALECT=NAME or DIALECT=HEADER:NAME, with the variable that holds it. Callers then"
    " show a key of the memory in its place. May be repeated.",
    multiple=True,
)
@setting("--listen", "HOST:PORT to listen on. Beyond loopback, every caller must show a key of the memory.")
@setting("--ingest-url", "Address of the memory's ingest.", "VOICEMEM_INGEST_URL")
@variable_option(
    "--url", "VOICEMEM_URL", "Address of the memory's REST API.", default=DEFAULTS.rest_url, callback=check_rest_url
)
@setting(
    "--key",
    "A key with the scope ingest, for callers on loopback who show none. Use the variable, since other users of the"
    " machine can see flags.",
    "VOICEMEM_KEY",
)
@setting(
    "--allow-origin",
    "An origin whose pages may use the proxy, such as https://app.example.com. May be repeated. Default: none.",
    multiple=True,
)
@setting("--tls-cert", "PEM file with the certificates for wss://, the proxy's own first.")
@setting("--tls-key", "PEM file with its private key.")
@setting("--connect-timeout", "How long the upstream may take to answer a handshake, in seconds.", type=float)
@setting(
    "--drain-timeout", "How long calls may go on after SIGTERM, in seconds. Default: as long as they last.", type=float
)
@setting(
    "--key-grace",
    "While the memory is away: how long a key makes calls after the memory last knew it, in seconds.",
    type=float,
)
@setting("--buffer-bytes", "How much all calls together may keep for a memory that is away.", type=int)
@setting("--max-calls", "How many calls may be under way; more are refused with 503.", type=int)
@click.option("--insecure", is_flag=True, help="Beyond loopback, also take callers who show no key of the memory.")
@options(*LOG_OPTIONS)
@click.pass_context
def proxy(context: click.Context, /, **values: Any) -> None:
    """Forward calls to another voice stack, and remember both sides of them, until SIGTERM or Ctrl-C.

    Calls come to /v1/proxy/DIALECT, and go to the upstream that is set for that dialect, with the rest of their path.
    They continue whatever becomes of the memory. SIGTERM lets the calls that there are come to their end; a second one
    ends them.

    \b
    Examples:
      voicemem proxy --upstream openai-realtime=wss://api.openai.com/v1
      voicemem proxy --upstream openai-realtime=wss://api.openai.com/v1 \\
          --upstream-key-env openai-realtime=OPENAI_API_KEY
    """
    start_logging(context, LOG, values)
    run(serve_until_drained(values))


async def serve_until_drained(values: dict[str, Any]) -> None:
    """Serve until the first signal, then until the last call has ended or the second signal."""
    settings = Settings(
        upstreams=parse_upstreams(values["upstream"], parse_upstream_keys(values["upstream_key_env"], os.environ)),
        listen=parse_address(values["listen"]),
        rest_url=values["url"],
        allow_origins=tuple(values["allow_origin"]),
        **{name: values[name] for name in SAME},
    )
    check_settings(settings)
    logs.log_lost_errors(asyncio.get_running_loop())
    stopped, ended = asyncio.Event(), asyncio.Event()
    on_signals(lambda: (ended if stopped.is_set() else stopped).set())
    server = ProxyServer(settings)
    try:
        port = await server.start()
        announce(settings, port)
        notify("READY=1")
        await stopped.wait()
        notify("STOPPING=1")
        server.drain()
        click.echo(f"draining: {number_of(len(server.calls), 'call')} still open; a second signal ends them")
        await wait_for_first(server.wait_for_calls(settings.drain_timeout), ended.wait())
    finally:
        await server.close()


def announce(settings: Settings, port: int) -> None:
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
    LOG.info("Started", extra={"version": __version__, "address": str(address)})
