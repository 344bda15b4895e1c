"""`voicemem tail`: a call while it happens, as lines, or as messages that are redrawn in place."""

import asyncio
from contextlib import aclosing, nullcontext
from functools import partial
from types import TracebackType
from typing import Any, Self

import click
from rich.console import Console, Group
from rich.live import Live
from rich.segment import SegmentLines
from rich.text import Text

from voicemem.cli.common import Server, json_shown, rest_options, run_until_interrupted
from voicemem.cli.demo.one_call import render_message
from voicemem.client.tail import TailEvent, TailReader, tail_url
from voicemem.exports.call import one_line

Key = tuple[str, int]
"""A session, and the key of a message in it."""
Upsert = tuple[int, int | None, Text]
"""The key of a message, the key of the one before it, and its text as shown."""
MANY = 100
"""From this many messages in one event on, those that do not fit are dropped."""


class LiveScreen:
    """The newest messages of calls, as many as fit; older ones scroll up and stay as they were last shown."""

    def __init__(self) -> None:
        self.console = console = Console(highlight=False)
        self.live = Live(console=console, auto_refresh=False, transient=True)
        self.texts: dict[Key, Text] = {}
        self.order: list[Key] = []
        self.above: set[Key] = set()

    def __enter__(self) -> Self:
        self.live.start()
        return self

    def __exit__(self, *_: type[BaseException] | BaseException | TracebackType | None) -> None:
        """Leave everything in full in the terminal's scrollback."""
        self.live.stop()
        for key in self.order:
            self.console.print(self.texts[key], soft_wrap=True)

    @property
    def rows(self) -> int:
        return max(1, self.console.height - 1)

    def change(self, session: str, removed: list[int], upserts: list[Upsert]) -> None:
        """Remove messages, and add or change others, each after another one of its call, or first."""
        for number in removed:
            self.texts.pop((session, number), None)
        self.order = [key for key in self.order if key in self.texts]
        for count, (number, after, text) in enumerate(upserts, 1):
            key = (session, number)
            if key in self.above:
                self.console.print(text, soft_wrap=True)
                continue
            self.place(key, None if after is None else (session, after))
            self.texts[key] = text
            if count % MANY == 0:
                self.scroll_up()
        self.draw()

    def place(self, key: Key, after: Key | None) -> None:
        """Put a message in its place: a new one at the end, unless it follows one that is shown."""
        if key in self.texts:
            self.order.remove(key)
        first = next((index for index, other in enumerate(self.order) if other[0] == key[0]), len(self.order))
        self.order.insert(self.order.index(after) + 1 if after in self.texts else first, key)

    def draw(self) -> None:
        self.scroll_up()
        texts = Group(*(self.texts[key] for key in self.order))
        lines = self.console.render_lines(texts, pad=False)  # of a text longer than the screen its end is what changes
        self.live.update(SegmentLines(lines[-self.rows :], new_lines=True), refresh=True)

    def scroll_up(self) -> None:
        """Let the oldest messages scroll up until the others fit."""
        heights = [len(self.texts[key].wrap(self.console, self.console.width)) for key in self.order]
        height, gone = sum(heights), 0
        while gone < len(heights) - 1 and height > self.rows:
            height -= heights[gone]
            gone += 1
        if gone:
            keys, self.order = self.order[:gone], self.order[gone:]
            self.above.update(keys)
            self.console.print(Group(*map(self.texts.pop, keys)), soft_wrap=True)

    def end(self, session: str, line: Text) -> None:
        for key in [key for key in self.order if key[0] == session]:
            self.console.print(self.texts.pop(key), soft_wrap=True)
            self.order.remove(key)
        self.above = {key for key in self.above if key[0] != session}
        self.console.print(line)
        self.draw()


TEXTS = ("text", "heard_text", "name", "reason", "code", "result")
"""Fields of an event; the first that it has is shown."""
WAITING_AFTER_S = 1.0
"""Seconds without an event before the command says that there is no call yet."""


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
    session: str | None, server: Server, messages: bool, unfinished: bool, as_json: bool, **conditions: str | None
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
    if session is not None and any(conditions.values()):
        raise click.UsageError("--label and --user-id choose among sessions; they do not go with SESSION.")
    if unfinished and not messages:
        raise click.UsageError("--open adds messages in progress; it needs --messages.")
    flags = {"view": messages and "messages", "open": unfinished and "true", **conditions}
    query = {name: str(value) for name, value in flags.items() if value}
    reader = TailReader(tail_url(server.url, session, query), server.key, single_session=session is not None)
    console = None if as_json else Console(highlight=False, soft_wrap=True)
    is_live = messages and console is not None and console.is_terminal and not console.is_dumb_terminal
    run_until_interrupted(print_tail(reader, console, session is None, is_live))


async def print_tail(reader: TailReader, console: Console | None, several: bool, is_live: bool) -> None:
    say_waiting = partial(click.echo, "waiting for calls", err=True)
    waiting = asyncio.get_running_loop().call_later(WAITING_AFTER_S, say_waiting) if several else None
    with LiveScreen() if is_live else nullcontext() as screen:
        async with aclosing(reader.events()) as events:
            async for event in events:
                if waiting is not None:
                    waiting.cancel()
                if screen is None or not show_on_screen(event, screen, several):
                    print_event(event, console, several)


def show_on_screen(event: TailEvent, screen: LiveScreen, several: bool) -> bool:
    """Draw changed messages on a terminal; return False for an event that is shown as a line."""
    if event.event == "messages":
        session = event.data["session_id"]
        changed = event.data["upserts"]
        lines = [(one["key"], one.get("after"), message_line(event, one, True, several)) for one in changed]
        screen.change(session, event.data["removed"], lines)
    elif event.event == "end":
        screen.end(event.data["session_id"], end_line(event))
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
    session = f"{event.data['session_id']} " if several else ""
    return Text(f"{session}{upsert['key']:>6} ", "dim") + render_message(upsert["message"], styled)


def end_line(event: TailEvent) -> Text:
    reason = one_line(event.data["reason"] or "")
    return Text(f"{event.data['session_id']} {event.data['state']}{f' ({reason})' if reason else ''}")


KINDS = ("type", "event", "event_type", "interaction_type", "object", "label")
"""The fields in which stacks name the kind of a frame."""


def entry_line(data: dict[str, Any]) -> Text:
    event = data["event"]
    turn = f"turn {event['turn_id']}" if event.get("turn_id") is not None else ""
    text = next((str(event[name]) for name in TEXTS if event.get(name) is not None), "")
    if event["type"] == "frame":
        text = frame_words(event)
    return Text.assemble(
        (f"{data['position']:>6} ", "dim"), (f"{event['type']:<16} ", "cyan"), (f"{turn:<8} ", "dim"), one_line(text)
    )


def frame_words(event: dict[str, Any]) -> str:
    """Return the dialect of another stack's frame, and its kind, under whichever name the stack uses."""
    frame = event.get("frame")
    inner = frame.get("message", frame) if isinstance(frame, dict) else None
    fields = inner if isinstance(inner, dict) else {}
    kind = next((fields[name] for name in KINDS if isinstance(fields.get(name), str)), "")
    return f"{event.get('dialect') or ''} {kind}".strip()
