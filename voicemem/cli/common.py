"""Shared by the commands: errors, Ctrl-C, flags and their environment variables, the REST client, files, bars."""

import asyncio
import json
import logging
import os
import re
import signal
import sys
import threading
from collections.abc import AsyncIterator, Callable, Coroutine, Iterable, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from functools import wraps
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple, TypeVar

import aiohttp
import click
import uvloop

from voicemem.cli.logs import TextFormatter
from voicemem.client import ClientError, Options, RequestRefused, Unreachable
from voicemem.client.errors import is_transient
from voicemem.client.replay import ReplayFailed
from voicemem.client.transport.failures import advice_for
from voicemem.client.transport.rest import RestClient
from voicemem.client.transport.rest import check_rest_url as root_of
from voicemem.config.service import MEMORY_STORE, POSTGRESQL_PREFIXES, SQLITE_PREFIX, Settings
from voicemem.errors import VoicememError
from voicemem.exports.call import HIDDEN, strip_invisible
from voicemem.protocol.explanations import did_you_mean
from voicemem.security.audit import LOG as AUDIT
from voicemem.store.copying import NO_ROOM, CopyFailed, full_disk

PREFIX = "VOICEMEM_"
VARIABLE = re.compile(r"VOICEMEM_[A-Z0-9_]{1,100}\Z")
OF_ORCHESTRATORS = re.compile(r"VOICEMEM_(\w+_)?(SERVICE_HOST|SERVICE_PORT(_\w+)?|PORT(_\d+_\w+)?)\Z")
"""Variables that Kubernetes sets for services whose names begin with voicemem."""
ALIKE = 0.77
"""The similarity, without the prefix, from which on an unknown variable counts as a misspelt one."""
Command = TypeVar("Command", bound=Callable[..., Any])


def audit_to_terminal() -> None:
    """Show the audit lines of this command, unless logging is configured already."""
    if not AUDIT.hasHandlers():
        handler = logging.StreamHandler()  # to standard error, separate from what a command prints
        handler.setFormatter(TextFormatter())
        AUDIT.addHandler(handler)


class CommandFailed(click.ClickException):
    """Ends a command with one plain sentence."""

    def show(self, file: Any = None) -> None:
        click.secho(f"voicemem: {self.message}", fg="red", err=True)


@contextmanager
def plain_errors() -> Iterator[None]:
    """Turn errors that are not bugs into a `CommandFailed`."""
    try:
        yield
    except BrokenPipeError:
        raise
    except ClientError as error:
        helps = advice_for(error.reason) if isinstance(error, Unreachable) else ""
        if error.code == "unauthorized":
            helps = "Commands take it as --key, or in VOICEMEM_KEY."
        detail = error.detail if helps in error.detail else f"{error.detail} {helps}"
        raise CommandFailed(f"{detail} ({error.code})") from None
    except VoicememError as error:
        raise CommandFailed(error.detail) from None
    except (OSError, ReplayFailed, aiohttp.ClientError, CopyFailed) as error:
        # Python puts the number of an error in front of the system's words.
        raise CommandFailed(re.sub(r"\A\[Errno \d+\] ", "", str(error))) from None


class Commands(click.Group):
    """All commands; their errors are shown in one plain sentence."""

    def invoke(self, ctx: click.Context) -> Any:
        with plain_errors():
            return super().invoke(ctx)


run = uvloop.run


def run_until_interrupted(work: Coroutine[Any, Any, None]) -> None:
    """Run a command that ends by Ctrl-C, or when its reader closes the pipe (`| head`): neither is an error.

    SIGINT raises `KeyboardInterrupt` at once. The runner's own handler, which is set before, only cancels the task,
    which does not help while the task waits in a write to a full pipe (`voicemem tail | less`). And a shell without job
    control starts `command &` with SIGINT ignored, in which case neither Python nor the runner handles it.
    """

    async def interruptible() -> None:
        signal.signal(signal.SIGINT, signal.default_int_handler)
        await work

    try:
        run(interruptible())
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


