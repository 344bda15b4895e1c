"""`voicemem export-user`."""

from __future__ import annotations

import sys
from contextlib import aclosing
from pathlib import Path
from typing import BinaryIO

import click
import msgspec

from voicemem.cli.common import rest_options, run
from voicemem.cli.sessions.files import written_file
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient, read_export
from voicemem.protocol.types import JsonObject


@click.command("export-user", short_help="Write down all that is stored of a user.")
@click.argument("user_id")
@rest_options
@click.option(
    "--output", type=click.Path(dir_okay=False, path_type=Path), help="The file to write; else it is printed."
)
@click.option("--force", is_flag=True, help="Replace the file if it exists.")
@click.option("--events", is_flag=True, help="With the journals: every event as it was taken.")
def export_user(user_id: str, url: str, key: str | None, output: Path | None, force: bool, events: bool) -> None:
    """Write down all that is stored of a user, as JSON lines: docs/privacy.md explains them.

    It needs a key with the scope admin. The file gets its name once it is complete, and only its owner may read it.

    \b
    Examples:
      voicemem export-user ann --output ann.jsonl
      voicemem export-user ann | jq -r 'select(.type == "message") | .content'
    """
    if output is None:
        run(write_export(sys.stdout.buffer, user_id, url, key, events))
        return
    with written_file(output, force) as file:
        end = run(write_export(file, user_id, url, key, events))
    click.echo(f"{output} has {end['sessions']} sessions and {end['messages']} messages of {user_id}")


async def write_export(file: BinaryIO, user_id: str, url: str, key: str | None, events: bool) -> JsonObject:
    """Write an export with a progress bar that counts sessions; its last line."""
    rest = RestClient(url, key, Options())
    bar = click.progressbar(length=1, label="exporting", file=sys.stderr)
    line: JsonObject = {}
    try:
        with bar:
            async with aclosing(read_export(rest, user_id, events)) as lines:
                async for line in lines:
                    file.write(msgspec.json.encode(line) + b"\n")
                    if line["type"] == "export":
                        bar.length = max(1, line["sessions"])
                    bar.update(line["type"] == "session")
    finally:
        await rest.close()
        file.flush()
    if line["unreadable"]:
        click.secho("some of it is stored but cannot be read: lines of the type unreadable", fg="yellow", err=True)
    return line
