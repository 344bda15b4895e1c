"""Whatever is written, removed and erased, in whatever order: a filter finds what a simple model says, and no more."""

from __future__ import annotations

from typing import Any

from hypothesis import given
from hypothesis import strategies as st
from msgspec import Struct
from msgspec.structs import replace

from tests.support.profiles import examples
from tests.support.stores.contract import NOW, example_numbers
from tests.support.stores.memories import delete_content, event_of, memory_of, session_of, stream_of
from voicemem.errors import Refused
from voicemem.search.words import query_words
from voicemem.store.memories import TOUCH_AGAIN_MS, MemoryRow, tombstone
from voicemem.store.memory_filters import AnyOf, Between, Condition, MemoryFilter, NoneOf, StartsWith, Tags
from voicemem.store.port import Store
from voicemem.store.streams import Stream

PROJECTS = ("p", "q OR p")
NAMES = ("ann", "an", 'a" OR b', "核桃", "nul\x01", "%")
IDS = ("m1", "m2", "m\n3", "nul\x01")
WORDS = ("walnut", "dog", "lake", "核桃", "rex", "or", "scope", "p1")
KINDS = ("fact", "preference")
TOPICS = ("food", "foo", "健康")

small = st.integers(0, 5)
acts = st.lists(
    st.tuples(
        st.sampled_from(["write", "write", "write", "write", "remove", "erase", "delete", "touch"]),
        st.sampled_from(PROJECTS),
        st.sampled_from(["user", "session"]),
        st.sampled_from(NAMES[:2]),
        st.lists(st.tuples(st.sampled_from(IDS), small, small), min_size=1, max_size=3, unique_by=lambda one: one[0]),
    ),
    min_size=5,
    max_size=25,
)


def values(of: tuple[str, ...]) -> st.SearchStrategy[Condition]:
    """A condition on a field that has one of these values, or none."""
    some = st.lists(st.sampled_from([*of, None]), max_size=3).map(tuple)
    return st.one_of(some.map(AnyOf), some.map(NoneOf), st.sampled_from([*of, "a", ""]).map(StartsWith))


def maybe(strategy: st.SearchStrategy[Any]) -> st.SearchStrategy[Any]:
    return st.none() | strategy


some_topics = st.lists(st.sampled_from(TOPICS), max_size=2).map(tuple)
spans = st.builds(Between, *[maybe(st.integers(NOW - 5, NOW + 30))] * 2)
filters = st.builds(
    MemoryFilter,
    project=st.sampled_from(PROJECTS),
    namespaces=maybe(values(NAMES)),
    user_ids=maybe(values(NAMES)),
    session_ids=maybe(values(("an", "ann"))),
    kinds=maybe(values(KINDS)),
    topics=maybe(st.builds(Tags, any=maybe(some_topics), all=some_topics, none=some_topics)),
    created=maybe(spans),
    accessed=maybe(spans),
    event=maybe(spans),
    said=maybe(spans),
    pinned=maybe(st.booleans()),
    as_of_ms=maybe(st.integers(NOW - 5, NOW + 30)),
    with_superseded=st.booleans(),
    unexpired_at_ms=maybe(st.integers(NOW - 5, NOW + 30)),
    limit=st.just(1_000),
)
queries = st.lists(st.sampled_from(WORDS), min_size=1, max_size=3, unique=True)


