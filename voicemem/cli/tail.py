"""`voicemem tail`: calls, while they happen."""

from __future__ import annotations

import json
import os
import sys
from contextlib import aclosing
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from voicemem.cli.calls import REST_URL
from voicemem.cli.common import CommandFailed, rest_url, run
from voicemem.cli.demo import render_message
from voicemem.client import ClientError
from voicemem.client.tail import TailEvent, TailReader, tail_url

TEXTS = ("text", "heard_text", "name", "reason", "code", "result")
"""What is shown of an event, the first of these that it has."""


@click.command()
@click.argument("session", required=False)
@click.option("--url", envvar="VOICEMEM_URL", default=REST_URL, show_default=True, show_envvar=True, callback=rest_url)
@click.option("--key", envvar="VOICEMEM_KEY", show_envvar=True, help="A key with the scope read.")
@click.option("--messages", is_flag=True, help="The memory as it changes, instead of the events.")
@click.option("--open", "unfinished", is_flag=True, help="With --messages: replies and partials in progress too.")
@click.option("--label", help="KEY:VALUE; without SESSION, follow the calls with this label.")
@click.option("--user-id", help="Without SESSION, follow the calls of this user.")
@click.option("--json", "as_json", is_flag=True, help="One JSON object a line, as the API gives it.")
def tail(
    session: str | None,
    url: str,
    key: str | None,
    messages: bool,
    unfinished: bool,
    label: str | None,
    user_id: str | None,
    as_json: bool,
) -> None:
    """Follow a call while it happens, until it is closed for good; without SESSION, all calls that run or begin.

    A lost connection is made again, and nothing is missed. Ctrl-C ends it.
    """
    if session is not None and (label or user_id):
        raise click.UsageError("--label and --user-id choose sessions; they do not go with SESSION.")
    if unfinished and not messages:
        raise click.UsageError("--open shows what of the memory is in progress; it needs --messages.")
    given = {"view": messages and "messages", "open": unfinished and "true", "label": label, "user_id": user_id}
    query = {name: str(value) for name, value in given.items() if value}
    reader = TailReader(tail_url(url, session, query), key, single_session=session is not None)
    try:
        run(print_tail(reader, None if as_json else Console(highlight=False, soft_wrap=True), session is None))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # whoever read has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def print_tail(reader: TailReader, console: Console | None, several: bool) -> None:
    try:
        async with aclosing(reader.events()) as telling:
            async for told in telling:
                print_event(told, console, several)
                sys.stdout.flush()
    except ClientError as error:
        raise CommandFailed(f"{error.detail} ({error.code})") from None


def print_event(told: TailEvent, console: Console | None, several: bool) -> None:
    if console is None:
        click.echo(json.dumps(told.data, ensure_ascii=False))
        return
    who = f"{told.data['session_id']} " if several else ""
    match told.event:
        case "entry":
            console.print(Text(who, "bold") + entry_line(told.data))
        case "messages":
            for key in told.data["removed"]:
                console.print(Text(f"{who}{key:>6} ", "dim") + Text("withdrawn", "dim italic"))
            for upsert in told.data["upserts"]:
                console.print(
                    Text(f"{who}{upsert['key']:>6} ", "dim") + render_message(upsert["message"], console.is_terminal)
                )
        case "end":
            reason = told.data["reason"]
            console.print(f"{told.data['session_id']} {told.data['state']}{f' ({reason})' if reason else ''}")


def entry_line(data: dict[str, Any]) -> Text:
    """One entry of a journal: position, type, turn, and what it says."""
    event = data["event"]
    turn = f"turn {event['turn_id']}" if event.get("turn_id") is not None else ""
    said = next((str(event[name]) for name in TEXTS if event.get(name) is not None), "")
    return Text.assemble(
        (f"{data['position']:>6} ", "dim"), (f"{event['type']:<16} ", "cyan"), (f"{turn:<8} ", "dim"), said
    )
