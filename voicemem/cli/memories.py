"""`voicemem search`, `memories` and `reindex`."""

from datetime import UTC, datetime
from typing import Any, get_args

import click

from voicemem.cli import common
from voicemem.cli.service_settings import EMBEDDINGS_OPTIONS, store_option
from voicemem.cli.stores import checked_store
from voicemem.client.memories import memory_path
from voicemem.client.transport.rest import user_path
from voicemem.config.service import MEMORY_STORE, Settings, check_embeddings
from voicemem.context.policy_registry import Policies
from voicemem.errors import LlmFailed
from voicemem.exports.call import one_line
from voicemem.memory.search import MAX_PAGE
from voicemem.memory.vectors import VectorMaker
from voicemem.protocol.memories import GivenKind
from voicemem.runtime import Runtime
from voicemem.services import Services
from voicemem.store.engines import open_store
from voicemem.telemetry import Telemetry

KINDS: tuple[str, ...] = get_args(GivenKind)


@click.command(short_help="Find what was said in any call, and memories.")
@click.argument("query")
@common.rest_options
@click.option("--user-id", help="Search the calls of this user only.")
@click.option("--session", "session_id", help="Search this session only.")
@click.option("--namespace", help="Search the sessions with this label `namespace` only.")
@click.option(
    "--mode",
    type=click.Choice(("auto", "words", "vectors", "hybrid")),
    default="auto",
    help="How it is found; auto: by words, and by meaning where the service has an embedder.",
)
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=10, show_default=True, help="How much to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of the REST API.")
def search(server: common.Server, as_json: bool, **body: Any) -> None:
    """Find what was said in any call, as it was heard, and memories that were kept; the best first.

    \b
    Examples:
      voicemem search "which nuts is she allergic to?" --user-id ann
      voicemem search 核桃 --json
    """
    page = server.ask("POST", "/v1/memories/search", common.filled(body))
    if as_json:
        click.echo(common.json_shown(page, 2))
        return
    if not page["complete"]:
        click.secho("the index is being made; something may be missing", fg="yellow", err=True)
    for memory in page["memories"]:
        place = [] if memory["session_id"] is None else [memory["session_id"]]
        what = f"{memory.get('role', memory['kind'])}: {one_line(memory['text'])}"
        click.echo("  ".join([day_of(memory["said_at"]), *place, what]))
    if not page["memories"]:
        click.echo("nothing was found", err=True)


