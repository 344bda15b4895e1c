"""What the commands share: how they fail, how flags and environment variables go together."""

from __future__ import annotations

import logging
import re
from collections.abc import Callable, Coroutine
from typing import Any, TypeVar

import aiohttp
import click
import uvloop

from voicemem.client.replay import ReplayFailed
from voicemem.config.service import MEMORY_STORE, SQLITE_PREFIX
from voicemem.errors import VoicememError
from voicemem.security.audit import LOG as AUDIT

Command = TypeVar("Command", bound=Callable[..., Any])


class TerminalHandler(logging.Handler):
    """Log lines on standard error, beside what a command prints."""

    def emit(self, record: logging.LogRecord) -> None:
        click.echo(self.format(record), err=True)


def audit_to_terminal() -> None:
    """Show the audit lines of this command, unless a log is set up already."""
    if not AUDIT.hasHandlers():
        handler = TerminalHandler()
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)s %(name)s: %(message)s"))
        AUDIT.addHandler(handler)


class CommandFailed(click.ClickException):
    """Ends a command with one plain sentence."""

    def show(self, file: Any = None) -> None:
        click.secho(f"voicemem: {self.message}", fg="red", err=True)


def run(work: Coroutine[Any, Any, Any]) -> Any:
    """Run a command's work; what can go wrong by fault of its surroundings becomes a sentence."""
    try:
        return uvloop.run(work)
    except BrokenPipeError:
        raise
    except VoicememError as error:
        raise CommandFailed(error.detail) from None
    except aiohttp.ClientConnectorError as error:  # whose own text speaks of "ssl:default"
        why = error.os_error.strerror or error.os_error
        raise CommandFailed(f"The connection to {error.host}:{error.port} failed: {why}.") from None
    except (OSError, ReplayFailed, aiohttp.ClientError) as error:
        raise CommandFailed(str(error)) from None


def rest_url(_: click.Context, __: click.Parameter, url: str) -> str:
    """The address of the REST API that a flag gives. Raises `BadParameter` for any other."""
    if url.startswith(("ws://", "wss://")):
        raise click.BadParameter(
            f"{url} is an address of the ingest; the REST API has one of its own, http://HOST:PORT."
        )
    if not re.match(r"https?://[^/\s]", url):
        raise click.BadParameter(f"{url} is no address of the REST API; write http://HOST:PORT.")
    return url


def setting(flag: str, text: str, **kind: Any) -> Callable[[Command], Command]:
    """A flag that can be set by its environment variable too: --webhook-url is VOICEMEM_WEBHOOK_URL."""
    variable = f"VOICEMEM_{flag.removeprefix('--').replace('-', '_').upper()}"
    return click.option(flag, envvar=variable, show_envvar=True, help=text, **kind)


def sqlite_path(store: str, in_memory: str) -> str:
    """The file of a --store, for commands that work on one; `in_memory` says why they cannot with one in memory."""
    if store == MEMORY_STORE:
        raise CommandFailed(in_memory)
    path = store.removeprefix(SQLITE_PREFIX)
    if not path or path == store:
        raise CommandFailed(f"The store {store!r} is unknown; write sqlite:PATH.")
    return path