def check_rest_url(_: click.Context, __: click.Parameter, url: str) -> str:
    """Return a flag's URL of the REST API. Raises `BadParameter` for another kind of URL."""
    if url.startswith(("ws://", "wss://")):
        raise click.BadParameter(f"{url} is the address of an ingest; the REST API has its own, http://HOST:PORT.")
    try:
        return root_of(url)
    except ValueError:
        raise click.BadParameter(f"{url} is not an address of the REST API; write http://HOST:PORT.") from None


def variable_option(flag: str, variable: str, text: str, *names: str, **kind: Any) -> Callable[[Command], Command]:
    """Return an option that an environment variable may set as well. The help shows both, and the default."""
    shows_default = "default" in kind
    return click.option(flag, *names, envvar=variable, show_envvar=True, show_default=shows_default, help=text, **kind)


REST_URL, URL_HELP = f"http://{Settings().rest}", "Address of the REST API."
URL_OPTION = variable_option("--url", "VOICEMEM_URL", URL_HELP, default=REST_URL, callback=check_rest_url)
KEY_HELP = "API key, needed once keys exist; scope read unless stated above."
KEY_OPTION = variable_option("--key", "VOICEMEM_KEY", KEY_HELP)
READ_ONCE = Options(read_attempts=1)
"""A person at a terminal can repeat a command; a wrong address should be reported at once."""


class Server(NamedTuple):
    """A running service, and the key for it."""

    url: str
    key: str | None

    @asynccontextmanager
    async def client(self, options: Options = READ_ONCE) -> AsyncIterator[RestClient]:
        rest = RestClient(self.url, self.key, options)
        try:
            yield rest
        finally:
            await rest.close()

    def ask(self, method: str, path: str, body: Any = None, query: Mapping[str, Any] | None = None) -> Any:
        async def send() -> Any:
            async with self.client() as rest:
                return await rest.request(method, path, query, body)

        return run(send())

    def entries(self, path: str, name: str, **query: Any) -> Iterator[Any]:
        """Yield the entries of a list, page by page."""
        cursor: str | None = ""
        while cursor is not None:
            page = self.ask("GET", path, query={**query, "cursor": cursor or None})
            yield from page[name]
            cursor = page["next_cursor"]


ATTEMPTS, LONG_S = 6, 120.0
"""How often one request among many is tried, and how long each attempt may take."""


async def ask_again(rest: RestClient, method: str, path: str, query: Mapping[str, Any] | None, body: Any = None) -> Any:
    """Send one of many requests; retry if the server is busy or away. Raises `RequestRefused`, `Unreachable`."""
    headers = None if body is None else {"Content-Type": "application/json"}
    for attempt in range(1, ATTEMPTS + 1):
        try:
            return await rest.request(method, path, query, body, LONG_S, headers)
        except (Unreachable, RequestRefused) as error:
            may_pass = isinstance(error, Unreachable) or is_transient(error.code, error.status)
            if not may_pass or attempt == ATTEMPTS:
                raise
        await asyncio.sleep(attempt * 0.5)
    raise AssertionError


def rest_options(command: Command) -> Callable[..., Any]:
    """Add the flags of commands that use the REST API; the command gets them as `server`."""

    @wraps(command)
    def with_server(*values: Any, url: str, key: str | None, **options: Any) -> Any:
        return command(*values, server=Server(url, key), **options)

    return URL_OPTION(KEY_OPTION(with_server))


def options(*several: Callable[[Command], Command]) -> Callable[[Command], Command]:

    def add(command: Command) -> Command:
        for option in reversed(several):
            command = option(command)
        return command

    return add


def progress(length: int, label: str, **options: Any) -> Any:
    return click.progressbar(length=max(length, 1), label=label, file=sys.stderr, **options)


@contextmanager
def counting(label: str) -> Iterator[Callable[[int], None]]:
    """A progress bar for an unknown number of steps; yields a function that adds finished ones."""
    with progress(1, label, show_pos=True) as bar:

        def note(steps: int) -> None:
            bar.length = bar.pos + steps + 1
            bar.update(steps)

        yield note
        bar.update((bar.length or 1) - bar.pos)


