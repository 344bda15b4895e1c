"""What a context shows of earlier calls: the section `memory.memories` of a session's configuration."""

from __future__ import annotations

from typing import Annotated, Literal, NamedTuple

from msgspec import Meta, Struct

RecalledKind = Literal["fact", "preference", "episode", "summary", "message"]
RecalledKinds = Annotated[tuple[RecalledKind, ...], Meta(min_length=1, max_length=5)]
RecallSource = Literal["earlier", "all"]
RecallTokens = Annotated[int, Meta(ge=0, le=100_000)]
MAX_TOKENS = 300
NOTHING_ASKED = (None, None, None)
EARLIER: RecallSource = "earlier"
KINDS: tuple[RecalledKind, ...] = ("preference", "fact", "episode")


class RecallConfig(Struct, frozen=True, forbid_unknown_fields=True, rename={"source": "from"}):
    """How much is shown, and what; a field that is null has the default. With `max_tokens` 0 there is nothing.

    `from` says which memories: those of `earlier` calls, or `all`, those of this call too. The kind `message` is what
    was heard on earlier calls, word for word.
    """

    max_tokens: RecallTokens | None = None
    kinds: RecalledKinds | None = None
    source: RecallSource | None = None


class Recalled(NamedTuple):
    """The settings for one context, with nothing left open."""

    max_tokens: int
    kinds: tuple[RecalledKind, ...]
    source: RecallSource


def settle_recall(
    asked: RecallConfig | None, session: RecallConfig | None, service: RecallConfig | None
) -> Recalled | None:
    """What these settings say together, the first ones first; None where none of them asks for memories."""
    given = (asked, session, service)
    if given == NOTHING_ASKED:
        return None
    sections = [section for section in given if section is not None]
    max_tokens = next((one.max_tokens for one in sections if one.max_tokens is not None), MAX_TOKENS)
    kinds = next((one.kinds for one in sections if one.kinds is not None), KINDS)
    source: RecallSource = next((one.source for one in sections if one.source is not None), EARLIER)
    return Recalled(max_tokens, kinds, source) if max_tokens else None
