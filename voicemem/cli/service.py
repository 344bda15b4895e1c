"""`voicemem serve` and `voicemem check-config`."""

from __future__ import annotations

import asyncio
import gc
import logging
import os
import shlex
import signal
import sys
from typing import Any
from urllib.parse import urlsplit

import click

from voicemem.app import App, running
from voicemem.cli import logs
from voicemem.cli.common import Command, CommandFailed, run, setting, unknown_variables
from voicemem.cli.notify import notify
from voicemem.cli.settings_file import config_option, shown_source
from voicemem.config.service import (
    MEMORY_STORE,
    NO_WEBHOOK,
    REDACTIONS,
    SQLITE_PREFIX,
    Address,
    Settings,
    check_binding,
    check_service_settings,
    parse_address,
    shown_store,
)
from voicemem.context.plugins import load_policies
from voicemem.errors import VoicememError
from voicemem.security.address_guard import allowed_networks
from voicemem.sessions.recording.redactors import load_rules
from voicemem.store.sqlite.database_files import check_store_path
from voicemem.telemetry.otel import chosen_exporter, make_tracer
from voicemem.telemetry.tracing import Tracer
from voicemem.version import __version__

LOG = logging.getLogger("voicemem")
SWITCH_S = 0.0005
"""How long the event loop may keep the committing thread waiting; Python's 5 ms are as long as a whole ack takes."""
EMBEDDINGS_OPTIONS = (
    setting(
        "--embeddings-url",
        "Where texts are made into vectors, so that searches find by meaning too: the base URL of anything that has"
        " OpenAI's /embeddings. Texts of calls are sent there. Default: searches go by words alone.",
    ),
    setting("--embeddings-model", "Model of --embeddings-url. With another one, all vectors are made again."),
    setting("--embeddings-dimensions", "How many numbers a vector has. Default: as many as the model gives.", type=int),
    setting(
        "--embeddings-key",
        "API key of --embeddings-url. Use the variable, since other users of the machine can see flags.",
    ),
)
SERVE_OPTIONS = (
    config_option,
    setting(
        "--store",
        "sqlite:PATH, postgresql://… for several nodes, or memory: to keep nothing after the end.",
        default=Settings().store,
        show_default=True,
    ),
    setting("--rest", "Where the REST API listens, HOST:PORT.", default=str(Settings().rest), show_default=True),
    setting(
        "--ingest", "Where the websocket ingest listens, HOST:PORT.", default=str(Settings().ingest), show_default=True
    ),
    setting(
        "--webhook-url",
        "URL that gets the history of every session when it ends. It stays set for later starts; none turns it off.",
    ),
    setting("--webhook-secret", "Signs these webhooks: whsec_ and base64, as in Standard Webhooks, or any other text."),
    setting(
        "--webhook-contents",
        "What messages contain in these webhooks: full, standard (role and content only), or vcon (a vCon).",
        default=Settings().webhook_contents,
        show_default=True,
    ),
    setting(
        "--allow-address",
        "Network that llm.url and the webhooks of sessions and projects may point to although it is not public, such as"
        " 10.1.0.0/16. May be repeated (in the variable, separate with spaces).",
        multiple=True,
    ),
    setting(
        "--insecure", "Listen beyond loopback without keys: anyone who can connect may read and write.", is_flag=True
    ),
    setting(
        "--ui",
        "Whether the page on which people look at calls is served, at /ui/ of the REST port.",
        type=click.Choice(("on", "off")),
        default="on",
        show_default=True,
    ),
    setting(
        "--ui-origin",
        "Where browsers see the page if that is not this machine, such as https://memory.example behind a proxy."
        " Default: the page answers loopback names only.",
    ),
    setting(
        "--log-format",
        "Format of the log on stderr.",
        type=click.Choice(logs.FORMATS),
        default="text",
        show_default=True,
    ),
    setting(
        "--log-level",
        "Lowest level that is logged.",
        type=click.Choice(logs.LEVELS),
        default="warning",
        show_default=True,
    ),
    setting(
        "--admin-key",
        "A first key with every scope, for hosts where you cannot run commands. At least 16 characters; use 32 random"
        " ones.",
    ),
    setting(
        "--agora-contents",
        "What messages contain on Agora's paths: full, or standard (role and content only, for strict readers).",
        default=Settings().agora_contents,
        show_default=True,
    ),
    setting("--llm-url", "The gateway's LLM for sessions without an llm.url: a base URL, or …/chat/completions."),
    setting("--llm-api-key", "API key of --llm-url. Use the variable, since other users of the machine can see flags."),
    setting("--llm-model", "Model of --llm-url, for sessions that name none."),
    setting(
        "--llm-timeout",
        "Seconds that any LLM may take for the next bytes of its answer, including the first ones.",
        type=float,
        default=Settings().llm_timeout,
        show_default=True,
    ),
    setting(
        "--llm-total-timeout",
        "Seconds that any LLM may take for its whole answer, however steadily it comes.",
        type=float,
        default=Settings().llm_total_timeout,
        show_default=True,
    ),
    *EMBEDDINGS_OPTIONS,
    setting(
        "--embeddings-weight",
        "What the best meaning counts in a search, beside the best words, which count 1.",
        type=float,
        default=Settings().embeddings_weight,
        show_default=True,
    ),
    setting(
        "--embeddings-wait-ms",
        "Milliseconds that a search waits for the vector of its query, before it goes by words alone.",
        type=int,
        default=Settings().embeddings_wait_ms,
        show_default=True,
    ),
    setting(
        "--request-rate",
        "HTTP requests and handshakes per second and key; 0 for no limit.",
        type=float,
        default=Settings().request_rate,
        show_default=True,
    ),
    setting(
        "--event-rate",
        "Events per second and key; 0 for no limit.",
        type=float,
        default=Settings().event_rate,
        show_default=True,
    ),
    setting(
        "--byte-rate",
        "Bytes of events per second and key; 0 for no limit.",
        type=float,
        default=Settings().byte_rate,
        show_default=True,
    ),
    setting(
        "--memory-budget",
        "MiB that memories of calls and configurations may take together while they are kept at hand.",
        type=int,
        default=Settings().memory_budget,
        show_default=True,
    ),
    setting(
        "--open-sessions",
        "Sessions of a project that may run at a time; 0 for no limit.",
        type=int,
        default=Settings().open_sessions,
        show_default=True,
    ),
    setting(
        "--sessions-per-day",
        "Sessions that a project may begin in a day (UTC); 0 for no limit.",
        type=int,
        default=Settings().sessions_per_day,
        show_default=True,
    ),
    setting(
        "--stored-bytes",
        "Bytes that the journals of a project may take in the store; 0 for no limit.",
        type=int,
        default=Settings().stored_bytes,
        show_default=True,
    ),
    setting(
        "--connections-per-address",
        "Connections of one IP address, on each port; 0 for no limit, which is right behind a proxy.",
        type=int,
        default=Settings().connections_per_address,
        show_default=True,
    ),
    setting(
        "--memory",
        "Memory policy of sessions that choose none, as JSON, such as"
        ' {"policy": "window", "max_tokens": 4000}. Default: the newest llm.max_history messages.',
    ),
    setting(
        "--memories-budget",
        "Tokens that a project may spend in a day (UTC) on memories that an LLM makes of its calls; 0 for no limit.",
        type=int,
        default=Settings().memories_budget,
        show_default=True,
    ),
    setting(
        "--policy",
        "A memory policy of your own, NAME=MODULE:CLASS. May be repeated (in the variable, separate with spaces).",
        multiple=True,
    ),
    setting(
        "--redact",
        f"What is not kept of what is said, separated by commas: {', '.join(REDACTIONS)}, and your own as"
        " MODULE:FUNCTION. Default: everything is kept.",
    ),
    setting(
        "--memories-ttl",
        "How long memories of a kind are kept that do not say so themselves, KIND=DURATION separated by commas, such as"
        " episode=90d,summary=365d. Default: until they are removed.",
    ),
    setting(
        "--hook-secret",
        "What signs the webhooks of another stack, DIALECT=SECRET or PROJECT/DIALECT=SECRET. Use the variable, since"
        " other users of the machine can see flags. May be repeated (in the variable, separate with spaces).",
        multiple=True,
    ),
    setting(
        "--model-window",
        "How many tokens a model's context holds, MODEL=TOKENS; extends the built-in table. May be repeated (in the"
        " variable, separate with spaces).",
        multiple=True,
    ),
)

