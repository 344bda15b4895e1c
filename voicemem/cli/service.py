"""`voicemem serve` and `check-config`; `voicemem ui`, which opens the page of a running service."""

import asyncio
import ctypes
import gc
import logging
import os
import signal
import socket
import sys
import webbrowser
from collections.abc import Callable, Coroutine
from contextlib import suppress
from typing import Any
from urllib.parse import urlsplit

import click

from voicemem.app import App, running
from voicemem.cli import logs
from voicemem.cli.common import URL_OPTION, CommandFailed, Server, options, run, unknown_variables
from voicemem.cli.service_settings import REPEATED, SERVE_OPTIONS, SOURCES, to_settings
from voicemem.client.errors import RequestRefused
from voicemem.config.service import MEMORY_STORE, NO_WEBHOOK, Address, check_binding, key_command, shown_store
from voicemem.telemetry import chosen_exporter, make_tracer
from voicemem.version import __version__

LOG = logging.getLogger("voicemem")
SECRET_SETTINGS = ("webhook_secret", "admin_key", "llm_api_key", "embeddings_key", "hook_secrets", "observe_key")
"""Secret settings: `check-config` shows only that they are set."""
M_MMAP_THRESHOLD, LARGE_BLOCK = -3, 128 * 1024
"""Blocks of at least so many bytes are returned to the system as soon as they are freed (mallopt(3))."""
YOUNG_S, DAY_S = 0.01, 86_400
M_ARENA_MAX, ARENAS = -8, 2
"""Heaps from which threads allocate: with one for each thread, memory that one has freed is not used by the others."""


@click.command(short_help="Run the service.")
@options(*SERVE_OPTIONS)
@click.pass_context
def serve(context: click.Context, /, **values: Any) -> None:
    """Run the service (ingest, REST and webhooks) until SIGTERM or Ctrl-C.

    Every flag can be set by an environment variable instead, or in a file (--config; `voicemem quickstart` writes one).
    On shutdown, it first stores and acknowledges everything received.

    \b
    Examples:
      voicemem serve --store sqlite:calls.db
      voicemem serve --config voicemem.toml
      voicemem serve --webhook-url https://example.com/calls --webhook-secret my-secret
      VOICEMEM_STORE=sqlite:calls.db VOICEMEM_LOG_LEVEL=info voicemem serve
    """
    handler = prepare_process(context, LOG, values)
    run(serve_until_stopped(values, handler))
    gc.freeze()  # at exit Python would go through all remaining objects, which takes seconds


def prepare_process(context: click.Context, log: logging.Logger, options: dict[str, Any]) -> logging.Handler:
    """Begin a command that serves: log, check its variables, and tune Python."""
    unknown = unknown_variables(context, os.environ)
    handler = logs.configure_logging(options["log_format"], options["log_level"])
    if unknown:
        log.warning("Ignored, since there is no such setting: %s", ", ".join(unknown))
    # For one busy event loop alongside one thread that commits (measured in bench/README.md). Imported modules never
    # become garbage. Objects that live as long as their session have no cycles, so a full collection finds nothing, and
    # holds up every ack for half a second when 10,000 sessions are open: let it come once a day. Each collection of
    # young objects counts towards it; for those see `collect_young`.
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 2, int(DAY_S / YOUNG_S))
    sys.setswitchinterval(0.0005)  # for the committing thread; Python's 5 ms are as long as a whole ack takes
    with suppress(OSError, AttributeError):  # glibc only, which would keep the memory of large texts
        library = ctypes.CDLL(None)
        library.mallopt(M_MMAP_THRESHOLD, LARGE_BLOCK)
        library.mallopt(M_ARENA_MAX, ARENAS)
    return handler


async def collect_young() -> None:
    """Background task: collect young objects while they are few, since nothing is acknowledged meanwhile.

    Python triggers a collection by allocations minus deallocations. While sessions are packed, so many young objects
    accumulate that collecting them takes 10 to 20 ms.
    """
    while True:
        await asyncio.sleep(YOUNG_S)
        gc.collect(1)


def on_signals(act: Callable[[], None]) -> None:
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, act)


async def serve_until_stopped(values: dict[str, Any], handler: logging.Handler) -> None:
    stopped = asyncio.Event()
    on_signals(stopped.set)
    logs.log_lost_errors(asyncio.get_running_loop())
    tracer = make_tracer(os.environ)
    logs.add_fields(handler, tracer.ids)
    try:
        async with running(to_settings(values), tracer=tracer) as app:
            logs.add_fields(handler, lambda: {"node": node} if (node := app.services.node.shown_token()) else {})
            await announce(app)
            addresses = {"rest": str(app.rest_address), "ingest": str(app.ingest_address)}
            app.run_in_background(collect_young())
            LOG.info("Started", extra={"version": __version__, **addresses})
            notify("READY=1")
            await wait_for_first(stopped.wait(), app.failed.wait())
            if app.failed.is_set():
                raise CommandFailed("The service cannot continue; the log says why.")
            notify("STOPPING=1")
            LOG.info("Stopping")
            click.echo("stopping: everything received is stored and acknowledged first")
    finally:
        await asyncio.to_thread(tracer.close)


def describe_page(app: App) -> str:
    """Return the page's address; without an origin it answers to this machine's own names."""
    if not app.settings.ui:
        return "none (--ui)"
    if app.settings.ui_origin is not None:
        return f"{app.settings.ui_origin}/ui/"
    if app.rest_address.is_loopback:
        return f"http://{app.rest_address}/ui/"
    return f"http://127.0.0.1:{app.rest_address.port}/ui/ on this machine (--ui-origin for others)"


