"""`voicemem proxy`: forwards calls to another stack, and remembers them."""

import asyncio
import logging
import os
from collections.abc import Callable
from typing import Any

import click

from voicemem.cli import logs
from voicemem.cli.common import Command, check_rest_url, number_of, options, run, variable_option
from voicemem.cli.service import notify, on_signals, prepare_process, wait_for_first
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
"""Options that are passed on as settings unchanged."""


HELP = {
    "upstream": "Where calls of a dialect go, DIALECT=URL, such as openai-realtime=wss://api.openai.com/v1. May be"
    " repeated (in the variable, separate with spaces).",
    "upstream_key_env": "Keep the vendor's key here: DIALECT=NAME or DIALECT=HEADER:NAME, with the variable that"
    " holds it. Callers then show a key of the memory in its place. May be repeated.",
    "listen": "HOST:PORT to listen on. Beyond loopback, every caller must show a key of the memory.",
    "ingest_url": "Address of the memory's ingest.",
    "url": "Address of the memory's REST API.",
    "key": "A key with the scope ingest, for callers on loopback who show none. Use the variable, since other users of"
    " the machine can see flags.",
    "allow_origin": "An origin whose pages may use the proxy, such as https://app.example.com. May be repeated."
    " Default: none.",
    "tls_cert": "PEM file with the certificates for wss://, the proxy's own first.",
    "tls_key": "PEM file with its private key.",
    "connect_timeout": "How long the upstream may take to answer a handshake, in seconds.",
    "drain_timeout": "How long calls may go on after SIGTERM, in seconds. Default: as long as they last.",
    "key_grace": "While the memory is away: how long a key makes calls after the memory last knew it, in seconds.",
    "buffer_bytes": "How much all calls together may keep for a memory that is away.",
    "max_calls": "How many calls may be under way; more are refused with 503.",
}
VARIABLES = {"ingest_url": "VOICEMEM_INGEST_URL", "url": "VOICEMEM_URL", "key": "VOICEMEM_KEY"}
REPEATED = ("upstream", "upstream_key_env", "allow_origin")
NUMBERS = {"connect_timeout": float, "drain_timeout": float, "key_grace": float, "buffer_bytes": int, "max_calls": int}


def setting(name: str) -> Callable[[Command], Command]:
    """Return the option of a setting: --listen is VOICEMEM_PROXY_LISTEN, unless it has another variable."""
    kind: dict[str, Any] = {"multiple": name in REPEATED, "type": NUMBERS.get(name)}
    default = getattr(DEFAULTS, "rest_url" if name == "url" else name, None)
    if default is not None:
        kind["default"] = str(default) if name == "listen" else default
    if name == "url":
        kind["callback"] = check_rest_url
    variable = VARIABLES.get(name, f"VOICEMEM_PROXY_{name.upper()}")
    return variable_option(f"--{name.replace('_', '-')}", variable, HELP[name], **kind)


@click.command(short_help="Forward calls to another voice stack, and remember them.")
@options(*map(setting, HELP))
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
    prepare_process(context, LOG, values)
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
