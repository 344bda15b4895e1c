"""`voicemem export`, `export-user`, `erase-user`: calls as documents, and users whole, for their owner alone."""

import sys
from collections.abc import Callable
from contextlib import aclosing
from datetime import UTC
from pathlib import Path
from typing import Any, BinaryIO

import click
import msgspec

from voicemem.cli.common import CommandFailed, Server, filled, number_of, progress, rest_options, run, written_file
from voicemem.client.transport.rest import read_lines, user_path
from voicemem.exports.call import one_line
from voicemem.exports.formats import FORMAT_NAMES, FORMATS, FormatName, file_name
from voicemem.protocol.types import JsonObject

DATES = click.DateTime(["%Y-%m-%d", "%Y-%m-%dT%H:%M:%S"])
PATHS = click.Path(path_type=Path)


@click.command(short_help="Write calls as vCon, subtitles, Markdown, CSV or JSON lines.")
@click.argument("session", required=False)
@rest_options
@click.option("--format", "form", type=click.Choice(FORMAT_NAMES), default="vcon", show_default=True, help="Of what.")
@click.option("--all", "everything", is_flag=True, help="All calls of the project.")
@click.option("--user-id", help="All calls of this user.")
@click.option("--label", help="KEY:VALUE; calls with this label.")
@click.option("--state", type=click.Choice(["running", "ended"]), help="Only running or only ended calls.")
@click.option("--started-after", type=DATES, help="Calls that began then or later (UTC).")
@click.option("--started-before", type=DATES, help="Calls that began before (UTC).")
@click.option("--output", type=PATHS, help="A file, or an existing folder for a file of each call; else it is printed.")
@click.option("--force", is_flag=True, help="Replace files that exist.")
def export(
    session: str | None,
    server: Server,
    form: FormatName,
    everything: bool,
    output: Path | None,
    force: bool,
    **conditions: Any,
) -> None:
    """Write calls as documents: one, those for which conditions hold, or all. docs/exports.md shows the formats.

    Several calls are one file after another, the newest first; subtitles need a folder, since they are a file each.
    The bar on standard error counts calls. A file gets its name once it is complete, and only its owner may read it.

    \b
    Examples:
      voicemem export call-1 --format markdown
      voicemem export --user-id ann --format webvtt --output subtitles/
      voicemem export --all --format csv --output calls.csv
    """
    filters = filled(conditions)
    for name in filters.keys() & {"started_after", "started_before"}:
        filters[name] = int(filters[name].replace(tzinfo=UTC).timestamp() * 1000)
    if (session is not None) + bool(filters) + everything != 1:
        raise click.UsageError("Give either a SESSION, or conditions such as --user-id, or --all.")
    folder = output if output is not None and output.is_dir() else None
    if session is not None:
        document = run(fetch_call(session, server, form))
        path = output if folder is None else folder / file_name(session, form)
        with written_file(path, force) as file:
            file.write(document.encode())
        if path is not None:
            click.echo(f"{path} has {session}")
        return
    if folder is None and not FORMATS[form].is_joinable:
        raise click.UsageError(f"Several calls as {form} are a file each: give --output an existing folder.")
    with written_file(output if folder is None else None, force) as file:
        write = document_writer(form, folder or file, force)
        end = run(write_lines(server, "/v1/exports", {"format": form, **filters}, ("call", "unreadable"), write))
    if output is not None:
        click.echo(f"{output} has {number_of(end['calls'], 'call')}")
    if end["unreadable"]:
        click.secho(f"{end['unreadable']} more are stored but cannot be read", fg="yellow", err=True)


async def fetch_call(session: str, server: Server, form: FormatName) -> str:
    async with server.client() as rest:
        return await rest.export(session, form)


def document_writer(name: FormatName, output: Path | BinaryIO, force: bool) -> Callable[[JsonObject], None]:
    """Return a function that writes the documents of an export: one file each in a folder, or one after another."""
    form, is_first = FORMATS[name], True

    def write(line: JsonObject) -> None:
        nonlocal is_first
        if line["type"] != "call":
            return
        document, session = line["document"], line["session_id"]
        text = msgspec.json.encode(document).decode() + "\n" if form.is_json else str(document)
        if isinstance(output, Path):
            # The name is made here: a name from a server must not lead out of the folder.
            with written_file(output / file_name(session.replace("/", "%2F"), name), force) as file:
                file.write(text.encode())
        else:
            output.write((text if is_first else form.separator + text.removeprefix(form.head)).encode())
        is_first = False

    return write


