"""`voicemem sessions`: calls as a table on a terminal, and as JSON lines in a pipe."""

import asyncio
import sys
from collections.abc import AsyncGenerator
from contextlib import aclosing, nullcontext
from datetime import UTC, datetime
from typing import Any

import click
import msgspec
from rich.console import Console
from rich.live import Live
from rich.table import Table
from rich.text import Text

from voicemem.cli.common import CommandFailed, Server, filled, json_shown, rest_options, run_until_interrupted
from voicemem.client import Options
from voicemem.client.transport.rest import RestClient, query_params, session_path
from voicemem.exports.call import length, one_line

MOST = 1000
"""Rows of one answer."""
LOOK_S = 1.0
"""The time between two reads of --follow."""
Row = dict[str, Any]


@click.command(short_help="List calls.")
@rest_options
@click.option("--state", type=click.Choice(["running", "ended"]), help="Only running or only ended calls.")
@click.option("--user-id", help="Calls of this user.")
@click.option("--label", help="KEY:VALUE; calls with this label.")
@click.option("--interrupted", is_flag=True, help="Calls in which a reply was cut.")
@click.option("--slow", type=click.IntRange(min=0), help="Calls with an answer that took at least this many ms.")
@click.option("--outcome", help="Calls with this outcome of their analysis.")
@click.option("--webhook", type=click.Choice(["failed", "pending"]), help="Calls with a webhook in this state.")
@click.option("--limit", type=click.IntRange(min=1), default=20, show_default=True, help="At most this many.")
@click.option("--follow", is_flag=True, help="Keep running, and show what changes, until Ctrl-C.")
@click.option("--json", "as_json", is_flag=True, help="JSON lines on a terminal too.")
def sessions(server: Server, limit: int, follow: bool, as_json: bool, **conditions: Any) -> None:
    """List calls, the newest first: a table on a terminal, JSON lines in a pipe.

    With --follow the table is drawn again when something changes; in a pipe, each call that changed is printed again.

    \b
    Examples:
      voicemem sessions --state running --follow
      voicemem sessions --interrupted | jq -r .session_id
    """
    query = query_params({name: value for name, value in conditions.items() if value not in (None, False)})
    console = Console(highlight=False)
    table = None if as_json or not console.is_terminal else console
    run_until_interrupted(show(server, query, limit, follow, table))


async def show(server: Server, query: dict[str, str], limit: int, follow: bool, console: Console | None) -> None:
    """Show the rows; with `follow` keep reading them, and draw the table again or print changed rows."""
    known: dict[str, Row] = {}
    async with server.client(Options()) as rest:
        if not follow and console is None:
            async with aclosing(rows_of(rest, query, limit)) as page:
                async for row in page:
                    click.echo(json_shown(row))
            return
        if not follow and console is not None:
            console.print(table_of([row async for row in rows_of(rest, query, limit)]))
            return
        with nullcontext() if console is None else Live(console=console, auto_refresh=False) as live:
            while True:
                rows = [row async for row in rows_of(rest, query, limit)]
                if live is not None:
                    live.update(table_of(rows), refresh=True)
                else:
                    for row in reversed(rows):
                        if known.get(row["session_id"]) != row:
                            click.echo(json_shown(row))
                    known = {row["session_id"]: row for row in rows}
                await asyncio.sleep(LOOK_S)


async def rows_of(rest: RestClient, query: dict[str, str], limit: int) -> AsyncGenerator[Row, None]:
    """Yield the newest rows, in as many pages as needed: a page with conditions may be short."""
    cursor: str | None = None
    while limit > 0:
        more = {"fields": "overview", "limit": min(limit, MOST), "cursor": cursor}
        page = await rest.get("/v1/sessions", {**query, **more})
        for row in page["sessions"]:
            yield row
        limit, cursor = limit - len(page["sessions"]), page["next_cursor"]
        if cursor is None:
            return


def table_of(rows: list[Row]) -> Table:
    table = Table(box=None, pad_edge=False, header_style="bold dim", expand=True)
    table.add_column("SESSION", no_wrap=True, overflow="ellipsis", ratio=3)
    for name in ("STATE", "STARTED", "LENGTH", "TURNS", "CUT"):
        table.add_column(name, no_wrap=True, justify="right" if name in ("LENGTH", "TURNS", "CUT") else "left")
    table.add_column("USER", no_wrap=True, overflow="ellipsis", ratio=2)
    table.add_column("LAST WORDS", no_wrap=True, overflow="ellipsis", ratio=6)
    for row in rows:
        table.add_row(*cells(row))
    if not rows:
        table.add_row(Text("no calls", "dim"))
    return table


def cells(row: Row) -> list[Text]:
    figures = row["figures"] or {}
    state = Text(row["state"], "green" if row["state"] == "running" else "dim")
    started = datetime.fromtimestamp(row["started_at"] / 1000, UTC).strftime("%m-%d %H:%M")
    lasted = length(max(0, (row["ended_at"] or row["active_at"]) - row["started_at"]))
    cut = figures.get("interruptions")
    last = figures.get("last") or {}
    words = Text(f"{last['role']}: {one_line(last['text'])}", "italic" if last["open"] else "") if last else Text("")
    return [
        Text(row["session_id"], "bold"),
        state,
        Text(started, "dim"),
        Text(lasted),
        Text(str(figures.get("turns", ""))),
        Text("" if cut is None else str(cut), "red" if cut else "dim"),
        Text(one_line(row["user_id"] or "")),
        words,
    ]


@click.command(short_help="End calls.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@rest_options
@click.option("--reason", help="Why; the session shows it.")
def end(sessions: tuple[str, ...], server: Server, reason: str | None) -> None:
    """End calls and close them at once, with a key of the scope ingest. One that has ended stays as it is.

    \b
    Example:
      voicemem end call-1 --reason "caller asked"
    """
    for session in sessions:
        ended = server.ask("POST", session_path(session, "/end"), filled({"reason": reason}))
        if sys.stdout.isatty():
            why = f" ({one_line(ended['reason'])})" if ended["reason"] else ""
            click.echo(f"{session} {ended['state']}{why}")
        else:
            click.echo(msgspec.json.encode({name: ended[name] for name in ("session_id", "state", "reason")}))


@click.command(short_help="Erase calls.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@rest_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase(sessions: tuple[str, ...], server: Server, yes: bool) -> None:
    """Erase calls with all that is stored of them, with a key of the scope admin. It cannot be undone.

    It asks before each of them; where no one can answer, --yes must be given.

    \b
    Example:
      voicemem erase call-1
    """
    if not yes and not sys.stdin.isatty():
        raise CommandFailed("No one can be asked here; --yes erases without asking.")
    for session in sessions:
        info = server.ask("GET", session_path(session))
        user = info["config"].get("user_id")
        whose = f"{session} of {one_line(user)}" if user else session
        question = f"Erase {whose} ({info['state']}, {info['position']} entries), and all that is stored of it?"
        if not yes and not click.confirm(question, err=True):
            click.echo(f"{session} stays", err=True)
            continue
        server.ask("DELETE", session_path(session))
        click.echo(f"{session} is erased" if sys.stdout.isatty() else msgspec.json.encode({"erased": session}))
