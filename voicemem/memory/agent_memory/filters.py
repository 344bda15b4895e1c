"""agent-memory-server's filters as conditions of the store. None is ever dropped: what cannot be met is refused."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Annotated, NamedTuple

from msgspec import UNSET, Meta, Struct

from voicemem.errors import Refused
from voicemem.memory.agent_memory.models import Time
from voicemem.memory.agent_memory.times import parse_time, to_ms
from voicemem.protocol.types import JsonObject
from voicemem.store.ports.memories import AnyOf, Between, Condition, MemoryFilter, NoneOf, StartsWith, Tags

MAX_VALUES = 1_000
"""Of one filter."""
MESSAGE_TOPIC = "agentmemorymessage"
"""Marks memories of the type `message`, for which there is no kind. One word, so that no query finds it by chance."""
SEMANTIC, EPISODIC, MESSAGE = "semantic", "episodic", "message"
TYPES = (SEMANTIC, EPISODIC, MESSAGE)
OWNER_FIELDS = ("user_id", "namespace", "session_id")
SEMANTIC_KINDS = ("fact", "preference", "summary")


class TextFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which values a field may have; all that is given must hold.

    The server took `eq`, `ne`, `any`, `all` and `startswith`; its client has `in_`, `not_eq` and `not_in` too.
    """

    eq: str | None = None
    ne: str | None = None
    any: tuple[str, ...] | None = None
    all: tuple[str, ...] | None = None
    startswith: str | None = None
    in_: tuple[str, ...] | None = None
    not_eq: str | None = None
    not_in: tuple[str, ...] | None = None


class TagFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Which topics or entities a memory must have: any of these, all of these, none of these."""

    eq: str | None = None
    ne: str | None = None
    any: tuple[str, ...] | None = None
    all: tuple[str, ...] | None = None
    none: tuple[str, ...] | None = None


Span = Annotated[tuple[Time, ...], Meta(min_length=2, max_length=2)]
"""A first and a last time; as a pair its schema would have the form `items: false`, which generators do not know."""


class TimeFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """When something was; all that is given must hold."""

    eq: Time | None = None
    gt: Time | None = None
    gte: Time | None = None
    lt: Time | None = None
    lte: Time | None = None
    between: Span | None = None


class Filters(Struct, frozen=True, forbid_unknown_fields=True):
    """All filters of a search."""

    session_id: TextFilter | None = None
    namespace: TextFilter | None = None
    user_id: TextFilter | None = None
    memory_type: TextFilter | None = None
    topics: TagFilter | None = None
    entities: TagFilter | None = None
    created_at: TimeFilter | None = None
    last_accessed: TimeFilter | None = None
    event_date: TimeFilter | None = None
    extraction_strategy: TextFilter | None = None


class Branch(NamedTuple):
    """One of several conditions of which a memory must meet any."""

    filter: MemoryFilter
    takes: Callable[[str], bool]
    """Whether it takes an extraction strategy, which the store does not look at."""


class Values(NamedTuple):
    """A filter of text, put together: the values that are left, if they are named, and those that are taken out."""

    allowed: tuple[str, ...] | None
    excluded: tuple[str, ...]
    prefix: str | None

    def takes(self, value: str) -> bool:
        named = self.allowed is None or value in self.allowed
        return named and value not in self.excluded and value.startswith(self.prefix or "")


def branches(
    project: str, given: Filters, session_ids: Callable[[str], Sequence[str]] = lambda value: (value,)
) -> list[Branch]:
    """The conditions of which a memory must meet any one; none where nothing can. Raises `Refused` (`invalid_field`).

    `session_ids` gives the ids of sessions that one of a client's stands for.
    """
    strategies = values_of("extraction_strategy", given.extraction_strategy)
    sessions = values_of("session_id", given.session_id)
    mapped = Values(
        None if sessions.allowed is None else tuple(id for one in sessions.allowed for id in session_ids(one)),
        tuple(id for one in sessions.excluded for id in session_ids(one)),
        sessions.prefix,
    )
    base = MemoryFilter(
        project=project,
        namespaces=condition("namespace", values_of("namespace", given.namespace)),
        user_ids=condition("user_id", values_of("user_id", given.user_id)),
        session_ids=condition("session_id", mapped),
        entities=tags("entities", given.entities),
        created=between("created_at", given.created_at),
        accessed=between("last_accessed", given.last_accessed),
        event=between("event_date", given.event_date),
    )
    wanted_types = values_of("memory_type", given.memory_type)
    if {*(wanted_types.allowed or ()), *wanted_types.excluded} - {*TYPES}:
        raise Refused("invalid_field", f"The types of memories are {', '.join(TYPES)}: `memory_type`")
    types = [one for one in TYPES if wanted_types.takes(one)]
    found = [
        MemoryFilter(**{name: getattr(base, name) for name in base.__struct_fields__} | type_conditions)
        for type_conditions in conditions_of_types(types, tags("topics", given.topics))
    ]
    if any(is_impossible(one) for one in found):
        return []
    return [Branch(one, strategies.takes) for one in found]


def is_impossible(one: MemoryFilter) -> bool:
    texts = (one.namespaces, one.user_ids, one.session_ids, one.kinds)
    spans = [span.bounds for span in (one.created, one.accessed, one.event) if span is not None]
    return (
        any(isinstance(text, AnyOf) and not text.values for text in texts)
        or any(tag is not None and tag.any == () for tag in (one.topics, one.entities))
        or any(since >= until for since, until in spans)
    )


def conditions_of_types(types: Sequence[str], topics: Tags | None) -> list[JsonObject]:
    """The kinds and topics that stand for types of memories; the type `message` has a topic of its own."""
    marked, plain = with_tag(topics, MESSAGE_TOPIC), without_tag(topics, MESSAGE_TOPIC)
    match tuple(types):
        case ():
            return []
        case (semantic, episodic, message):
            del semantic, episodic, message
            return [{"topics": topics}]
        case ("semantic", "episodic"):
            return [{"topics": plain}]
        case ("semantic", "message"):
            return [{"kinds": AnyOf(SEMANTIC_KINDS), "topics": topics}]
        case ("semantic",):
            return [{"kinds": AnyOf(SEMANTIC_KINDS), "topics": plain}]
        case ("episodic",):
            return [{"kinds": AnyOf(("episode",)), "topics": topics}]
        case ("message",):
            return [{"topics": marked}]
    return [{"kinds": AnyOf(("episode",)), "topics": topics}, {"topics": marked}]


def with_tag(known: Tags | None, tag: str) -> Tags:
    known = known or Tags()
    return Tags(any=known.any, all=(*known.all, tag), none=known.none)


def without_tag(known: Tags | None, tag: str) -> Tags:
    known = known or Tags()
    return Tags(any=known.any, all=known.all, none=(*known.none, tag))


def values_of(field: str, given: TextFilter | None) -> Values:
    """A filter of text, put together. Raises `Refused` (`invalid_field`)."""
    if given is None:
        return Values(None, (), None)
    check_named(field, given)
    lists = [given.any, given.in_]
    lists += [None if given.eq is None else (given.eq,), None if given.all is None else only_one(given.all)]
    allowed: tuple[str, ...] | None = None
    for values in lists:
        if values is not None:
            allowed = tuple(dict.fromkeys(one for one in values if allowed is None or one in allowed))
    singles = tuple(one for one in (given.ne, given.not_eq) if one is not None)
    excluded = singles + (given.not_in or ())
    if max(len(allowed or ()), len(excluded)) > MAX_VALUES:
        raise Refused("invalid_field", f"A filter may have at most {MAX_VALUES:,} values: `{field}`")
    return Values(allowed, excluded, given.startswith)


def check_named(field: str, given: TextFilter | TagFilter | TimeFilter) -> None:
    """Refuse a filter without a value: whoever has sent it does not want everything. Raises `Refused`."""
    if given == type(given)():
        raise Refused("invalid_field", f"The filter has no value; leave it out to search without it: `{field}`")


def check_filters(given: object) -> None:
    """Refuse null for the filters that say whose memories are meant. Raises `Refused` (`invalid_field`)."""
    for field in OWNER_FIELDS:
        if isinstance(given, dict) and given.get(field, UNSET) is None:
            raise Refused("invalid_field", f"The filter has no value; leave it out to search without it: `{field}`")


def only_one(values: tuple[str, ...]) -> tuple[str, ...]:
    """What a field with one value may be that must have all of these."""
    return values if len(set(values)) == 1 else ()


def condition(field: str, values: Values) -> Condition | None:
    """The condition of a field. Raises `Refused` (`invalid_field`)."""
    if values.allowed is not None:
        return AnyOf(tuple(one for one in values.allowed if values.takes(one)))
    if values.prefix is not None:
        if values.excluded:
            raise Refused("invalid_field", f"`startswith` cannot be combined with what is excluded: `{field}`")
        return StartsWith(values.prefix)
    return NoneOf(values.excluded) if values.excluded else None


def tags(field: str, given: TagFilter | None) -> Tags | None:
    if given is None:
        return None
    check_named(field, given)
    eq = () if given.eq is None else (given.eq,)
    ne = () if given.ne is None else (given.ne,)
    return Tags(any=given.any, all=(*(given.all or ()), *eq), none=(*(given.none or ()), *ne))


def between(field: str, given: TimeFilter | None) -> Between | None:
    """The span of a filter of time, in whole ms. Raises `Refused` (`invalid_field`) for a date that does not exist."""
    if given is None:
        return None
    check_named(field, given)
    first, last = (None, None) if given.between is None else given.between
    since = [floor(field, one) for one in (given.eq,) if one is not None]
    since += [floor(field, one) for one in (given.gte, first) if one is not None]
    since += [floor(field, one) + 1 for one in (given.gt,) if one is not None]
    until = [floor(field, one) + 1 for one in (given.eq, given.lte, last) if one is not None]
    until += [floor(field, one) for one in (given.lt,) if one is not None]
    return Between(max(since, default=None), min(until, default=None))


def floor(field: str, value: Time) -> int:
    """Unix ms: memories are known to the ms, so one within the same ms is as old."""
    return to_ms(parse_time(value, field))
