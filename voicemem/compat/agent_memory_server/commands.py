"""`voicemem import-ams`: imports everything from an agent-memory-server."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import quote

import click
import msgspec

from voicemem.cli import common
from voicemem.client.errors import RequestRefused
from voicemem.client.transport.rest import RestClient
from voicemem.protocol.types import JsonObject

PAGE = 100
KEPT_FIELDS = (
    *("messages", "memories", "data", "context", "user_id", "namespace", "tokens", "long_term_memory_strategy"),
    "ttl_seconds",
)
"""Fields of a working memory that are imported; its times are not, as each server sets its own."""
TOO_MUCH = (400, 413, 422)
"""Statuses that a single memory of a batch may cause."""
READ_ONLY = ("dist", "score", "score_type", "persisted_at", "updated_at", "access_count")
SESSIONS, MEMORIES = "/v1/working-memory/", "/v1/long-term-memory/"
SHOWN = 20


class Importer:
    """Moves sessions and memories from `source` to `target`. Sending is idempotent.

    The file `state` lists what earlier runs moved; without it everything is sent again.
    """

    def __init__(self, source: RestClient, target: RestClient, state: Path | None) -> None:
        self.source = source
        self.target = target
        self.state = state
        self.done = set(state.read_text().splitlines()) if state is not None and state.exists() else set()
        self.on_step: Callable[[int], None] = lambda steps: None
        """Called with the number of sessions or memories handled since the last call."""
        self.sessions = 0
        self.memories = 0
        self.refused: list[tuple[str, str]] = []

    def note_done(self, line: str) -> None:
        self.done.add(line)
        if self.state is not None:
            with self.state.open("a") as file:
                file.write(line + "\n")

    # Working memory

    async def move_sessions(self, scope: dict[str, str]) -> None:
        offset, seen = 0, set[str]()
        while page := (
            await common.ask_again(self.source, "GET", SESSIONS, scope | {"limit": str(PAGE), "offset": str(offset)})
        )["sessions"]:
            for session_id in [one for one in page if one not in seen]:
                line = line_of("session", scope, session_id)
                if line not in self.done and await self.move_session(session_id, scope):
                    self.note_done(line)
                self.on_step(1)
            if seen.issuperset(page):  # the source repeats itself: it has no more
                return
            seen.update(page)
            offset += PAGE

    async def move_session(self, session_id: str, scope: dict[str, str]) -> bool:
        """Move one working memory. Return whether it arrived."""
        path = SESSIONS + quote(session_id, safe="")
        try:
            memory = await common.ask_again(self.source, "GET", path, scope)
            body = {name: memory[name] for name in KEPT_FIELDS if memory.get(name) is not None}
            await common.ask_again(self.target, "PUT", path, {}, body)
        except RequestRefused as refused:
            self.note_refused(f"session {session_id}", refused)
            return False
        self.sessions += 1
        return True

    # Long-term memory

    async def move_memories(self, scope: dict[str, str]) -> None:
        filters = {name: {"eq": value} for name, value in scope.items()}
        offset, seen = 0, set[str]()
        while True:
            body: JsonObject = {"text": "", "limit": PAGE, "offset": offset, "recency_boost": False, **filters}
            page = (await common.ask_again(self.source, "POST", MEMORIES + "search", {}, body))["memories"]
            new = [one for one in page if line_of("memory", one["id"]) not in self.done]
            records = [{name: one[name] for name in common.filled(one) if name not in READ_ONLY} for one in new]
            kept = await self.keep(records) if records else []
            for id in kept:
                self.note_done(line_of("memory", id))
            self.memories += len(kept)
            self.on_step(len(page))
            if len(page) < PAGE or seen.issuperset(one["id"] for one in page):
                return
            seen.update(one["id"] for one in page)
            offset += PAGE

    async def keep(self, records: list[JsonObject]) -> list[str]:
        """Keep memories. Return the ids of the accepted ones; if a list is refused, each memory is tried alone."""
        try:
            await common.ask_again(self.target, "POST", MEMORIES, {}, {"memories": records, "deduplicate": False})
        except RequestRefused as refused:
            if len(records) == 1:
                self.note_refused(f"memory {records[0]['id']}", refused)
                return []
            if refused.status not in TOO_MUCH:
                raise
            return [id for record in records for id in await self.keep([record])]
        return [record["id"] for record in records]

    def note_refused(self, what: str, refused: RequestRefused) -> None:
        """Note an item that was refused. Re-raises a refusal that every request would get, such as a wrong key."""
        if refused.status in (401, 403):
            raise refused
        self.refused.append((what, str(refused.detail)[:500]))


def line_of(*key: Any) -> str:
    return msgspec.json.encode(key).decode()


@click.command("import-ams", short_help="Take over everything from an agent-memory-server.")
@click.argument("source", callback=common.check_rest_url)
@common.rest_options
@click.option("--source-key", help="A token of the source, if it needs one.")
@click.option("--namespace", help="Only what is in this namespace.")
@click.option("--user-id", help="Only what is this user's.")
@click.option(
    "--state",
    type=click.Path(dir_okay=False, path_type=Path),
    help="A file that notes what was taken over, so that the next run continues from there.",
)
def import_ams(
    source: str,
    server: common.Server,
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
    scope = common.filled({"namespace": namespace, "user_id": user_id})
    try:
        moved = common.run(move(common.Server(source, source_key), server, scope, state))
    except (AttributeError, LookupError, TypeError, ValueError):
        raise common.CommandFailed("SOURCE does not answer as an agent-memory-server does.") from None
    click.echo(
        f"{common.number_of(moved.sessions, 'session')} and {common.number_of(moved.memories, 'memory')} taken over"
    )
    for what, detail in moved.refused[:SHOWN]:
        click.secho(f"{what}: {detail}", fg="yellow", err=True)
    if moved.refused:
        raise common.CommandFailed(f"{len(moved.refused):,} could not be taken over.")


async def move(
    source: common.Server, target: common.Server, scope: dict[str, str], state: Path | None = None
) -> Importer:
    async with source.client() as from_rest, target.client() as to_rest:
        importer = Importer(from_rest, to_rest, state)
        total = int((await common.ask_again(from_rest, "GET", SESSIONS, scope | {"limit": "1"}))["total"])
        with common.progress(total, f"moving {common.number_of(total, 'session')}") as bar:
            importer.on_step = bar.update
            await importer.move_sessions(scope)
        with common.counting("moving memories") as importer.on_step:
            await importer.move_memories(scope)
        return importer