async def write_lines(
    server: Server, path: str, query: JsonObject, counted: tuple[str, ...], write: Callable[[JsonObject], Any]
) -> JsonObject:
    """Write the lines of an export as they come, with a bar that counts those of some types; return the last line."""
    line: JsonObject = {}
    with progress(1, "exporting") as bar:
        async with server.client() as rest, aclosing(read_lines(rest, path, query)) as lines:
            async for line in lines:
                if line["type"] in ("calls", "export"):
                    bar.length = max(1, line["sessions"])
                write(line)
                bar.update(line["type"] in counted)
    if not line:
        raise CommandFailed("The service answered nothing.")
    return line


@click.command("export-user", short_help="Export all data of a user.")
@click.argument("user_id")
@rest_options
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="The file to write; else it is printed."
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--events", is_flag=True, help="With the journals: every event as it was taken.")
def export_user(user_id: str, server: Server, output: Path | None, force: bool, events: bool) -> None:
    """Export all data of a user, as JSON lines: docs/privacy.md explains them.

    It needs a key with the scope admin. The file gets its name once it is complete, and only its owner may read it.

    \b
    Examples:
      voicemem export-user ann --output ann.jsonl
      voicemem export-user ann | jq -r 'select(.type == "message") | .content'
    """
    with written_file(output, force) as file:

        def write(line: JsonObject) -> None:
            file.write(msgspec.json.encode(line) + b"\n")

        query = {"events": events or None}
        end = run(write_lines(server, user_path(user_id, "/export"), query, ("session",), write))
    if end["lines"] == 1:  # the first, which says whose it is
        click.secho(f"nothing is stored of {one_line(user_id)}", fg="yellow", err=True)
    if end["unreadable"]:
        click.secho("some of it is stored but cannot be read: lines of the type unreadable", fg="yellow", err=True)
    if output is not None:
        what = f"{number_of(end['sessions'], 'session')} and {number_of(end['messages'], 'message')}"
        click.echo(f"{output} has {what} of {user_id}")


@click.command("erase-user", short_help="Erase all data of a user.")
@click.argument("user_id")
@rest_options
@click.option("--linked", is_flag=True, help="Erase the other id of the same person too.")
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase_user(user_id: str, server: Server, linked: bool, yes: bool) -> None:
    """Erase a user with all calls, memories and documents, with a key of the scope admin. It cannot be undone.

    It asks before; where no one can answer, --yes must be given.

    \b
    Example:
      voicemem erase-user ann
    """
    if not yes and not sys.stdin.isatty():
        raise CommandFailed("No one can be asked here; --yes erases without asking.")
    shown, stored = one_line(user_id), stored_of(server, user_id)
    if not any(stored) and not run(is_known(server, user_id)):
        raise CommandFailed(f"Nothing is stored of {shown}.")
    if not yes and not click.confirm(f"Erase all that is stored of {shown}?", err=True):
        click.echo(f"{shown} stays", err=True)
        return
    left = server.ask("DELETE", user_path(user_id), query={"linked": "true"} if linked else None)
    stays = stored_of(server, left["linked"]) if left else (0, 0)
    calls, memories = (before - after for before, after in zip(stored, stays, strict=True))
    click.echo(f"{shown} is erased, with {number_of(calls, 'call')} and {number_of(memories, 'memory')}")
    if left:
        click.secho(
            f"{one_line(left['linked'])} is the other id of this person and stays; --linked erases both", err=True
        )


async def is_known(server: Server, user_id: str) -> bool:
    """Return whether anything at all is stored of a user, such as a document."""
    async with server.client() as rest, aclosing(read_lines(rest, user_path(user_id, "/export"), {})) as lines:
        async for line in lines:
            if line["type"] not in ("export", "end"):
                return True
    return False


def stored_of(server: Server, user_id: str) -> tuple[int, int]:
    """Return how many calls and memories are stored of a user, and of the other id of the same person."""
    places = ((user_path(user_id, "/sessions"), "sessions"), (user_path(user_id, "/memories"), "memories"))
    calls, memories = (sum(1 for _ in server.entries(path, name)) for path, name in places)
    return calls, memories
