"""The flags of the service's settings, and the settings that they make."""

from __future__ import annotations

from typing import Any

import click

from voicemem.cli import logs
from voicemem.cli.common import Command, setting
from voicemem.cli.settings.file import config_option
from voicemem.config.service import (
    REDACTIONS,
    SQLITE_PREFIX,
    Settings,
    check_service_settings,
    parse_address,
)
from voicemem.context.policies import load_policies
from voicemem.observer.vendors import parse_observe_urls
from voicemem.security.address_guard import allowed_networks
from voicemem.sessions.recording.redaction import load_rules
from voicemem.store.sqlite.database.files import check_store_path

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
LOG_OPTIONS = (
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
    *LOG_OPTIONS,
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
        "Context policy of sessions that choose none, as JSON, such as"
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
        "A context policy of your own, NAME=MODULE:CLASS. May be repeated (in the variable, separate with spaces).",
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
        "--observe-key",
        "API key with which the service observes calls at their vendor (POST /v1/sessions/{id}/observe). Use the"
        " variable, since other users of the machine can see flags.",
    ),
    setting(
        "--observe-url",
        "Where the calls of a dialect are observed, DIALECT=URL, such as openai-realtime=wss://HOST/v1/realtime."
        " Default: the vendor's own address. May be repeated (in the variable, separate with spaces).",
        multiple=True,
    ),
    setting(
        "--observe-limit",
        "Calls that may be observed at a time, on all nodes together.",
        type=int,
        default=Settings().observe_limit,
        show_default=True,
    ),
    setting(
        "--model-window",
        "How many tokens a model's context holds, MODEL=TOKENS; extends the built-in table. May be repeated (in the"
        " variable, separate with spaces).",
        multiple=True,
    ),
)

EMBEDDINGS_SETTINGS = ("embeddings_url", "embeddings_model", "embeddings_dimensions", "embeddings_key")
REPEATED = {
    "allow_addresses": "allow_address",
    "policies": "policy",
    "model_windows": "model_window",
    "hook_secrets": "hook_secret",
    "observe_urls": "observe_url",
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
        observe_key=options["observe_key"],
        observe_urls=tuple(options["observe_url"]),
        observe_limit=options["observe_limit"],
        log_format=options["log_format"],
        log_level=options["log_level"],
    )
    check_service_settings(settings)
    if settings.store.startswith(SQLITE_PREFIX):
        check_store_path(settings.store.removeprefix(SQLITE_PREFIX))
    allowed_networks(settings.allow_addresses)
    parse_observe_urls(settings.observe_urls)
    load_policies(settings)
    load_rules(settings)
    return settings
