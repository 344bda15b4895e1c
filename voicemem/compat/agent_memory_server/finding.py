"""Search for memories as in agent-memory-server: by words, by meaning, or by filters alone.

If recency counts too, each page is ordered as agent-memory-server orders it.
"""

from collections.abc import Callable, Collection, Sequence
from typing import Annotated, Any, Literal, NamedTuple

from msgspec import UNSET, Meta, Struct, structs

from voicemem.compat.agent_memory_server import records as forms
from voicemem.compat.agent_memory_server.sessions import ID_LABEL, MOST_SAME_ID, Owner, derived_id
from voicemem.errors import Refused
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.records import Memory, to_memory
from voicemem.memory.search import MAX_QUERY, Vectors, find_memories_by_meaning
from voicemem.protocol.types import MAX_INTEGER, JsonObject
from voicemem.runtime import FairQueue
from voicemem.store.memory_filters import AnyOf, Between, Condition, MemoryFilter, NoneOf, StartsWith, Tags
from voicemem.store.session_filters import SessionFilter

MAX_VALUES = 1_000
SEMANTIC, EPISODIC, MESSAGE = "semantic", "episodic", "message"
TYPES = (SEMANTIC, EPISODIC, MESSAGE)
Span = Annotated[tuple[forms.Time, ...], Meta(min_length=2, max_length=2)]
"""A first and a last time; the schema of a pair would have `items: false`, which code generators do not know."""
DAY_MS = 86_400_000
MOST_RESULTS = 10_000
PAGE = 500
Weight = Annotated[float, Meta(ge=0, le=1_000)]
HalfLife = Annotated[float, Meta(gt=0, le=1_000_000)]
Share = Annotated[float, Meta(ge=0, le=1)]
Found = tuple[Memory, float]
"""A memory and its score: 1 for the best, 0 for one that only passed the filters."""
NO_VALUE = "The filter has no value; leave it out to search without it: `{}`"


class TextFilter(Struct, frozen=True, forbid_unknown_fields=True, omit_defaults=True):
    """Conditions for the value of a text field; all that are present must hold.

    The server accepted `eq`, `ne`, `any`, `all` and `startswith`; its client also has `in_`, `not_eq` and `not_in`.
    """

    eq: str | None = None
    ne: str | None = None
    any: tuple[str, ...] | None = None
    all: tuple[str, ...] | None = None
    startswith: str | None = None
    in_: tuple[str, ...] | None = None
    not_eq: str | None = None
    not_in: tuple[str, ...] | None = None


FewTags = Annotated[tuple[str, ...], Meta(max_length=100)]
"""Each is a condition of its own, and stores accept some hundreds."""


class TagFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions for topics or entities: any of these, all of these, none of these."""

    eq: str | None = None
    ne: str | None = None
    any: FewTags | None = None
    all: FewTags | None = None
    none: FewTags | None = None


class TimeFilter(Struct, frozen=True, forbid_unknown_fields=True):
    """Conditions for a time; all that are present must hold."""

    eq: forms.Time | None = None
    gt: forms.Time | None = None
    gte: forms.Time | None = None
    lt: forms.Time | None = None
    lte: forms.Time | None = None
    between: Span | None = None


class Filters(Struct, frozen=True, forbid_unknown_fields=True):
    """The filters of a search, all of which must hold."""

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


def equal(**values: str | None) -> Filters:
    filters: Any = {name: TextFilter(eq=value) for name, value in values.items() if value is not None}
    return Filters(**filters)


class Branch(NamedTuple):
    """One of several alternatives; a memory must meet any."""

    filter: MemoryFilter
    takes: Callable[[str], bool]
    """Returns whether an extraction strategy matches; the store does not filter by it."""


class Values(NamedTuple):
    """A combined text filter: the allowed values (None: any), the excluded ones, and a prefix."""

    allowed: tuple[str, ...] | None
    excluded: tuple[str, ...]
    prefix: str | None

    def takes(self, value: str) -> bool:
        named = self.allowed is None or value in self.allowed
        return named and value not in self.excluded and value.startswith(self.prefix or "")


def branches(
    project: str, filters: Filters, session_ids: Callable[[str], Sequence[str]] = lambda value: (value,)
) -> list[Branch]:
    """Return the alternatives that filters mean; none if no memory can match. Raises `Refused` (`invalid_field`).

    `session_ids` returns our session ids for a client's session id.
    """
    strategies = values_of("extraction_strategy", filters.extraction_strategy)
    sessions = values_of("session_id", filters.session_id)
    mapped = Values(
        None if sessions.allowed is None else tuple(id for one in sessions.allowed for id in session_ids(one)),
        tuple(id for one in sessions.excluded for id in session_ids(one)),
        sessions.prefix,
    )
    base = MemoryFilter(
        project=project,
        namespaces=condition("namespace", values_of("namespace", filters.namespace)),
        user_ids=condition("user_id", values_of("user_id", filters.user_id)),
        session_ids=condition("session_id", mapped),
        entities=tags("entities", filters.entities),
        created=between("created_at", filters.created_at),
        accessed=between("last_accessed", filters.last_accessed),
        event=between("event_date", filters.event_date),
    )
    types_named = values_of("memory_type", filters.memory_type)
    if {*(types_named.allowed or ()), *types_named.excluded} - {*TYPES}:
        raise Refused("invalid_field", f"The types of memories are {', '.join(TYPES)}: `memory_type`")
    types = [one for one in TYPES if types_named.takes(one)]
    conditions = [structs.replace(base, **one) for one in conditions_of_types(types, tags("topics", filters.topics))]
    if any(is_impossible(one) for one in conditions):
        return []
    return [Branch(one, strategies.takes) for one in conditions]


def is_impossible(one: MemoryFilter) -> bool:
    texts = (one.namespaces, one.user_ids, one.session_ids, one.kinds)
    spans = [span.bounds for span in (one.created, one.accessed, one.event) if span is not None]
    return (
        any(isinstance(text, AnyOf) and not text.values for text in texts)
        or any(tag is not None and tag.any == () for tag in (one.topics, one.entities))
        or any(since >= until for since, until in spans)
    )


def conditions_of_types(types: Sequence[str], topics: Tags | None) -> list[JsonObject]:
    """Return the filters by kind and topic that memory types mean; the type `message` is stored as a topic."""
    topics_or_any = topics or Tags()
    marked = structs.replace(topics_or_any, all=(*topics_or_any.all, forms.MESSAGE_TOPIC))
    plain = structs.replace(topics_or_any, none=(*topics_or_any.none, forms.MESSAGE_TOPIC))
    facts, episodes = {"kinds": AnyOf(("fact", "preference", "summary"))}, {"kinds": AnyOf(("episode",))}
    conditions: dict[tuple[str, ...], list[JsonObject]] = {
        (): [],
        (SEMANTIC,): [facts | {"topics": plain}],
        (EPISODIC,): [episodes | {"topics": topics}],
        (MESSAGE,): [{"topics": marked}],
        (SEMANTIC, EPISODIC): [{"topics": plain}],
        (SEMANTIC, MESSAGE): [facts | {"topics": topics}],
        (EPISODIC, MESSAGE): [episodes | {"topics": topics}, {"topics": marked}],
        TYPES: [{"topics": topics}],
    }
    return conditions[tuple(types)]


def values_of(field: str, text_filter: TextFilter | None) -> Values:
    """Combine the conditions of a text filter. Raises `Refused` (`invalid_field`)."""
    if text_filter is None:
        return Values(None, (), None)
    check_named(field, text_filter)
    eq = None if text_filter.eq is None else (text_filter.eq,)
    # A field with one value can only have all of these if they are the same.
    everyone = None if text_filter.all is None else text_filter.all if len(set(text_filter.all)) == 1 else ()
    allowed: tuple[str, ...] | None = None
    for values in (text_filter.any, text_filter.in_, eq, everyone):
        if values is not None:
            allowed = tuple(dict.fromkeys(one for one in values if allowed is None or one in allowed))
    singles = tuple(one for one in (text_filter.ne, text_filter.not_eq) if one is not None)
    excluded = singles + (text_filter.not_in or ())
    if max(len(allowed or ()), len(excluded)) > MAX_VALUES:
        raise Refused("invalid_field", f"A filter may have at most {MAX_VALUES:,} values: `{field}`")
    return Values(allowed, excluded, text_filter.startswith)


def check_named(field: str, value: TextFilter | TagFilter | TimeFilter) -> None:
    """Raise `Refused` for a filter without a value: its sender does not want everything."""
    if value == type(value)():
        raise Refused("invalid_field", NO_VALUE.format(field))


def check_filters(body: object) -> None:
    """Raise `Refused` (`invalid_field`) for null in filters that restrict whose memories are found."""
    for field in ("user_id", "namespace", "session_id"):
        if isinstance(body, dict) and body.get(field, UNSET) is None:
            raise Refused("invalid_field", NO_VALUE.format(field))


def condition(field: str, values: Values) -> Condition | None:
    """Return the store's condition for a field. Raises `Refused` (`invalid_field`)."""
    if values.allowed is not None:
        return AnyOf(tuple(one for one in values.allowed if values.takes(one)))
    if values.prefix is not None:
        if values.excluded:
            raise Refused("invalid_field", f"`startswith` cannot be combined with excluded values: `{field}`")
        return StartsWith(values.prefix)
    return NoneOf(values.excluded) if values.excluded else None