def day_of(said_ms: int | None) -> str:
    """Return the day and the time (UTC) at which something was said; the number itself if no calendar has it."""
    if said_ms is None:
        return "-"
    try:
        return datetime.fromtimestamp(said_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return str(said_ms)


@click.group(short_help="Memories that outlive a call.")
def memories() -> None:
    """Facts, preferences, episodes and summaries that outlive a call: docs/memories.md.

    \b
    Examples:
      voicemem memories add "Ann is allergic to walnuts." --user-id ann --topic food
      voicemem memories list ann
      voicemem memories show mem_4ph3bnmpv7fg3dkmwbivekkxaq
    """


@memories.command("list", short_help="List the memories of a user.")
@click.argument("user_id")
@common.rest_options
@click.option("--kind", type=click.Choice(KINDS), help="Those of this kind only.")
@click.option("--superseded", is_flag=True, help="Also those that are out of date.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object for each.")
def list_memories(user_id: str, server: common.Server, kind: str | None, superseded: bool, as_json: bool) -> None:
    """List the memories of a user, the newest first.

    \b
    Examples:
      voicemem memories list ann --kind preference
    """
    conditions = {"superseded": superseded or None, "kind": kind}
    for memory in server.entries(user_path(user_id, "/memories"), "memories", **conditions):
        click.echo(common.json_shown(memory) if as_json else line_of(memory))


def line_of(memory: Any) -> str:
    marks = {"pinned": memory["pinned"], "out of date": memory["superseded_by"]}
    about = ", ".join([memory["kind"], *(mark for mark, holds in marks.items() if holds)])
    return f"{memory['id']}  {day_of(memory['said_at'])}  {about}: {one_line(memory['text'])}"


@memories.command(short_help="Show a memory, and what it was heard from.")
@click.argument("memory_id")
@common.rest_options
def show(memory_id: str, server: common.Server) -> None:
    """Show a memory, and the messages that it comes from, as they were heard.

    \b
    Examples:
      voicemem memories show mem_4ph3bnmpv7fg3dkmwbivekkxaq
    """
    click.echo(common.json_shown(server.ask("GET", memory_path(memory_id), query={"evidence": True}), 2))


@memories.command(short_help="Keep a memory.")
@click.argument("text")
@common.rest_options
@click.option("--user-id", help="Whose it is.")
@click.option("--session", "session_id", help="The session that it belongs to, and is erased with.")
@click.option("--namespace", help="Its namespace.")
@click.option("--kind", type=click.Choice(KINDS), default=KINDS[0], show_default=True, help="What it is.")
@click.option("--topic", "topics", multiple=True, help="What it is about. May be repeated.")
@click.option("--event-at", help="When it happened: 2026-05-03, or 2026-05-03T14:30:00Z.")
@click.option("--pinned", is_flag=True, help="Policies leave it.")
def add(text: str, server: common.Server, **fields: Any) -> None:
    """Keep a memory: one statement, with names written out and dates in full. The key needs the scope ingest.

    \b
    Examples:
      voicemem memories add "Ann is allergic to walnuts." --user-id ann --topic food
    """
    click.echo(server.ask("POST", "/v1/memories", {"text": text, **fields})["memories"][0]["id"])


@memories.command(short_help="Remove memories.")
@click.argument("memory_ids", nargs=-1, required=True)
@common.rest_options
def remove(memory_ids: tuple[str, ...], server: common.Server) -> None:
    """Remove memories, and their texts with them. The key needs the scope ingest.

    \b
    Examples:
      voicemem memories remove mem_4ph3bnmpv7fg3dkmwbivekkxaq
    """
    for memory_id in memory_ids:
        server.ask("DELETE", memory_path(memory_id))
        click.echo(f"{memory_id} is removed")


@memories.command(short_help="Forget memories of a user.")
@click.argument("user_id")
@common.rest_options
@click.option("--query", help="Those that have all of these words.")
@click.option("--kind", "kinds", multiple=True, type=click.Choice(KINDS), help="Those of this kind. May be repeated.")
@click.option("--max-age-days", type=float, help="Those that are older, unless they are pinned.")
@click.option("--everything", is_flag=True, help="All of them.")
@click.option("--dry-run", is_flag=True, help="Only say how many.")
def forget(
    user_id: str, server: common.Server, kinds: tuple[str, ...], everything: bool, dry_run: bool, **conditions: Any
) -> None:
    """Forget memories of a user for good. All conditions that are given must hold. The key needs the scope admin.

    \b
    Examples:
      voicemem memories forget ann --query knee --dry-run
      voicemem memories forget ann --everything
    """
    if not (everything or kinds or any(value is not None for value in conditions.values())):
        raise click.UsageError("Say which: --query, --kind or --max-age-days, or --everything.")
    body = common.filled({**conditions, "kinds": kinds or None, "everything": everything or None, "dry_run": dry_run})
    answer = server.ask("POST", user_path(user_id, "/memories/forget"), body)
    count = len(answer["ids"])
    would_be = "would be" if dry_run else "is" if count == 1 else "are"
    click.echo(f"{common.number_of(count, 'memory')} {would_be} forgotten")


@click.command(short_help="Rebuild the transcript index.")
@store_option
@common.options(*EMBEDDINGS_OPTIONS)
def reindex(store: str, **embedder: Any) -> None:
    """Rebuild the transcript index from the journals.

    A server does that by itself when the index is missing, damaged or of another version. The server of a file must be
    stopped; nodes on PostgreSQL may run, and find less until this is done. With an embedder, the vectors of
    messages are made too, and those that memories lack; without one, the server makes them later.

    \b
    Example:
      voicemem reindex --store sqlite:calls.db
    """
    if store == MEMORY_STORE:
        raise common.CommandFailed("A store in memory ends with its server; there is nothing to index.")
    settings = Settings(store=checked_store(store), **embedder)
    check_embeddings(settings)
    common.run(make_index(settings))


async def make_index(settings: Settings) -> None:
    opened = open_store(settings.store, make=False)
    try:
        services = Services(opened, settings, Policies(), Runtime(), Telemetry.untraced())
        await opened.transcript_index.clear_index()
        total, count = await opened.transcript_index.count_sessions_to_index(), 0
        with common.progress(total, f"indexing {common.number_of(total, 'session')}") as bar:
            async for looked_at, done in services.indexer.check_all():
                count += done
                bar.update(looked_at)
        click.echo(f"{common.number_of(count, 'session')} indexed")
        if services.vectors is not None:
            click.echo(f"{common.number_of(await embed_all(services.vectors.maker), 'vector')} made")
        await services.embeddings.close()
    finally:
        await opened.close_store()


async def embed_all(maker: VectorMaker) -> int:
    await maker.prepare()
    if not maker.can_compare:
        return 0
    count = 0
    try:
        total = await maker.count_missing()
        with common.progress(total, f"embedding {common.number_of(total, 'text')}") as bar:
            async for done in maker.check_all():
                count += done
                bar.update(done)
    except LlmFailed as failed:
        why = f"The embedder failed ({failed.why}) after {common.number_of(count, 'text')}; a server will continue."
        raise common.CommandFailed(why) from None
    return count