async def announce(app: App) -> None:
    settings = app.settings
    endpoint = await app.services.store.endpoints.find_operator_endpoint()
    webhook = "none (--webhook-url)" if endpoint is None else without_user(endpoint.url)
    if endpoint is not None and settings.webhook_url is None:
        webhook += f" (set by an earlier start; --webhook-url {NO_WEBHOOK} turns it off)"
    # Without its path, which may contain a secret.
    llm = "none (--llm-url)" if settings.llm_url is None else "://".join(urlsplit(settings.llm_url)[:2])
    click.echo(f"voicemem {__version__}, store {shown_store(settings.store)}")
    click.echo(f"  events   ws://{app.ingest_address}/v1/ingest")
    click.echo(f"  REST     http://{app.rest_address}/v1/sessions")
    click.echo(f"  page     {describe_page(app)}")
    click.echo(f"  webhook  {webhook}")
    click.echo(f"  llm      {llm}")
    if not await app.services.access.needs_key():
        how = key_command(settings.store) or "--admin-key"
        click.echo(f"  keys     none: anyone who can reach these ports may do anything ({how})")


def without_user(value: Any) -> Any:
    """Return a URL without user and password; anything else unchanged."""
    if not isinstance(value, str) or "@" not in value:
        return value
    parts = urlsplit(value)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def wait_for_first(*waits: Coroutine[Any, Any, Any]) -> None:
    tasks = [asyncio.ensure_future(wait) for wait in waits]
    await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
    for task in tasks:
        task.cancel()


def setting_shown(value: Any) -> str:
    """Return a setting in the form of the file, without the user of a URL."""
    if value is None or value == ():
        return "(not set)"
    if isinstance(value, bool):
        return "on" if value else "off"
    several = isinstance(value, tuple) and not isinstance(value, Address)
    return ", ".join(value) if several else without_user(value)


@click.command("check-config", short_help="Check the settings of `serve`, and show them.")
@options(*SERVE_OPTIONS)
@click.pass_context
def check_config(context: click.Context, /, **values: Any) -> None:
    """Check the settings that `serve` would use, and show them without secrets, by their names in the file.

    Takes the flags, environment variables and the file of `serve`, and shows where each setting is from. The exit code
    is 0 if the settings are valid, and 1 with one sentence about the first error if not. Nothing is opened: only
    `serve` can tell whether the ports are free, whether the store can be written, and whether it holds a key.

    \b
    Example:
      voicemem check-config --store sqlite:calls.db --rest 0.0.0.0:8080
    """
    unknown = unknown_variables(context, os.environ)
    settings = to_settings(values)
    chosen_exporter(os.environ)
    keys_unknown = not settings.admin_key and settings.store != MEMORY_STORE
    check_binding(settings, keys_needed=keys_unknown or bool(settings.admin_key))
    for field in settings.__struct_fields__:
        name, value = REPEATED.get(field, field), getattr(settings, field)
        source = SOURCES.get(context.get_parameter_source(name))
        shown_from = f"  (from the {source})" if source else ""
        shown = "(set)" if value and field in SECRET_SETTINGS else setting_shown(value)
        click.echo(f"{name.replace('_', '-'):24} {shown}{shown_from}")
    if unknown:
        click.echo(f"Ignored, since there is no such setting: {', '.join(unknown)}")
    click.echo("The settings are valid.")
    if keys_unknown and not settings.insecure and not (settings.rest.is_loopback and settings.ingest.is_loopback):
        how = key_command(settings.store)
        click.echo(f"Beyond loopback, a key in the store is required ({how}); only `serve` can tell.")


def notify(state: str) -> None:
    """Send `READY=1` or `STOPPING=1` to the supervisor, if there is one."""
    path = os.environ.get("NOTIFY_SOCKET", "")
    if not path.startswith(("/", "@")):
        return
    with suppress(OSError), socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_CLOEXEC) as supervisor:
        supervisor.connect(f"\0{path[1:]}" if path.startswith("@") else path)
        supervisor.send(state.encode())


PATH = "/ui/"
TEXT_BROWSERS = ("www-browser", "links", "elinks", "lynx", "w3m")
"""Browsers that the library falls back to where there is no desktop; the page needs a script to run."""


@click.command(short_help="Open the web page for browsing calls.")
@URL_OPTION
@click.option("--no-open", is_flag=True, help="Only print the address.")
def ui(url: str, no_open: bool) -> None:
    """Open the page of a running service in a browser, and print its address.

    It shows calls, live and ended: what was said, heard and cut off, what the next LLM request gets, and what
    became of webhooks. If the service has keys, the page asks for one; it is never in an address.

    \b
    Examples:
      voicemem ui
      voicemem ui --url https://memory.example --no-open
    """
    address = url.rstrip("/") + PATH
    run(check_page(url, address))
    click.echo(address)
    if no_open:
        return
    try:
        browser = webbrowser.get()
        if getattr(browser, "name", "") not in TEXT_BROWSERS and browser.open(address):
            return
    except (webbrowser.Error, OSError):
        pass
    click.echo("No browser could be opened here; open this address in yours.", err=True)


async def check_page(url: str, address: str) -> None:
    """Check that the page is served. Raises `CommandFailed` with what to do otherwise, `Unreachable`."""
    async with Server(url, None).client() as rest:
        try:
            await rest.request("GET", PATH, is_json=False)
        except RequestRefused as refused:
            if refused.status != 404:
                raise CommandFailed(f"{address} answers {refused.status}: {refused.detail}") from None
            check = "Check that this is the REST address, and not served with `--ui off`."
            raise CommandFailed(f"There is no page at {address}. {check}") from None