def tags(field: str, tag_filter: TagFilter | None) -> Tags | None:
    if tag_filter is None:
        return None
    check_named(field, tag_filter)
    eq = () if tag_filter.eq is None else (tag_filter.eq,)
    ne = () if tag_filter.ne is None else (tag_filter.ne,)
    return Tags(any=tag_filter.any, all=(*(tag_filter.all or ()), *eq), none=(*(tag_filter.none or ()), *ne))


def between(field: str, time_filter: TimeFilter | None) -> Between | None:
    """Return the span of a time filter in whole ms. Raises `Refused` (`invalid_field`) for a nonexistent date."""
    if time_filter is None:
        return None
    check_named(field, time_filter)
    first, last = (None, None) if time_filter.between is None else time_filter.between

    def at(*times: forms.Time | None) -> list[int]:
        """Return Unix ms: memories' times are in ms, so times within the same ms are equal."""
        return [forms.to_ms(forms.parse_time(time, field)) for time in times if time is not None]

    since = [*at(time_filter.eq, time_filter.gte, first), *(ms + 1 for ms in at(time_filter.gt))]
    until = [*(ms + 1 for ms in at(time_filter.eq, time_filter.lte, last)), *at(time_filter.lt)]
    return Between(max(since, default=None), min(until, default=None))


class Recency(NamedTuple):
    """The weights of a ranking: a memory's relevance, its last access and its age."""

    semantic_weight: float = 0.8
    recency_weight: float = 0.2
    freshness_weight: float = 0.6
    novelty_weight: float = 0.4
    half_life_last_access_days: float = 7.0
    half_life_created_days: float = 30.0

    def score(self, memory: Memory, fit: float, now_ms: int) -> float:
        accessed_ms = memory.created_at if memory.last_accessed is None else memory.last_accessed
        freshness = decay(now_ms - accessed_ms, self.half_life_last_access_days)
        novelty = decay(now_ms - memory.created_at, self.half_life_created_days)
        recency = self.freshness_weight * freshness + self.novelty_weight * novelty
        return self.semantic_weight * fit + self.recency_weight * recency


def decay(age_ms: int, half_life_days: float) -> float:
    return float(0.5 ** (max(0, age_ms) / DAY_MS / half_life_days))


def rerank(page: Sequence[tuple[Memory, float]], recency: Recency, now_ms: int) -> list[tuple[Memory, float]]:
    """Sort memories by score; equal ones keep their order."""
    return sorted(page, key=lambda match: -recency.score(match[0], match[1], now_ms))