class Model(Struct):
    """What was written: rows by project, stream and id, when links between two were made, and what is erased."""

    rows: dict[tuple[str, int, str], MemoryRow] = {}
    links: dict[tuple[str, int, str, str], int] = {}
    erased: set[int] = set()

    def write(self, row: MemoryRow) -> None:
        place = row.project, row.key, row.id
        before = self.rows.get(place)
        if before is not None and before.removed_ms is None:
            row = replace(row, last_accessed_ms=before.last_accessed_ms, access_count=before.access_count)
        self.rows[place] = row
        for link in [link for link in self.links if link[:3] == place and link[3] not in row.supersedes]:
            del self.links[link]
        for old in row.supersedes:
            self.links.setdefault((*place, old), row.updated_ms)

    def is_taken(self, project: str, key: int, memory_id: str) -> bool:
        return any(
            of == project and other != key and one == memory_id and row.removed_ms is None
            for (of, other, one), row in self.there()
        )

    def there(self) -> list[tuple[tuple[str, int, str], MemoryRow]]:
        return [(place, row) for place, row in self.rows.items() if place[1] not in self.erased]

    def is_superseded(self, row: MemoryRow, as_of_ms: int | None) -> bool:
        return any(
            project == row.project and old == row.id and key not in self.erased and made <= (as_of_ms or made)
            for (project, key, _, old), made in self.links.items()
        )

    def find(self, wanted: MemoryFilter) -> list[MemoryRow]:
        rows = [row for _, row in self.there() if fits(row, wanted)]
        if not wanted.with_superseded:
            rows = [row for row in rows if not self.is_superseded(row, wanted.as_of_ms)]
        return sorted(rows, key=lambda row: (row.created_ms, row.id.encode()), reverse=True)


def fits(row: MemoryRow, wanted: MemoryFilter) -> bool:
    """Whether all conditions hold but that on superseding."""
    accessed_ms = row.created_ms if row.last_accessed_ms is None else row.last_accessed_ms
    event_ms = None if row.event_at is None else NOW - NOW % 86_400_000
    return (
        row.project == wanted.project
        and row.removed_ms is None
        and holds(wanted.namespaces, row.namespace)
        and holds(wanted.user_ids, row.user_id)
        and holds(wanted.session_ids, row.session_id)
        and holds(wanted.kinds, row.kind)
        and has(wanted.topics, row.topics)
        and all(
            span is None or (value is not None and span.bounds[0] <= value < span.bounds[1])
            for span, value in (
                (wanted.created, row.created_ms),
                (wanted.accessed, accessed_ms),
                (wanted.event, event_ms),
                (wanted.said, row.said_ms),
            )
        )
        and wanted.pinned in (None, row.pinned)
        and (wanted.as_of_ms is None or row.created_ms <= wanted.as_of_ms)
        and (wanted.unexpired_at_ms is None or row.expires_ms is None or row.expires_ms > wanted.unexpired_at_ms)
    )


def holds(condition: Condition | None, value: str | None) -> bool:
    match condition:
        case AnyOf(values):
            return value in values
        case NoneOf(values):
            return value not in values
        case StartsWith(prefix):
            return value is not None and value.startswith(prefix)
    return True


def has(wanted: Tags | None, tags: tuple[str, ...]) -> bool:
    if wanted is None:
        return True
    some = wanted.any is None or not set(wanted.any).isdisjoint(tags)
    return some and set(wanted.all) <= set(tags) and set(wanted.none).isdisjoint(tags)