EMBEDDINGS_SETTINGS = ("embeddings_url", "embeddings_model", "embeddings_dimensions", "embeddings_key")
SECRET_SETTINGS = ("webhook_secret", "admin_key", "llm_api_key", "embeddings_key", "hook_secrets")
"""Of these `check-config` shows only that they are set."""
REPEATED = {
    "allow_addresses": "allow_address",
    "policies": "policy",
    "model_windows": "model_window",
    "hook_secrets": "hook_secret",
}
"""Settings whose flag, which may be repeated, has the name of one."""


def serve_options(command: Command) -> Command:
    """The flags of the service's settings, for the commands that take them."""
    for option in reversed(SERVE_OPTIONS):
        command = option(command)
    return command


def embeddings_options(command: Command) -> Command:
    """The flags of the embedder alone."""
    for option in reversed(EMBEDDINGS_OPTIONS):
        command = option(command)
    return command


def embeddings_settings(options: dict[str, Any]) -> dict[str, Any]:
    """What the flags of the embedder say, by the names of settings."""
    return {name: options[name] for name in EMBEDDINGS_SETTINGS}


def to_settings(options: dict[str, Any]) -> Settings:
    """The settings from a command's options, checked. Raises `CannotStart`."""
    settings = Settings(
        store=options["store"],
        rest=parse_address(options["rest"]),
        ingest=parse_address(options["ingest"]),
        webhook_url=options["webhook_url"],
        webhook_secret=options["webhook_secret"],
        webhook_contents=options["webhook_contents"],
        insecure=options["insecure"],
        ui=options["ui"] == "on",
        ui_origin=options["ui_origin"],
        admin_key=options["admin_key"],
        allow_addresses=tuple(options["allow_address"]),
        agora_contents=options["agora_contents"],
        llm_url=options["llm_url"],
        llm_api_key=options["llm_api_key"],
        llm_model=options["llm_model"],
        llm_timeout=options["llm_timeout"],
        llm_total_timeout=options["llm_total_timeout"],
        **embeddings_settings(options),
        embeddings_weight=options["embeddings_weight"],
        embeddings_wait_ms=options["embeddings_wait_ms"],
        request_rate=options["request_rate"],
        event_rate=options["event_rate"],
        byte_rate=options["byte_rate"],
        memory_budget=options["memory_budget"],
        open_sessions=options["open_sessions"],
        sessions_per_day=options["sessions_per_day"],
        stored_bytes=options["stored_bytes"],
        memories_budget=options["memories_budget"],
        connections_per_address=options["connections_per_address"],
        memory=options["memory"],
        policies=tuple(options["policy"]),
        redact=tuple(name.strip() for name in (options["redact"] or "").split(",") if name.strip()),
        memories_ttl=tuple(one.strip() for one in (options["memories_ttl"] or "").split(",") if one.strip()),
        model_windows=tuple(options["model_window"]),
        hook_secrets=tuple(options["hook_secret"]),
        log_format=options["log_format"],
        log_level=options["log_level"],
    )
    check_service_settings(settings)
    if settings.store.startswith(SQLITE_PREFIX):
        check_store_path(settings.store.removeprefix(SQLITE_PREFIX))
    allowed_networks(settings.allow_addresses)
    load_policies(settings)
    load_rules(settings)
    return settings