class RecordSearch(Filters, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A search for memories. Without `text`, all that pass the filters, the newest first."""

    text: Annotated[str, Meta(max_length=100_000)] | None = None
    limit: Annotated[int, Meta(ge=1, le=100)] = 10
    offset: Annotated[int, Meta(ge=0, le=MAX_INTEGER)] = 0
    search_mode: Literal["semantic", "keyword", "hybrid"] = "semantic"
    distance_threshold: float | None = None
    hybrid_alpha: Share | None = None
    """For `hybrid`: the weight of meaning, from 0 to 1; words have the rest."""
    text_scorer: str | None = None
    recency_boost: bool | None = None
    recency_semantic_weight: Weight | None = None
    recency_recency_weight: Weight | None = None
    recency_freshness_weight: Weight | None = None
    recency_novelty_weight: Weight | None = None
    recency_half_life_last_access_days: HalfLife | None = None
    recency_half_life_created_days: HalfLife | None = None
    server_side_recency: bool | None = None
    deduplicate: bool | None = None
    dedup_threshold: float | None = None
    dedup_use_llm: bool | None = None

    @property
    def recency(self) -> Recency:
        weights = {name: value for name in Recency._fields if (value := getattr(self, f"recency_{name}")) is not None}
        return Recency(**weights)


class FoundRecords(Struct, frozen=True):
    """A page of results; `next_offset` is null on the last one. `total` counts up to there, plus one more."""

    memories: list[forms.RecordView]
    total: int
    next_offset: int | None


class RecordFinder:
    """Searches the memories of all projects. `vectors` is None without an embedder; then only words count."""

    def __init__(self, long_term: LongTermMemory, vectors: Vectors | None, queue: FairQueue) -> None:
        """`queue` is shared by all searches."""
        self.queue = queue
        self.long_term = long_term
        self.store = long_term.store
        self.clock = long_term.clock
        self.vectors = vectors

    async def search(self, project: str, search: RecordSearch) -> FoundRecords:
        """Return a page of memories that pass the filters, the best first. Raises `Refused` (`invalid_field`)."""
        if search.distance_threshold is not None and search.search_mode != "semantic":
            raise Refused("invalid_field", "distance_threshold is only supported for semantic search mode")
        end = search.offset + search.limit
        if end > MOST_RESULTS:
            raise Refused("invalid_field", f"A search shows at most {MOST_RESULTS:,} memories: `offset`")
        async with self.queue.slot(project):
            matches = await self.find(project, search, end + 1)
        page, now_ms = matches[search.offset : end], self.clock()
        if search.recency_boost is not False and search.text:
            page = rerank(page, search.recency, now_ms)
        await self.store.memories.touch_memories(project, [memory.id for memory, score in page if score > 0], now_ms)
        views = [forms.view_of(memory, score) for memory, score in page]
        return FoundRecords(views, len(matches), end if len(matches) > end else None)

    async def find(self, project: str, search: RecordSearch, most: int) -> list[Found]:
        conditions = await self.conditions(project, search)
        text = (search.text or "").strip()
        matches = await self.fitting(project, conditions, search, most) if text else []
        threshold = search.distance_threshold
        if threshold is not None:
            matches = [one for one in matches if 1.0 - one[1] <= threshold]
        if text and (search.search_mode == "keyword" or (threshold is not None and threshold < 1.0)):
            return matches[:most]
        if len(matches) < most:
            newest = await self.newest(project, conditions, most, {memory.id for memory, _ in matches})
            matches += [(memory, 0.0 if text else 1.0) for memory in newest]
        return matches[:most]

    async def fitting(self, project: str, conditions: Sequence[Branch], search: RecordSearch, most: int) -> list[Found]:
        """Return memories that match a text, the best first; scores are cosines for meaning alone, else relative."""
        text = (search.text or "")[:MAX_QUERY]
        vectors, alpha, vector = self.vectors, search.hybrid_alpha, None
        if vectors is not None and vectors.maker.can_compare and search.search_mode != "keyword":
            vector = await vectors.queries.begin(text)()
        alone = vector is not None and (search.search_mode == "semantic" or alpha == 1.0)
        if vectors is not None and alpha is not None and alpha < 1.0:
            vectors = vectors._replace(weight=alpha / (1.0 - alpha))
        matches: list[Found] = []
        for branch in conditions:
            if vector is None or vectors is None:
                several = await self.long_term.find_by_words(project, branch.filter, text, most)
            else:
                restricted = self.long_term.restricted(project, branch.filter)
                near = await find_memories_by_meaning(self.store, vectors, restricted, text, vector, alone)
                several = [(to_memory(row), score) for row, score, _ in near]
            matches += [one for one in several if branch.takes(forms.strategy_of(one[0]))]
        best = 1.0 if alone else max((score for _, score in matches), default=0.0)
        matches = [(memory, score / best if best > 0 else 1.0) for memory, score in matches]
        return sorted(matches, key=lambda one: (-one[1], -one[0].created_at))

    async def newest(
        self, project: str, conditions: Sequence[Branch], most: int, known: Collection[str] = ()
    ) -> list[Memory]:
        memories: list[Memory] = []
        for branch in conditions:
            after, several = None, list[Memory]()
            while len(several) < most:
                page = await self.long_term.list_memories(
                    project, structs.replace(branch.filter, after=after, limit=PAGE)
                )
                several += [one for one in page if one.id not in known and branch.takes(forms.strategy_of(one))]
                if len(page) < PAGE:
                    break
                after = page[-1].created_at, page[-1].id
            memories += several
        memories.sort(key=lambda one: (one.created_at, one.id), reverse=True)
        return memories[:most]

    async def conditions(self, project: str, filters: Filters, alone: bool = False) -> list[Branch]:
        """Return the alternatives that filters mean; a client's session id means all sessions that have it.

        With `alone`, a user id does not include other ids of the same person.
        """
        named, values = filters.session_id, list[str]()
        if named is not None:
            values += [one for one in (named.eq, named.ne, named.not_eq) if one is not None]
            values += [one for several in (named.any, named.all, named.in_, named.not_in) for one in several or ()]
        ids: dict[str, tuple[str, ...]] = {}
        for value in [*dict.fromkeys(values)][:100]:  # more are not looked up
            labelled = await self.store.journal.list_sessions(
                SessionFilter(project=project, label=(ID_LABEL, value), limit=MOST_SAME_ID)
            )
            ids[value] = tuple(dict.fromkeys((value, derived_id(Owner(value)), *(one.id for one in labelled))))
        conditions = branches(project, filters, lambda value: ids.get(value, (value,)))
        return [one._replace(filter=structs.replace(one.filter, of_ids_alone=alone)) for one in conditions]
