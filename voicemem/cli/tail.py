"""`voicemem tail`: sessions, while they happen."""

from __future__ import annotations

import asyncio
import os
import sys
from contextlib import ExitStack, aclosing
from functools import partial
from typing import Any

import click
from rich.console import Console
from rich.text import Text

from voicemem.cli.common import end_on_interrupt, rest_options, run
from voicemem.cli.demo.one_call import render_message
from voicemem.cli.redraw import Redrawn
from voicemem.cli.shown import json_shown
from voicemem.client.tail import TailEvent, TailReader, tail_url
from voicemem.exports.plain_text import one_line

TEXTS = ("text", "heard_text", "name", "reason", "code", "result")
"""Fields of an event; the first that it has is shown."""
WAITING_AFTER_S = 1.0
"""A person who sees nothing for this long reads that there is no call yet."""


@click.command(short_help="Follow a call while it happens.")
@click.argument("session", required=False)
@rest_options
@click.option("--messages", is_flag=True, help="Show the memory as it changes, instead of the events.")
@click.option(
    "--open", "unfinished", is_flag=True, help="With --messages: also show replies and transcripts in progress."
)
@click.option("--label", help="KEY:VALUE; without SESSION, follow only sessions with this label.")
@click.option("--user-id", help="Without SESSION, follow only sessions of this user.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object per line, as the REST API sends it.")
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
    """Follow a call from its beginning until it can no longer be reopened, or until Ctrl-C.

    Without SESSION, follow every call running now or started later. It reconnects and misses nothing. The first column
    is the position in the journal; with --messages, it is the message's key. On a terminal, messages are drawn again
    where they stand when they change; in a pipe, each change is a line.

    \b
    Examples:
      voicemem tail call-1
      voicemem tail call-1 --messages --open
      voicemem tail --label line:sales --json
    """
    if session is not None and (label or user_id):
        raise click.UsageError("--label and --user-id choose among sessions; they do not go with SESSION.")
    if unfinished and not messages:
        raise click.UsageError("--open adds messages in progress; it needs --messages.")
    flags = {"view": messages and "messages", "open": unfinished and "true", "label": label, "user_id": user_id}
    query = {name: str(value) for name, value in flags.items() if value}
    reader = TailReader(tail_url(url, session, query), key, single_session=session is not None)
    console = None if as_json else Console(highlight=False, soft_wrap=True)
    redraws = messages and console is not None and console.is_terminal and not console.is_dumb_terminal
    try:
        run(print_tail(reader, console, session is None, redraws))
    except KeyboardInterrupt:
        pass
    except BrokenPipeError:  # the reader has seen enough
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())


async def print_tail(reader: TailReader, console: Console | None, several: bool, redraws: bool) -> None:
    end_on_interrupt()
    say_waiting = partial(click.echo, "waiting for calls", err=True)
    waiting = asyncio.get_running_loop().call_later(WAITING_AFTER_S, say_waiting) if several else None
    with ExitStack() as stack:
        redrawn = stack.enter_context(Redrawn()) if redraws else None
        async with aclosing(reader.events()) as events:
            async for event in events:
                if waiting is not None:
                    waiting.cancel()
                if redrawn is None or not redraw_event(event, redrawn, several):
                    print_event(event, console, several)
                sys.stdout.flush()


def redraw_event(event: TailEvent, redrawn: Redrawn, several: bool) -> bool:
    """Draw what changed of the messages on a terminal; False for an event that is shown as a line."""
    if event.event == "messages":
        session = event.data["session_id"]
        upserts = [
            (one["key"], one.get("after"), message_line(event, one, True, several)) for one in event.data["upserts"]
        ]
        redrawn.change(session, event.data["removed"], upserts)
    elif event.event == "end":
        redrawn.end(event.data["session_id"], end_line(event))
    else:
        return False
    return True


def print_event(event: TailEvent, console: Console | None, several: bool) -> None:
    """Print an event of a tail: as JSON without a console, and with its session if there are several."""
    if console is None:
        click.echo(json_shown(event.data))
        return
    session = f"{event.data['session_id']} " if several else ""
    match event.event:
        case "entry":
            console.print(Text(session, "bold") + entry_line(event.data))
        case "messages":
            for key in event.data["removed"]:
                console.print(Text(f"{session}{key:>6} ", "dim") + Text("withdrawn", "dim italic"))
            for upsert in event.data["upserts"]:
                console.print(message_line(event, upsert, console.is_terminal, several))
        case "end":
            console.print(end_line(event))


def message_line(event: TailEvent, upsert: dict[str, Any], styled: bool, several: bool) -> Text:
    """A message with its key, and with its session if there are several."""
    session = f"{event.data['session_id']} " if several else ""
    return Text(f"{session}{upsert['key']:>6} ", "dim") + render_message(upsert["message"], styled)


def end_line(event: TailEvent) -> Text:
    reason = one_line(event.data["reason"] or "")
    return Text(f"{event.data['session_id']} {event.data['state']}{f' ({reason})' if reason else ''}")


def entry_line(data: dict[str, Any]) -> Text:
    """One entry of a journal on one line: position, type, turn and text."""
    event = data["event"]
    turn = f"turn {event['turn_id']}" if event.get("turn_id") is not None else ""
    text = next((str(event[name]) for name in TEXTS if event.get(name) is not None), "")
    return Text.assemble(
        (f"{data['position']:>6} ", "dim"), (f"{event['type']:<16} ", "cyan"), (f"{turn:<8} ", "dim"), one_line(text)
    )
