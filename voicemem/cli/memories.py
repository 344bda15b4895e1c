"""`voicemem search` and `voicemem reindex`."""

from __future__ import annotations

import json
import sys
from datetime import UTC, datetime
from typing import Any

import click
import msgspec

from voicemem.cli.common import CommandFailed, rest_options, run, store_option
from voicemem.cli.service import embeddings_options, embeddings_settings
from voicemem.client.options import Options
from voicemem.client.transport.rest import RestClient
from voicemem.config.service import MEMORY_STORE, Settings, check_embeddings
from voicemem.context.policies import Policies
from voicemem.errors import CannotStart, LlmFailed
from voicemem.memory.long_term.searches import MAX_PAGE
from voicemem.memory.long_term.vector_maker import VectorMaker
from voicemem.runtime import Runtime
from voicemem.services import Services
from voicemem.store.engines import open_store
from voicemem.store.port import Store
from voicemem.telemetry import Telemetry


@click.command(short_help="Find what was said in any call.")
@click.argument("query")
@rest_options
@click.option("--user-id", help="Search the calls of this user only.")
@click.option("--session", help="Search this session only.")
@click.option("--namespace", help="Search the sessions with this label `namespace` only.")
@click.option(
    "--mode",
    type=click.Choice(("auto", "words", "vectors", "hybrid")),
    default="auto",
    help="How it is found; auto: by words, and by meaning where the service has an embedder.",
)
@click.option("--limit", type=click.IntRange(1, MAX_PAGE), default=10, show_default=True, help="How much to show.")
@click.option("--json", "as_json", is_flag=True, help="Print the document of the REST API.")
def search(
    query: str,
    url: str,
    key: str | None,
    user_id: str | None,
    session: str | None,
    namespace: str | None,
    mode: str,
    limit: int,
    as_json: bool,
) -> None:
    """Find what was said in any call, as it was heard; the best first.

    \b
    Examples:
      voicemem search "which nuts is she allergic to?" --user-id ann
      voicemem search 核桃 --json
    """
    scope = {"user_id": user_id, "session_id": session, "namespace": namespace}
    body = {
        "query": query,
        "mode": mode,
        "limit": limit,
        **{name: value for name, value in scope.items() if value is not None},
    }
    found = run(post_search(body, url, key))
    if as_json:
        click.echo(json.dumps(found, ensure_ascii=False, indent=2))
        return
    if not found["complete"]:
        click.secho("the index is being made; something may be missing", fg="yellow", err=True)
    for memory in found["memories"]:
        click.echo(f"{day_of(memory['said_at'])}  {memory['session_id']}  {memory['role']}: {memory['text']}")
    if not found["memories"]:
        click.echo("nothing was found", err=True)


async def post_search(body: dict[str, Any], url: str, key: str | None) -> Any:
    rest = RestClient(url, key, Options())
    try:
        return await rest.request("POST", "/v1/memories/search", None, msgspec.json.encode(body))
    finally:
        await rest.close()


def day_of(said_ms: int) -> str:
    """The day and the time (UTC) at which something was said; the number itself where it is no time of a calendar."""
    try:
        return datetime.fromtimestamp(said_ms / 1000, UTC).strftime("%Y-%m-%d %H:%M")
    except (OverflowError, ValueError, OSError):
        return str(said_ms)


@click.command(short_help="Make the index of heard messages again.")
@store_option
@embeddings_options
def reindex(store: str, **embedder: Any) -> None:
    """Make the index of heard messages again, from the journals.

    A server does that by itself when the index is missing, damaged or of another version. The server of a file must be
    stopped; nodes on PostgreSQL may run, and find less until this is done. With an embedder, all vectors are made again
    too; without one, the server makes them later.

    \b
    Example:
      voicemem reindex --store sqlite:calls.db
    """
    if store == MEMORY_STORE:
        raise CommandFailed("A store in memory ends with its server; there is nothing to index.")
    settings = Settings(store=store, **embeddings_settings(embedder))
    try:
        check_embeddings(settings)
    except CannotStart as error:
        raise CommandFailed(error.detail) from None
    run(make_index(settings))


async def make_index(settings: Settings) -> None:
    opened = open_store(settings.store)
    try:
        services = Services(opened, settings, Policies(), Runtime(), Telemetry.untraced())
        click.echo(f"{await index_all(opened, services)} sessions are indexed")
        if services.vectors is not None:
            click.echo(f"{await embed_all(opened, services.vectors.maker)} messages have vectors")
        await services.embeddings.close()
    finally:
        await opened.close_store()


async def index_all(opened: Store, services: Services) -> int:
    """Index all sessions of a store, with a progress bar; returns how many were indexed."""
    await opened.clear_index()
    total, count = await opened.count_sessions_to_index(), 0
    with click.progressbar(length=max(total, 1), label=f"indexing {total} sessions", file=sys.stderr) as bar:
        async for looked_at, done in services.indexer.check_all():
            count += done
            bar.update(looked_at)
    return count


async def embed_all(opened: Store, maker: VectorMaker) -> int:
    """Make the vectors of all messages in the index, with a progress bar; returns how many were made."""
    await maker.prepare()
    if not maker.can_compare:
        return 0
    count = 0
    try:
        total = await opened.count_without_vector(await maker.find_name())
        with click.progressbar(length=max(total, 1), label=f"embedding {total} messages", file=sys.stderr) as bar:
            async for done in maker.check_all():
                count += done
                bar.update(done)
    except LlmFailed as failed:
        raise CommandFailed(f"The embedder failed ({failed.why}) after {count} messages; a server goes on.") from None
    return count
