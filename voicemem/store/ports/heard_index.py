"""The index of heard messages: which of them have the words of a query. See `voicemem.store.port`."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from hashlib import blake2b
from typing import NamedTuple, Protocol

from msgspec import Struct

from voicemem.search.passages import Passage
from voicemem.search.words import QueryWord
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Role

NAMESPACE_LABEL = "namespace"
"""The label of a session that says which namespace its messages are in."""
FIRST_MS, LAST_MS = -(2**62), 2**62
MAX_FOUND = 1_000
"""The best messages of a query that can be asked for, in pages."""
MAX_HEARD_LOOKS = 20_000
"""Messages that are looked at for the sessions in which they were heard."""


class HeardScope(NamedTuple):
    """Whose a message is. A query has the same fields, and finds only what agrees with all that are not None."""

    project: str
    namespace: str | None = None
    user_id: str | None = None
    session_id: str | None = None


class HeardMessages(Struct, frozen=True):
    """What was heard in a session up to a position of its journal, or what of it has changed since another."""

    key: int
    position: int
    scope: HeardScope
    started_ms: int
    turns: Mapping[int, Sequence[Passage]]
    """Of each turn all passages, also of those that have none any more."""
    since: int | None = None
    """The turns are those that have changed since this position; None when they are all."""

    def is_news(self, position: int | None) -> bool:
        """Whether it says more than an index that knows the session up to a position, or not at all."""
        return position is None or position <= self.position

    def goes_on_from(self, position: int | None, is_same_scope: bool) -> bool:
        """Whether an index that knows the session up to a position, or not at all, needs no more than this."""
        return self.since is None or (position is not None and is_same_scope and position >= self.since)


class HeardQuery(Struct, frozen=True):
    """Which messages to find: those with any of the words, best first; in a page that begins after `offset` of them.

    `since_ms` and `until_ms` bound when a message was said; the second is the first moment that is too late.
    """

    scope: HeardScope
    words: Sequence[QueryWord]
    since_ms: int | None = None
    until_ms: int | None = None
    offset: int = 0
    limit: int = 10

    @property
    def said_between(self) -> tuple[int, int]:
        """The first moment, and the first that is too late; beyond all times where there is no bound."""
        return (
            FIRST_MS if self.since_ms is None else self.since_ms,
            LAST_MS if self.until_ms is None else self.until_ms,
        )


class FoundMessage(NamedTuple):
    """A message that was found, and how well it fits: the more, the better; comparable within one query only."""

    key: int
    turn_id: int
    number: int
    position: int
    role: Role
    said_ms: int
    text: str
    score: float


class IndexCheck(NamedTuple):
    """A part of all sessions, of which some are not indexed up to the end of their journals."""

    behind: Sequence[Stream]
    looked_at: int
    """How many sessions were looked at."""
    through_key: int | None
    """The key to go on after; None when there are no more."""


class HeardIndex(Protocol):
    """The messages that were heard, by their words. It can be thrown away: the journals give the same again.

    It is written in the background, and never in the transaction of an append. What a query may see is part of the
    query itself: a message of another project, or outside of the scope, is not looked at. The scores of messages rest
    on how frequent words are; a repeated query may order them differently when others were added meanwhile.
    """

    async def index_heard(self, updates: Sequence[HeardMessages]) -> list[int]:
        """Replace what is indexed of these sessions; the keys of those of which everything is needed instead.

        That is so when a part is given (`since`), and the index does not know the session up to there, or knows it in
        another scope. Does nothing to a session that is erased, or is indexed up to a later position already.
        """

    async def find_heard(self, wanted: HeardQuery) -> list[FoundMessage]:
        """The messages with these words, best first, of equal ones the newest first."""

    async def find_heard_sessions(self, scope: HeardScope, words: Sequence[QueryWord], limit: int) -> list[int]:
        """The keys of sessions in which all of these words were heard in one message.

        Those whose messages were indexed last are found, from `MAX_HEARD_LOOKS` messages that have the words.
        """

    async def check_index(self, after_key: int, limit: int) -> IndexCheck:
        """Look at some sessions of all projects, by key: which have grown since they were indexed.

        What is indexed of erased ones is deleted on the way.
        """

    async def claim_index_check(self, node: str, now_ms: int, lease_ms: int) -> bool:
        """Claim the look at all sessions; False while another node has it. It is freed as other claims are."""

    async def clear_index(self) -> None:
        """Forget all that is indexed."""

    async def count_sessions_to_index(self) -> int:
        """How many sessions there are in all projects, without erased ones."""

    @property
    def index_resets(self) -> int:
        """How often the index was found lost or damaged, and begun anew, since the store was opened."""


def scope_of(stream: Stream) -> HeardScope:
    """The scope that a session's messages are in."""
    labels = stream.config.get("labels") or {}
    return HeardScope(stream.project, labels.get(NAMESPACE_LABEL), stream.config.get("user_id"), stream.id)


def scope_terms(scope: HeardScope, secret: bytes) -> list[str]:
    """One word for each part of a scope that is given, of which no two are alike.

    Each ends with a digit, so that stemming leaves it as it is.
    """
    project, namespace, user_id, session_id = scope
    parts = (("p", ()), ("n", namespace), ("u", user_id), ("s", session_id))
    terms = []
    for kind, value in parts:
        if value is not None:
            name = json.dumps([kind, project, *([value] if value else [])]).encode()
            terms.append(f"{kind}{blake2b(name, digest_size=16, key=secret).hexdigest()}0")
    return terms


def asked_terms(scope: HeardScope, secret: bytes) -> list[str]:
    """The words of a scope that a query asks for: each names its project, so that of the project is needed alone only.

    How rare a word is, a search finds out by going through all texts that have it, which may be a whole project.
    """
    terms = scope_terms(scope, secret)
    return terms[1:] or terms
