"""Arguments and results of the tools. Arguments named `…Within` have no owner, which a session token fixes."""

from typing import Annotated, Any, Literal

from msgspec import UNSET, Meta, Struct, UnsetType

MemoryKind = Literal["message", "fact", "preference", "episode", "summary"]
GivenKind = Literal["fact", "preference", "episode"]
UserId = Annotated[
    str,
    Meta(min_length=1, max_length=128, description="Whose memory: the id of the user, as your application knows it."),
]
SessionIdText = Annotated[
    str, Meta(min_length=1, max_length=128, description="The id of the call, as recent_calls lists it.")
]
When = Annotated[
    str, Meta(min_length=4, max_length=40, description="A day, 2026-05-03, or a moment, 2026-05-03T14:00:00Z; UTC.")
]


class SearchWithin(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    query: Annotated[
        str, Meta(min_length=1, max_length=4000, description="What to look for: a question, or a few words of it.")
    ]
    kinds: (
        Annotated[
            list[MemoryKind],
            Meta(
                min_length=1,
                max_length=5,
                description="Only these kinds. `message` is what was heard, word for word; the others were noted from "
                "calls or given. All, unless set.",
            ),
        ]
        | UnsetType
    ) = UNSET
    since: When | UnsetType = UNSET
    until: Annotated[str, Meta(min_length=4, max_length=40, description="As since; a day is included.")] | UnsetType = (
        UNSET
    )
    limit: Annotated[int, Meta(ge=1, le=50, description="How many at most.")] = 10


class Search(SearchWithin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    user_id: UserId


class ContextWithin(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    max_tokens: (
        Annotated[int, Meta(ge=1, le=10_000_000, description="The newest turns that fit into this many tokens.")]
        | UnsetType
    ) = UNSET


class Context(ContextWithin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    session_id: SessionIdText


class HistoryWithin(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    last: Annotated[int, Meta(ge=1, le=500, description="How many messages at most, the newest.")] = 50


class History(HistoryWithin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    session_id: SessionIdText


class RememberWithin(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    text: Annotated[
        str,
        Meta(
            min_length=1,
            max_length=1000,
            description="One statement that makes sense alone: names written out, dates absolute. At most 1,000 bytes "
            "in UTF-8, which are fewer characters in scripts other than Latin.",
        ),
    ]
    kind: Annotated[
        GivenKind, Meta(description="A fact, a preference of the user's, or an episode: something that happened.")
    ] = "fact"


class Remember(RememberWithin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    user_id: UserId


class Forget(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    memory_id: Annotated[
        str, Meta(min_length=1, max_length=128, description="The id of a memory, as search_memories gives it.")
    ]


class CallsWithin(Struct, frozen=True, forbid_unknown_fields=True, kw_only=True):
    limit: Annotated[int, Meta(ge=1, le=50, description="How many at most.")] = 10


class Calls(CallsWithin, frozen=True, forbid_unknown_fields=True, kw_only=True):
    user_id: UserId


# Results


class HeardIn(Struct, frozen=True):
    """The call and the turns in which it was heard."""

    session_id: str
    turns: list[int]


class FoundMemory(Struct, frozen=True, omit_defaults=True):
    """A memory or a message that was found: `role` is who spoke in a message, `when` the day or moment (UTC) of it."""

    id: str
    kind: str
    text: str
    when: str | None
    heard_in: list[HeardIn]
    role: str | None = None


class FoundMemories(Struct, frozen=True):
    """The results, the best first. `complete` is false while the index is being made, and something may be missing."""

    memories: list[FoundMemory]
    complete: bool
    more: bool


class NextContext(Struct, frozen=True):
    """The messages of the next LLM request, in OpenAI's form."""

    session_id: str
    messages: list[dict[str, Any]]


class HeardMessage(Struct, frozen=True, omit_defaults=True):
    """A message: `interrupted` says that the caller cut it off, and `text` is what was heard of it by then."""

    turn: int
    role: str
    text: str
    when: str | None
    interrupted: bool = False


class HeardHistory(Struct, frozen=True):
    """Messages as they were heard, the oldest first; `earlier` says that there is more before it."""

    session_id: str
    state: str
    started_at: str | None
    ended_at: str | None
    messages: list[HeardMessage]
    earlier: bool


class Remembered(Struct, frozen=True):
    """A memory that was stored: the id by which it can be forgotten."""

    id: str


class Forgotten(Struct, frozen=True):
    """The id of the memory that was removed."""

    forgotten: str


class Call(Struct, frozen=True):
    """A call, with what can be said of it in a line."""

    session_id: str
    state: str
    started_at: str | None
    ended_at: str | None
    summary: str


class RecentCalls(Struct, frozen=True):
    """Calls, the newest first."""

    calls: list[Call]
    more: bool
