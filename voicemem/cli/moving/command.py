"""`voicemem import-ams`."""

from __future__ import annotations

import sys
from pathlib import Path

import click

from voicemem.cli.common import CommandFailed, check_rest_url, rest_options, run
from voicemem.cli.moving.agent_memory import Done, Moved, Mover
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient

SHOWN = 20
"""Refusals that are written out."""


@click.command("import-ams", short_help="Take over everything from an agent-memory-server.")
@click.argument("source", callback=check_rest_url)
@rest_options
@click.option("--source-key", help="A token of the source, if it needs one.")
@click.option("--namespace", help="Only what is in this namespace.")
@click.option("--user-id", help="Only what is this user's.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that notes what was taken over, so that the next run goes on from there.",
)
def import_ams(
    source: str,
    url: str,
    key: str | None,
    source_key: str | None,
    namespace: str | None,
    user_id: str | None,
    state: Path | None,
) -> None:
    """Take over working memory and long-term memory from the agent-memory-server at SOURCE, while both run.

    The key needs the scope ingest. What is taken over twice is there once, so the command can be repeated, also after
    an interruption. A session whose id is used in several namespaces is only found with --namespace.

    \b
    Examples:
      voicemem import-ams http://127.0.0.1:8000
      voicemem import-ams http://127.0.0.1:8000 --url https://memory.example.com --state moved.txt
    """
    scope = {name: value for name, value in (("namespace", namespace), ("user_id", user_id)) if value is not None}
    moved = run(move(source, source_key, url, key, scope, state))
    click.echo(f"{moved.sessions:,} sessions and {moved.memories:,} memories are taken over")
    for refusal in moved.refused[:SHOWN]:
        click.secho(f"{refusal.what}: {refusal.detail}", fg="yellow", err=True)
    if moved.refused:
        raise CommandFailed(f"{len(moved.refused):,} could not be taken over.")


async def move(
    source_url: str, source_key: str | None, url: str, key: str | None, scope: dict[str, str], state: Path | None
) -> Moved:
    """Move everything, with a bar for the sessions and one for the memories."""
    source, target = RestClient(source_url, source_key, Options()), RestClient(url, key, Options())
    mover = Mover(source, target, Done(state))
    try:
        total = await mover.count_sessions(scope)
        with click.progressbar(length=max(total, 1), label=f"moving {total:,} sessions", file=sys.stderr) as bar:
            mover.on_step = bar.update
            await mover.move_sessions(scope)
        with click.progressbar(length=1, label="moving memories", file=sys.stderr, show_pos=True) as count:

            def note(steps: int) -> None:
                count.length = count.pos + steps + 1
                count.update(steps)

            mover.on_step = note
            await mover.move_memories(scope)
            count.update((count.length or 1) - count.pos)
        return mover.moved
    finally:
        await source.close()
        await target.close()