@click.command(short_help="Run the service.")
@serve_options
@click.pass_context
def serve(context: click.Context, /, **options: Any) -> None:
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
    unknown = unknown_variables(context, os.environ)
    handler = logs.configure_logging(options["log_format"], options["log_level"])
    if unknown:
        LOG.warning("Ignored, since there is no such setting: %s", ", ".join(unknown))
    tune_interpreter()
    run(serve_until_stopped(options, handler))


def tune_interpreter() -> None:
    """Tune Python for one busy event loop alongside one thread that commits (measured in bench/README.md)."""
    # What was imported never becomes garbage. Objects that live as long as their session have no cycles, so a full
    # collection finds nothing and takes longer than an ack may: make it a hundred times rarer.
    gc.collect()
    gc.freeze()
    gc.set_threshold(1_000, 10, 1_000)
    sys.setswitchinterval(SWITCH_S)


async def serve_until_stopped(options: dict[str, Any], handler: logging.Handler) -> None:
    stopped = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopped.set)
    logs.log_lost_errors(asyncio.get_running_loop())
    tracer = make_tracer(os.environ)
    logs.name_traces(handler, tracer)
    try:
        await serve_until(stopped, to_settings(options), tracer, handler)
    finally:
        await asyncio.to_thread(tracer.close)


async def describe_webhook(app: App) -> str:
    """The operator's webhook, which may be one that an earlier start has set."""
    endpoint = await app.services.store.find_operator_endpoint()
    if endpoint is None:
        return "none (--webhook-url)"
    kept = f" (set by an earlier start; --webhook-url {NO_WEBHOOK} turns it off)"
    return f"{without_user(endpoint.url)}{kept if app.settings.webhook_url is None else ''}"


