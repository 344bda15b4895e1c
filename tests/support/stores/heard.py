"""Short ways to put messages into an index, and to search them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.stores.contract import NOW, open_key
from voicemem.search.passages import Passage
from voicemem.search.words import query_words
from voicemem.store.port import Store
from voicemem.store.scopes import Scope, scope_of
from voicemem.store.transcript_index import TranscriptUpdate
from voicemem.store.transcript_search import FoundMessage, TranscriptQuery


def passages(turn_id: int, *texts: str, said_ms: int = NOW, before: str = "") -> list[Passage]:
    """The passages of a turn, in which a user and an agent take turns; each has the one before it."""
    made = []
    for number, text in enumerate(texts):
        role = "assistant" if number % 2 else "user"
        made.append(Passage(turn_id, number, 10 * turn_id + number, role, said_ms + number, text, before))  # type: ignore[arg-type]
        before = text
    return made


async def index_call(
    store: Store, session_id: str, *texts: str, project: str = "p", given: dict[str, Any] | None = None
) -> int:
    """Make a session in whose only turn these messages were heard; its key."""
    key = (
        await open_key(store, session_id, given) if project == "p" else await open_in(store, project, session_id, given)
    )
    await reindex(store, key, {1: passages(1, *texts)}, project=project)
    return key


async def open_in(store: Store, project: str, session_id: str, given: dict[str, Any] | None) -> int:
    """Make a session in a project."""
    from voicemem.config.session import validate_config

    opened = await store.journal.open_producer(project, session_id, "main", validate_config(given or {}), None, NOW)
    return opened.stream.key


async def reindex(
    store: Store, key: int, turns: Mapping[int, Sequence[Passage]], position: int = 1, since: int | None = None,
    project: str = "p",
) -> list[int]:  # fmt: skip
    """Hand over what was heard in a session; the answer of the index."""
    (stream,) = await store.journal.find_sessions(project, [key])
    update = TranscriptUpdate(key, position, scope_of(stream), stream.started_ms, turns, since)
    return await store.transcript_index.index_messages([update])


async def search(store: Store, query: str, project: str = "p", **wanted: Any) -> list[FoundMessage]:
    """What is found, best first."""
    scope = Scope(project, *(wanted.pop(name, None) for name in ("namespace", "user_id", "session_id")))
    whose = await store.users.query_scope(scope)
    if "now_ms" in wanted:  # in the order of what it means
        wanted["question"] = query
    return await store.transcript_index.find_messages(TranscriptQuery(whose, query_words(query), **wanted))


async def found_texts(store: Store, query: str, project: str = "p", **wanted: Any) -> list[str]:
    return [message.text for message in await search(store, query, project, **wanted)]
