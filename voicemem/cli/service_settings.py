"""The settings of the service on the command line: flags, environment variables, and the file of `--config`.

A setting that is seldom set has no flag: a variable or the file sets it.
"""

import json
import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Any, get_type_hints

import click
from click.core import ParameterSource

from voicemem.cli import logs
from voicemem.cli.common import Command, CommandFailed, flag_name, variable_option
from voicemem.config import service
from voicemem.context.policy_registry import load_policies
from voicemem.observer.vendors import parse_observe_urls
from voicemem.protocol.explanations import did_you_mean, known_names
from voicemem.security.access import DEFAULT_PROJECT
from voicemem.security.address_guard import allowed_networks
from voicemem.security.caller_ids import check_callers
from voicemem.security.hook_secrets import parse_hook_secrets
from voicemem.sessions.recording.redaction import load_rules
from voicemem.store.sqlite.files import check_store_path

TABLES = ("memory", "variables")
"""Settings that are JSON, and a table in the file."""
LISTS = ("redact", "memories_ttl")
"""Settings that are words separated by commas."""
REPEATED = {
    "allow_addresses": "allow_address",
    "policies": "policy",
    "model_windows": "model_window",
    "hook_secrets": "hook_secret",
    "observe_urls": "observe_url",
    "identify": "identify",
    "vapi_assistants": "vapi_assistant",
}
"""Settings with a repeatable option, which has a singular name."""
ON_OFF = ["on", "off"]
"""Values for which TOML's true and false are accepted too."""
SOURCES: dict[ParameterSource | None, str] = {
    ParameterSource.COMMANDLINE: "flag",
    ParameterSource.ENVIRONMENT: "environment",
    ParameterSource.DEFAULT_MAP: "file",
}


class FormerFlag(click.Option):
    """A flag that is refused: the setting has no flag, or one of another name, as `help` says."""

    def consume_value(self, ctx: click.Context, opts: Mapping[str, Any]) -> tuple[Any, ParameterSource]:
        if self.name in opts:
            raise CommandFailed(f"{self.opts[0]} is now {self.help}.")
        return super().consume_value(ctx, opts)


def renamed(old: str, new: str) -> Any:
    name, text = f"renamed{old.replace('-', '_')}", f"called {new}"
    return click.option(old, name, cls=FormerFlag, help=text, hidden=True, expose_value=False)