def describe_page(app: App) -> str:
    """Where the page is; without an origin it answers to this machine's own names."""
    if not app.settings.ui:
        return "none (--ui)"
    if app.settings.ui_origin is not None:
        return f"{app.settings.ui_origin}/ui/"
    if app.rest_address.is_loopback:
        return f"http://{app.rest_address}/ui/"
    return f"http://127.0.0.1:{app.rest_address.port}/ui/ on this machine (--ui-origin for others)"


async def announce(app: App) -> None:
    """Say where everything is."""
    click.echo(f"voicemem {__version__}, store {shown_store(app.settings.store)}")
    click.echo(f"  events   ws://{app.ingest_address}/v1/ingest")
    click.echo(f"  REST     http://{app.rest_address}/v1/sessions")
    click.echo(f"  page     {describe_page(app)}")
    click.echo(f"  webhook  {await describe_webhook(app)}")
    click.echo(f"  llm      {url_origin(app.settings.llm_url) or 'none (--llm-url)'}")
    if not await app.services.access.needs_key():
        how = first_key_hint(shown_store(app.settings.store))
        click.echo(f"  keys     none: anyone who can reach these ports may do anything ({how})")


async def serve_until(stopped: asyncio.Event, settings: Settings, tracer: Tracer, handler: logging.Handler) -> None:
    async with running(settings, tracer=tracer) as app:
        logs.name_node(handler, app.services.node.shown_token)
        await announce(app)
        sys.stdout.flush()
        addresses = {"rest": str(app.rest_address), "ingest": str(app.ingest_address)}
        LOG.info("Started", extra={"version": __version__, **addresses})
        notify("READY=1")
        await wait_for_first(stopped, app.failed)
        if app.failed.is_set():
            raise CommandFailed("The service cannot continue; the log says why.")
        notify("STOPPING=1")
        LOG.info("Stopping")
        click.echo("stopping: everything received is stored and acknowledged first")


def first_key_hint(store: str) -> str:
    """How to make the first key of a store. A store in memory cannot be opened by another process."""
    return "--admin-key" if store == MEMORY_STORE else f"voicemem keys create --store {shlex.quote(store)}"


def url_origin(url: str | None) -> str:
    """A URL without its path, which may contain a secret."""
    return "" if url is None else "://".join(urlsplit(url)[:2])


def without_user(value: Any) -> Any:
    """A URL without user and password; anything else unchanged."""
    if not isinstance(value, str) or "@" not in value:
        return value
    parts = urlsplit(value)
    return parts._replace(netloc=parts.netloc.rpartition("@")[2]).geturl()


async def wait_for_first(*events: asyncio.Event) -> None:
    waiters = [asyncio.ensure_future(event.wait()) for event in events]
    await asyncio.wait(waiters, return_when=asyncio.FIRST_COMPLETED)
    for waiter in waiters:
        waiter.cancel()


@click.command("check-config", short_help="Check the settings of `serve`, and show them.")
@serve_options
@click.pass_context
def check_config(context: click.Context, /, **options: Any) -> None:
    """Check the settings that `serve` would use, and show them without secrets.

    Takes the flags, environment variables and the file of `serve`, and shows where each setting is from. The exit code
    is 0 if the settings are valid, and 1 with one sentence about the first error if not. Nothing is opened: only
    `serve` can tell whether the ports are free, whether the store can be written, and whether it holds a key.

    \b
    Example:
      voicemem check-config --store sqlite:calls.db --rest 0.0.0.0:8080
    """
    unknown = unknown_variables(context, os.environ)
    try:
        settings = to_settings(options)
        chosen_exporter(os.environ)
        keys_unknown = not settings.admin_key and settings.store != MEMORY_STORE
        check_binding(settings, keys_needed=keys_unknown or bool(settings.admin_key))
    except VoicememError as error:
        raise CommandFailed(error.detail) from None
    for field in settings.__struct_fields__:
        value = getattr(settings, field)
        shown = "(set)" if value and field in SECRET_SETTINGS else value
        several = isinstance(shown, tuple) and not isinstance(shown, Address)
        source = shown_source(context, REPEATED.get(field, field))
        shown_from = f"  (from the {source})" if source else ""
        click.echo(f"{field:24} {', '.join(shown) if several else without_user(shown)}{shown_from}")
    if unknown:
        click.echo(f"Ignored, since there is no such setting: {', '.join(unknown)}")
    click.echo("The settings are valid.")
    if keys_unknown and not settings.insecure and not (settings.rest.is_loopback and settings.ingest.is_loopback):
        how = first_key_hint(shown_store(settings.store))
        click.echo(f"Beyond loopback, a key in the store is required ({how}); only `serve` can tell.")
