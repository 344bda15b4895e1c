"""`voicemem end` and `erase`."""

from __future__ import annotations

import sys
from typing import Any

import click
import msgspec

from voicemem.cli.common import CommandFailed, rest_options, run
from voicemem.client import Options
from voicemem.client.transport.rest import RestClient, session_path
from voicemem.exports.plain_text import one_line


@click.command(short_help="End calls.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@rest_options
@click.option("--reason", help="Why; the session shows it.")
def end(sessions: tuple[str, ...], url: str, key: str | None, reason: str | None) -> None:
    """End calls and close them at once, with a key of the scope ingest. One that has ended stays as it is.

    \b
    Example:
      voicemem end call-1 --reason "caller asked"
    """
    body = msgspec.json.encode({} if reason is None else {"reason": reason})
    for session in sessions:
        ended = run(send("POST", session, "/end", url, key, body))
        if sys.stdout.isatty():
            why = f" ({one_line(ended['reason'])})" if ended["reason"] else ""
            click.echo(f"{session} {ended['state']}{why}")
        else:
            click.echo(msgspec.json.encode({name: ended[name] for name in ("session_id", "state", "reason")}))


@click.command(short_help="Erase calls.")
@click.argument("sessions", nargs=-1, required=True, metavar="SESSION...")
@rest_options
@click.option("--yes", is_flag=True, help="Do not ask.")
def erase(sessions: tuple[str, ...], url: str, key: str | None, yes: bool) -> None:
    """Erase calls with all that is stored of them, with a key of the scope admin. It cannot be undone.

    It asks before each of them; where nobody can answer, --yes must say so.

    \b
    Example:
      voicemem erase call-1
    """
    if not yes and not sys.stdin.isatty():
        raise CommandFailed("Nobody can be asked here; --yes erases without asking.")
    for session in sessions:
        found = run(send("GET", session, "", url, key))
        if not yes and not click.confirm(question(session, found), err=True):
            click.echo(f"{session} stays", err=True)
            continue
        run(send("DELETE", session, "", url, key))
        shown = f"{session} is erased" if sys.stdout.isatty() else msgspec.json.encode({"erased": session})
        click.echo(shown)


def question(session: str, found: dict[str, Any]) -> str:
    user = found["config"].get("user_id")
    whose = f" of {one_line(user)}" if user else ""
    return f"Erase {session}{whose} ({found['state']}, {found['position']} entries), and all that is stored of it?"


async def send(method: str, session: str, path: str, url: str, key: str | None, body: bytes | None = None) -> Any:
    options = Options()
    rest = RestClient(url, key, options)
    try:
        return await rest.request(method, session_path(session, path), None, body, options.request_timeout_s)
    finally:
        await rest.close()