class Run:
    """Does the same to a store and to the model. Projects are new ones in each example."""

    def __init__(self, store: Store) -> None:
        self.store = store
        self.model = Model({}, {}, set())
        self.now = NOW
        self.number = next(example_numbers)

    def project(self, name: str) -> str:
        return f"{name} {self.number}"

    async def stream(self, project: str, kind: str, name: str) -> Stream | None:
        """The stream of a name; None for a session that was erased, which cannot come back."""
        if kind == "user":
            return await stream_of(self.store, name, self.project(project))
        try:
            return await session_of(self.store, name.replace('"', "").replace(" ", ""), self.project(project))
        except Refused:
            return None

    async def act(self, what: str, project: str, kind: str, name: str, given: list[tuple[str, int, int]]) -> None:
        self.now += 1
        stream = await self.stream(project, kind, name)
        if stream is None:
            return
        if what == "write":
            await self.write(stream, [self.row(stream, *one, place) for place, one in enumerate(given)])
        elif what == "remove":
            gone = [self.model.rows.get((stream.project, stream.key, one[0])) for one in given]
            await self.write(stream, [tombstone(row, stream.position + 1, self.now) for row in gone if row is not None])
        elif what == "touch":
            await self.touch(stream.project, [one[0] for one in given])
        else:
            await self.store.retention.erase(stream.key, self.now)
            self.model.erased.add(stream.key)
            if what == "delete":
                await delete_content(self.store, sorted(self.model.erased))

    def row(self, stream: Stream, memory_id: str, choice: int, other: int, place: int) -> MemoryRow:
        return memory_of(
            stream,
            memory_id,
            " ".join(WORDS[choice : choice + 1 + other]),
            position=stream.position + 1 + place,
            kind=KINDS[other % 2],
            namespace=[*NAMES, None][other],
            created_ms=NOW + choice,
            updated_ms=self.now,
            said_ms=NOW + other if choice % 2 else None,
            event_at="2026-05-10" if other % 2 else None,
            expires_ms=NOW + choice + other if other % 3 else None,
            pinned=choice % 3 == 0,
            topics=TOPICS[choice % 4 : choice % 4 + 2],
            supersedes=tuple(sorted({IDS[choice % 4], IDS[other % 4]} - {memory_id})) if choice + other > 3 else (),
        )

    async def write(self, stream: Stream, rows: list[MemoryRow]) -> None:
        taken = any(row.removed_ms is None and self.model.is_taken(stream.project, stream.key, row.id) for row in rows)
        try:
            payloads = [event_of(row) for row in rows]
            written = await self.store.memories.write_memories(stream.key, payloads, stream.position, rows, self.now)
        except Refused:
            assert taken
            return
        assert not taken
        assert written is not None
        for row in rows:
            self.model.write(row)

    async def touch(self, project: str, ids: list[str]) -> None:
        self.now += TOUCH_AGAIN_MS // 3
        await self.store.memories.touch_memories(project, ids, self.now)
        for place, row in self.model.there():
            is_due = (row.last_accessed_ms or 0) <= self.now - TOUCH_AGAIN_MS
            if row.project == project and row.id in ids and row.removed_ms is None and is_due:
                self.model.rows[place] = replace(row, last_accessed_ms=self.now, access_count=row.access_count + 1)

    async def check(self, wanted: MemoryFilter, query: list[str]) -> None:
        wanted = replace(wanted, project=self.project(wanted.project))
        expected = self.model.find(wanted)
        listed = await self.store.memories.list_memories(wanted)
        plain = [replace(row, superseded_by=None, superseded_ms=None) for row in listed]
        assert expected == plain
        for row in listed:
            assert (row.superseded_by is not None) == self.model.is_superseded(row, wanted.as_of_ms)
        found = await self.store.memories.find_memories_by_words(wanted, query_words(" ".join(query)), 1_000)
        asked = {word.text for word in query_words(" ".join(query))}
        matching = {row.id for row in expected if asked & {*row.words.said.split(), *row.words.about.split()}}
        assert matching == {row.id for row, _ in found}


@examples(0.6)
@given(acts, st.lists(st.tuples(filters, queries), min_size=1, max_size=4))
async def test_filters_find_what_a_model_says(
    store: Store, done: list[tuple[str, str, str, str, list[tuple[str, int, int]]]], asked: list[tuple[Any, list[str]]]
) -> None:
    """Over projects whose users, sessions and memories have the same names: nothing of another one is ever found."""
    run = Run(store)
    for act in done:
        await run.act(*act)
    for project in PROJECTS:
        await run.check(MemoryFilter(project=project, limit=1_000), ["walnut", "dog"])
        await run.check(MemoryFilter(project=project, with_superseded=True, limit=1_000), list(WORDS))
    for wanted, query in asked:
        await run.check(wanted, query)