def number_of(count: int, what: str) -> str:
    """Return a number of things as text, such as `1 file` and `1,200 memories`."""
    if count == 1:
        return f"1 {what}"
    return f"{count:,} {what[:-1]}ies" if what.endswith("ry") else f"{count:,} {what}s"


def filled(values: Mapping[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def read_secret(prompt: str) -> str:
    """Return a secret that is typed unseen, or read from a line of standard input."""
    return (click.prompt(prompt, hide_input=True) if sys.stdin.isatty() else sys.stdin.readline()).strip()


def unknown_variables(context: click.Context, environment: Iterable[str]) -> list[str]:
    """Return the variables that no command knows. Raises `CommandFailed` for one that resembles a setting or flag."""
    root = context.find_root().command
    commands = root.commands.values() if isinstance(root, click.Group) else [root]
    known = {option.envvar: option for command in commands for option in command.params if option.envvar}
    meant = {flag_name(flag): str(name) for name, option in known.items() for flag in option.opts}
    meant |= {str(name).removeprefix(PREFIX): str(name) for name in known}
    unknown = sorted(name for name in environment if VARIABLE.match(name) and name not in known)
    for name in unknown:
        question = did_you_mean(name.removeprefix(PREFIX), meant, ALIKE, meant)
        if question and not OF_ORCHESTRATORS.match(name):
            raise CommandFailed(f"There is no setting `{name}`{question}.")
    return unknown


def flag_name(flag: str) -> str:
    return flag.lstrip("-")


def sqlite_path(store: str, in_memory: str) -> str:
    """Return the file of a --store. `in_memory` is the error for `memory:`, which has no file."""
    if store == MEMORY_STORE:
        raise CommandFailed(in_memory)
    if store.startswith(POSTGRESQL_PREFIXES):
        raise CommandFailed("This copies files of SQLite; back up PostgreSQL with its own tools (docs/postgresql.md).")
    path = store.removeprefix(SQLITE_PREFIX)
    if not path or path == store:
        raise CommandFailed(f"The store {store!r} is unknown; write sqlite:PATH.")
    return path


def lines_shown(text: str) -> str:
    """Return a text without hidden characters, and with no other white space than spaces and line feeds."""
    return "\n".join(strip_invisible(text).splitlines()).expandtabs(4)


def line_shown(text: str) -> str:
    """Return a text without hidden characters on one line; its spaces stay."""
    return lines_shown(text).replace("\n", " ")


def json_shown(value: Any, indent: int | None = None) -> str:
    """Return a value as JSON with hidden characters escaped; all beyond ASCII if the output is not UTF-8."""
    has_all = (sys.stdout.encoding or "").lower().startswith("utf")
    text = json.dumps(value, ensure_ascii=not has_all, indent=indent)
    return HIDDEN.sub(lambda match: f"\\u{ord(match[0]):04x}", text)


def end_at_sigterm() -> None:
    """Let SIGTERM end a command as Ctrl-C does, so that no unfinished file is left behind."""
    if threading.current_thread() is threading.main_thread():  # a program may run commands in others
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))


@contextmanager
def written_file(output: Path | None, force: bool) -> Iterator[BinaryIO]:
    """A new file for its owner alone, or standard output. Raises `CommandFailed` if it exists, unless with `force`."""
    if output is None:
        yield sys.stdout.buffer
        sys.stdout.buffer.flush()
        return
    if output.exists() and not force:
        raise CommandFailed(f"{output} exists; --force replaces it.")
    end_at_sigterm()
    part = output.with_name(f"{output.name}.part")
    try:
        opened = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600)
    except OSError as error:
        if error.errno in NO_ROOM:
            raise full_disk(str(output), 0, at_least=True) from None
        raise CommandFailed(f"{output} cannot be written: {error.strerror}.") from None
    try:
        with open(opened, "wb") as file:
            yield file
        part.replace(output)
    except OSError as error:
        if error.errno not in NO_ROOM:
            raise
        needed = part.stat().st_size
        part.unlink()
        raise full_disk(str(output), needed, at_least=True) from None
    finally:
        part.unlink(missing_ok=True)
