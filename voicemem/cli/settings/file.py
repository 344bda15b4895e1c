"""`--config FILE`: settings of `serve` in a TOML file, below flags and environment variables."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path
from typing import Any

import click

from voicemem.cli.common import CommandFailed, setting
from voicemem.protocol.checks import did_you_mean, known_names

LISTS = ("redact", "memories_ttl")
"""Settings that a flag takes as words separated by commas."""
ON_OFF = ["on", "off"]
"""What TOML would rather have as true and false, which are taken too."""
SOURCES = {
    click.core.ParameterSource.COMMANDLINE: "flag",
    click.core.ParameterSource.ENVIRONMENT: "environment",
    click.core.ParameterSource.DEFAULT_MAP: "file",
}


def read_settings_file(context: click.Context, _: click.Parameter, path: Path | None) -> Path | None:
    """Take the settings of a file for what neither flags nor variables set. Raises `CommandFailed`, quoting none."""
    if path is None:
        return None
    try:
        given = tomllib.loads(path.read_text("utf-8"))
    except (OSError, ValueError) as error:
        raise CommandFailed(f"The settings file {path} cannot be read: {why_not(error)}.") from None
    options = {plain(option.name or ""): option for option in context.command.params if option.name != "config"}
    found = {}
    for key, value in given.items():
        option = options.get(plain(key))
        if option is None:
            question = did_you_mean(key, sorted(options))
            raise CommandFailed(f"{path}: there is no setting `{key}`{question}{known_names(options)}")
        if option.name in found:
            raise CommandFailed(f"{path}: `{key}` is there twice.")
        found[option.name] = flag_value(path, key, option, value)
    context.default_map = {**(context.default_map or {}), **found}
    return path


config_option = setting(
    "--config",
    "A TOML file of settings, by the names of the flags. Flags and variables win over it.",
    type=click.Path(path_type=Path),
    is_eager=True,
    callback=read_settings_file,
)


def why_not(error: OSError | ValueError) -> str:
    """Why a file could not be read, or is no TOML, without what stands in it."""
    if isinstance(error, UnicodeDecodeError):
        return "it is not in UTF-8"
    return getattr(error, "strerror", None) or str(error)


def plain(key: str) -> str:
    """A key's name as flags have it, without the dashes in front."""
    return key.replace("_", "-")


def flag_value(path: Path, key: str, option: click.Parameter, value: Any) -> Any:
    """A value of TOML in the form that the flag takes. Raises `CommandFailed`, which does not quote it."""
    wanted, fits = "a text", isinstance(value, str)
    if getattr(option, "is_flag", False):
        wanted, fits = "true or false", isinstance(value, bool)
    elif option.type is click.INT:
        wanted, fits = "a whole number", isinstance(value, int) and not isinstance(value, bool)
    elif option.type is click.FLOAT:
        wanted, fits = "a number", isinstance(value, int | float) and not isinstance(value, bool)
    elif isinstance(option.type, click.Choice):
        choices = list(option.type.choices)
        value = choices[not value] if choices == ON_OFF and isinstance(value, bool) else value
        wanted, fits = f"one of {', '.join(choices)}", value in choices
    elif option.name == "memory" and isinstance(value, dict):
        return json.dumps(value, default=str)
    elif option.multiple or option.name in LISTS:
        words = listed(value)
        if words is not None:
            return list(words) if option.multiple else ",".join(words)
        wanted, fits = "a list of texts, or a table", option.name in LISTS and isinstance(value, str)
    if not fits:
        raise CommandFailed(f"{path}: `{key}` must be {wanted}.")
    return value


def listed(value: Any) -> list[str] | None:
    """A list of texts as it is, and a table as NAME=VALUE; None for anything else."""
    if isinstance(value, dict):
        return [f"{name}={one}" for name, one in value.items()]
    return value if isinstance(value, list) and all(isinstance(one, str) for one in value) else None


def shown_source(context: click.Context, name: str) -> str:
    """Where a setting is from; empty for what nobody has set."""
    source = context.get_parameter_source(name)
    return SOURCES.get(source, "") if source is not None else ""