def read_settings_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Read a file for settings that neither flags nor variables set. Raises `CommandFailed`, which quotes no value.

    The file is that of `serve`: a command that has only some of its settings ignores the others.
    """
    if path is None:
        return None
    try:
        table = tomllib.loads(path.read_text("utf-8-sig"))
    except (OSError, ValueError, RecursionError) as error:  # without quoting the file
        why = error.strerror or error if isinstance(error, OSError) else error
        why = {UnicodeDecodeError: "it is not in UTF-8", RecursionError: "it nests too deeply"}.get(type(error), why)
        raise CommandFailed(f"The settings file {path} cannot be read: {why}.") from None
    root = context.find_root().command
    serve = root.commands["serve"] if isinstance(root, click.Group) else context.command
    options = {(option.name or "").replace("_", "-"): option for option in serve.params if option.expose_value}
    meant = {flag_name(flag): key for key, option in options.items() for flag in option.opts} | {
        key: key for key in options
    }
    values = {}
    for key, value in table.items():
        option = options.get(key.replace("_", "-"))
        if option is None:
            right = meant.get(key.replace("_", "-"))
            if right is not None:
                raise CommandFailed(f"{path}: `{key}` is `{right}` in the file.")
            question = did_you_mean(key, meant, meant=meant)
            raise CommandFailed(f"{path}: there is no setting `{key}`{question or known_names(options)}")
        if option.name in values:
            raise CommandFailed(f"{path}: `{key}` is there twice.")
        values[option.name] = flag_value(path, key, option, value)
    context.default_map = {**(context.default_map or {}), **values}
    return path


config_option = variable_option(
    "--config",
    "VOICEMEM_CONFIG",
    "A TOML file of settings; flags and variables win over it.",
    type=click.Path(path_type=Path),
    is_eager=True,
    expose_value=False,
    callback=read_settings_file,
)


def flag_value(path: Path, key: str, option: click.Parameter, value: Any) -> Any:
    """Return a value of TOML in the form of the flag. Raises `CommandFailed`, which does not quote it."""
    kind, fits = "a text", isinstance(value, str)
    if getattr(option, "is_flag", False):
        kind, fits = "true or false", isinstance(value, bool)
    elif option.type is click.INT:
        kind, fits = "a whole number", isinstance(value, int) and not isinstance(value, bool)
    elif option.type is click.FLOAT:
        kind, fits = "a number", isinstance(value, int | float) and not isinstance(value, bool)
    elif isinstance(option.type, click.Choice):
        choices = list(option.type.choices)
        value = choices[not value] if choices == ON_OFF and isinstance(value, bool) else value
        kind, fits = f"one of {', '.join(choices)}", value in choices
    elif option.name in TABLES and isinstance(value, dict):
        return json.dumps(value, default=str)
    elif option.multiple or option.name in LISTS:
        words = value
        if isinstance(value, dict):
            joined = {name: ",".join(map(str, one)) if isinstance(one, list) else one for name, one in value.items()}
            words = [f"{name}={one}" for name, one in joined.items()]
        if isinstance(words, list) and all(isinstance(one, str) for one in words):
            return list(words) if option.multiple else ",".join(words)
        kind, fits = "a list of texts, or a table", option.name in LISTS and isinstance(value, str)
    if not fits:
        raise CommandFailed(f"{path}: `{key}` must be {kind}.")
    return value


HELP = {
    "store": "sqlite:PATH, postgresql://… for several nodes, or memory: to keep nothing after the end.",
    "rest": "Where the REST API listens, HOST:PORT.",
    "ingest": "Where the websocket ingest listens, HOST:PORT.",
    "webhook_url": "URL that gets the history of every session when it ends. It stays set for later starts; none turns"
    " it off.",
    "webhook_secret": "Signs these webhooks: whsec_ and base64, as in Standard Webhooks, or any other text.",
    "allow_addresses": "Network that llm.url and the webhooks of sessions and projects may point to although it is not"
    " public, such as 10.1.0.0/16. May be repeated (in the variable, separate with spaces).",
    "insecure": "Listen beyond loopback without keys: anyone who can connect may read and write.",
    "ui": "Serve the page for looking at calls, at /ui/ of the REST port.",
    "ui_origin": "Where browsers see the page if that is not this machine, such as https://memory.example behind a"
    " proxy. Default: the page answers loopback names only.",
    "log_format": "Format of the log on stderr.",
    "log_level": "Lowest level that is logged.",
    "admin_key": "A first key with every scope, for hosts where you cannot run commands. At least 16 characters; use 32"
    " random ones.",
    "llm_url": "The LLM of sessions without an llm.url: a base URL, or …/chat/completions.",
    "llm_api_key": "API key of --llm-url. Use the variable, since other users of the machine can see flags.",
    "llm_model": "Model of --llm-url, for sessions that name none.",
    "embeddings_url": "Where texts are made into vectors, so that searches find by meaning too: the base URL of"
    " anything that has OpenAI's /embeddings. Texts of calls are sent there. Default: searches go by words alone.",
    "embeddings_model": "Model of --embeddings-url. With another one, all vectors are made again.",
    "memory": 'Context policy of sessions that choose none, as JSON, such as {"policy": "window", "max_tokens": 4000}.'
    " Default: the newest llm.max_history messages.",
    "policies": "A context policy of your own, NAME=MODULE:CLASS. May be repeated (in the variable, separate with"
    " spaces).",
    "redact": f"What is not kept of what is said, separated by commas: {', '.join(service.REDACTIONS)}, and your own as"
    " MODULE:FUNCTION. Default: everything is kept.",
    "memories_ttl": "How long memories of a kind are kept that do not say so themselves, KIND=DURATION separated by"
    " commas, such as episode=90d,summary=365d. Default: until they are removed.",
    "memories_budget": "Tokens that a project may spend in a day (UTC) on memories that an LLM makes of its calls; 0"
    " for no limit.",
    "memory_budget": "MiB that memories of calls and configurations may take together while they are kept at hand.",
}
"""The settings with a flag, in the order of the help; any other is set in the file, or by its variable."""
RENAMED = {
    "memory": "--context",
    "memory_budget": "--ram-limit-mib",
    "memories_budget": "--extraction-tokens-per-day",
    "memories_ttl": "--memory-retention",
}
"""The names of flags that differ from those of their settings."""
CHOICES = {"ui": ON_OFF, "ingest_looks": ON_OFF, "log_format": logs.FORMATS, "log_level": logs.LEVELS}
HINTS = get_type_hints(service.Settings)


def setting(field: str, text: str | None = None) -> Any:
    """Return the option of a setting: a flag, if it has help, and a variable, VOICEMEM_WEBHOOK_URL."""
    name, hint, default = REPEATED.get(field, field), HINTS[field], getattr(service.Settings(), field)
    dashed, kind = name.replace("_", "-"), dict[str, Any]()
    if field in CHOICES:
        kind["type"] = click.Choice(CHOICES[field])
        default = ON_OFF[not default] if isinstance(default, bool) else default
    elif hint is bool:
        kind["is_flag"] = True
    elif hint == tuple[str, ...]:
        kind["multiple"] = field not in LISTS
    elif hint in (int, float, int | None):
        kind["type"] = float if hint is float else int
    if isinstance(default, str | int | float | service.Address) and not isinstance(default, bool):
        kind["default"] = str(default)
    text = text or HELP.get(field)
    if text is None:
        text = f"set in the settings file as {dashed}, or as VOICEMEM_{name.upper()}"
        kind |= {"cls": FormerFlag, "hidden": True}
    return variable_option(RENAMED.get(field, f"--{dashed}"), f"VOICEMEM_{name.upper()}", text, name, **kind)


EMBEDDINGS_OPTIONS = tuple(map(setting, (f"embeddings_{name}" for name in ("url", "model", "dimensions", "key"))))
LOG_OPTIONS = setting("log_format"), setting("log_level")
SERVE_OPTIONS = (
    config_option,
    *map(setting, (*HELP, *(field for field in service.Settings.__struct_fields__ if field not in HELP))),
    *(renamed(f"--{field.replace('_', '-')}", flag) for field, flag in RENAMED.items()),
)


def store_option(command: Command) -> Command:
    return config_option(setting("store", "The server's store, sqlite:PATH or postgresql://…")(command))  # type: ignore[no-any-return]


def to_settings(options: dict[str, Any]) -> service.Settings:
    """Return the settings of a command's options, checked. Raises `CannotStart`."""
    values = {field: options[REPEATED.get(field, field)] for field in service.Settings.__struct_fields__}
    values |= {name: tuple(values[name]) for name in REPEATED}
    values |= {name: tuple(one.strip() for one in (values[name] or "").split(",") if one.strip()) for name in LISTS}
    values |= {name: service.parse_address(values[name]) for name in ("rest", "ingest")}
    settings = service.Settings(**values | {name: values[name] == "on" for name in ("ui", "ingest_looks")})
    service.check_service_settings(settings)
    if settings.store.startswith(service.SQLITE_PREFIX):
        check_store_path(settings.store.removeprefix(service.SQLITE_PREFIX))
    allowed_networks(settings.allow_addresses)
    parse_hook_secrets(settings.hook_secrets, DEFAULT_PROJECT)
    parse_observe_urls(settings.observe_urls)
    check_callers(settings)
    load_policies(settings)
    load_rules(settings)
    return settings
