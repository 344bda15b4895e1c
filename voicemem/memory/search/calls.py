"""Finds calls for a list: by the words that were heard in them, and by the beginnings of their ids and users."""

from __future__ import annotations

from voicemem.memory.search.indexer import TranscriptIndexer
from voicemem.memory.search.transcript import is_within
from voicemem.search.words import query_words
from voicemem.store.port import Store
from voicemem.store.ports.heard_index import HeardScope

MAX_CALLS = 1_000
"""Calls that are found by words, and as many by their names: those in which the words were heard last."""


class CallSearch:
    """Finds the sessions that a list is narrowed to."""

    def __init__(self, store: Store, indexer: TranscriptIndexer) -> None:
        self.store = store
        self.indexer = indexer

    async def find(self, project: str, user_id: str | None, text: str) -> tuple[int, ...]:
        """The keys of sessions, which may be of other users where only names were found.

        All words must be in one message. Raises `StoreUnavailable`.
        """
        scope = HeardScope(project, user_id=user_id)
        await self.indexer.index_first(lambda stream: is_within(stream, scope))
        heard = await self.store.find_heard_sessions(scope, query_words(text, in_all_forms=False), MAX_CALLS)
        named = await self.store.find_named(project, text.strip(), MAX_CALLS)
        return tuple(dict.fromkeys((*heard, *named)))
