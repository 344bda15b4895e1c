"""Two ids of one person: what is listed and found by either is then of both, until the link or one of them is gone."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import json
from collections.abc import Awaitable
from typing import Any

import pytest

from tests.support.stores.contract import NOW, listed_ids
from tests.support.stores.heard import index_call, search
from tests.support.stores.memories import found, listed, remember, stream_of
from tests.support.stores.vectors import EMBEDDER, vector_of
from voicemem.config.session import validate_config
from voicemem.errors import QuotaExceeded, Refused
from voicemem.search.words import query_words
from voicemem.store.memory_filters import AnyOf, NoneOf
from voicemem.store.port import Store
from voicemem.store.records import Quotas
from voicemem.store.scopes import Scope
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import SessionEnding, Stream
from voicemem.store.vectors import VectorQuery


async def link(store: Store, user_id: str = "tel", other_id: str = "ann", link_id: str = "l1") -> bool:
    return await store.users.link("p", user_id, other_id, link_id, NOW)


async def sentence_of(refused: Awaitable[Any]) -> str:
    with pytest.raises(Refused) as caught:
        await refused
    assert "user_conflict" == caught.value.code
    return caught.value.detail


async def partners(store: Store, *user_ids: str, project: str = "p") -> list[str | None]:
    return [await store.users.find_linked(project, user_id) for user_id in user_ids]


async def events_of(store: Store, user_id: str) -> list[dict[str, Any]]:
    user = await store.journal.find_user("p", user_id)
    rows = [] if user is None else await store.journal.read_rows(user.key, 0, 100)
    return [json.loads(row.payload) for row in rows]


async def call(store: Store, session_id: str, user_id: str, started_ms: int, project: str = "p") -> int:
    """A session of a user; its key."""
    patch = validate_config({"user_id": user_id, "labels": {"line": user_id}})
    stream, _ = await store.journal.create_session(project, session_id, patch, started_ms)
    return stream.key


async def test_a_link_is_known_from_both_ids(two_handles: tuple[Store, Store]) -> None:
    """On every node, in its project only, and as an event of both users that names neither."""
    one, other = two_handles
    assert await link(one)
    assert ["ann", "tel"] == await partners(other, "tel", "ann")
    assert [None, None] == await partners(other, "tel", "ann", project="q")
    assert not await link(other, link_id="l2"), "the same request again"
    for user_id in ("ann", "tel"):
        assert [{"type": "user.linked", "link_id": "l1"}] == await events_of(other, user_id)


@pytest.mark.parametrize("user_id", ["ann", "tel"])
async def test_a_link_is_removed_from_either_id(store: Store, user_id: str) -> None:
    """Once; then each may have another one."""
    await link(store)
    assert await store.users.unlink("p", user_id, NOW)
    assert not await store.users.unlink("p", user_id, NOW)
    assert not await store.users.unlink("p", "no one", NOW)
    assert [None, None] == await partners(store, "tel", "ann")
    removed = {"type": "user.unlinked", "link_id": "l1", "reason": "removed"}
    assert [removed] == (await events_of(store, "ann"))[1:] == (await events_of(store, "tel"))[1:]
    assert await link(store, "ann", "ben")


async def test_an_id_has_one_other_id_at_most(store: Store) -> None:
    """Neither itself, nor a second one, nor a circle; the sentence says what would be right."""
    await link(store)
    assert "name another id" in await sentence_of(link(store, "ann", "ann"))
    assert "linked already" in await sentence_of(link(store, "ann", "tel"))
    for user_id, other_id, place in (
        ("tel", "ben", "of the path"),
        ("ann", "ben", "of the path"),
        ("ben", "ann", "`user_id`"),
        ("ben", "tel", "`user_id`"),
    ):
        sentence = await sentence_of(link(store, user_id, other_id))
        assert place in sentence
        assert "DELETE" in sentence
    assert None is await store.journal.find_user("p", "ben")
    assert ["ann", "tel", None] == await partners(store, "tel", "ann", "ben")


async def test_of_two_links_at_once_one_is_made(two_handles: tuple[Store, Store]) -> None:
    """On whatever nodes: no id is linked on one side only, or twice."""
    one, other = two_handles
    tries = [link(one, "a", "b"), link(other, "b", "c"), link(one, "c", "a"), link(other, "b", "a")]
    made = await asyncio.gather(*tries, return_exceptions=True)
    assert [True] == [each for each in made if not isinstance(each, BaseException)]
    assert all(isinstance(each, Refused) for each in made if each is not True), made
    linked = {user_id: partner for user_id in "abc" if (partner := (await partners(one, user_id))[0]) is not None}
    assert 2 == len(linked)
    assert all(user_id == linked[partner] for user_id, partner in linked.items())


async def test_a_link_is_refused_where_the_bytes_are_used_up(store: Store) -> None:
    """It is something that a caller wants stored; to remove one is always allowed."""
    await link(store)
    store.set_quotas(Quotas(stored_bytes=1))
    with pytest.raises(QuotaExceeded):
        await link(store, "ben", "bob")
    assert await store.users.unlink("p", "ann", NOW)


# What follows a link


@pytest.mark.parametrize("user_id", ["ann", "tel"])
async def test_lists_of_sessions_have_both(store: Store, user_id: str) -> None:
    """In one order, page by page, whatever else is asked for; and no one else's."""
    for number in range(12):
        await call(store, f"s{number}", ("ann", "tel", "ben")[number % 3], NOW + number)
    await link(store)
    wanted = SessionFilter(project="p", user_id=user_id, limit=3)
    expected = [f"s{number}" for number in reversed(range(12)) if number % 3 < 2]
    paged = [stream.id async for page in store.journal.list_pages(wanted) for stream in page]
    assert expected == paged
    assert 8 == await store.journal.count_sessions(wanted) == await store.overviews.count_overviews(wanted, 100)
    slim, after = list[str](), None
    while True:
        page = await store.overviews.list_overviews(SessionFilter(project="p", user_id=user_id, limit=3, after=after))
        slim += [row.session_id for row in page.rows]
        if page.after is None:
            break
        after = page.after
    assert expected == slim
    for more in ({"state": "running"}, {"started_after": NOW - 1}, {"label": ("line", "ann")}):
        narrowed: Any = {"project": "p", "user_id": user_id, **more}
        chosen = [one for one in expected if "label" not in more or int(one[1:]) % 3 == 0]
        assert chosen == await listed_ids(store, **{name: narrowed[name] for name in narrowed if name != "project"})
    keys = tuple(stream.key for stream in await store.journal.list_sessions(SessionFilter(project="p")))
    of_keys = await store.overviews.list_overviews(SessionFilter(project="p", user_id=user_id, keys=keys))
    assert expected == [row.session_id for row in of_keys.rows]
    alone = SessionFilter(project="p", user_id=user_id, of_id_alone=True)
    assert 4 == await store.journal.count_sessions(alone) == len(await store.journal.list_sessions(alone))
    assert 4 == len((await store.overviews.list_overviews(alone)).rows)


@pytest.mark.parametrize("user_id", ["ann", "tel"])
async def test_memories_of_either_are_those_of_both(store: Store, user_id: str) -> None:
    """In lists and by words, also where a user is one of several, or left out."""
    streams = {name: await stream_of(store, name) for name in ("ann", "tel", "ben")}
    for place, name in enumerate(("ann", "tel", "ben", "ann")):
        await remember(store, "abcd"[place], stream=streams[name], created_ms=NOW + place)
    await link(store)
    for conditions, expected in (
        ({"user_ids": AnyOf((user_id,))}, "dba"),
        ({"user_ids": AnyOf((user_id, None))}, "dba"),
        ({"user_ids": AnyOf((user_id, "ben"))}, "dcba"),
        ({"user_ids": NoneOf((user_id,))}, "c"),
        ({"user_ids": NoneOf((user_id, "ben"))}, ""),
        ({"user_ids": AnyOf((user_id,)), "after": (NOW + 3, "d")}, "ba"),
        ({"user_ids": AnyOf((user_id,)), "limit": 2}, "db"),
        ({"user_ids": AnyOf((user_id,)), "of_ids_alone": True}, "da" if user_id == "ann" else "b"),
        ({"user_ids": NoneOf((user_id,)), "of_ids_alone": True}, "cb" if user_id == "ann" else "dca"),
    ):
        assert [*expected] == await listed(store, **conditions), conditions
        if not {"after", "limit"} & conditions.keys():
            assert set(expected) == set(await found(store, "walnut", **conditions)), conditions


@pytest.mark.parametrize("user_id", ["ann", "tel"])
async def test_what_was_heard_is_found_by_either(store: Store, user_id: str) -> None:
    """By words and by vectors; and as rare as it is in what the one person said."""
    await store.transcript_vectors.prepare_vectors()
    keys = [
        await index_call(store, f"{name}-call", f"I am {name} and like walnuts.", given={"user_id": name})
        for name in ("ann", "tel", "ben")
    ]
    texts = await store.transcript_vectors.find_without_vector(EMBEDDER, keys, 100)
    await store.transcript_vectors.save_vectors(EMBEDDER, [(text, vector_of(text.text)) for text in texts])
    assert [f"I am {user_id} and like walnuts."] == [
        one.text for one in await search(store, "walnuts", user_id=user_id)
    ]
    await link(store)
    expected = {"I am ann and like walnuts.", "I am tel and like walnuts."}
    assert expected == {one.text for one in await search(store, "walnuts", user_id=user_id)}
    scope = await store.users.query_scope(Scope("p", user_id=user_id))
    vector = vector_of("walnuts")
    assert vector is not None
    near = await store.transcript_vectors.find_near(VectorQuery(scope, EMBEDDER, vector))
    assert expected == {one.text for one in near.found}
    assert {*keys[:2]} == {*await store.transcript_index.find_sessions(scope, query_words("walnuts"), 10)}
    assert set() == {one.text for one in await search(store, "walnuts", user_id=user_id, namespace="shop")}


# Erasure


@pytest.mark.parametrize("user_id", ["ann", "tel"])
async def test_the_erasure_of_an_id_removes_its_link(store: Store, user_id: str) -> None:
    """From the other's row as well, whose journal says so without a name."""
    other_id = {"ann": "tel", "tel": "ann"}[user_id]
    await link(store)
    user = await store.journal.find_user("p", user_id)
    assert user is not None
    await store.retention.erase(user.key, NOW)
    assert [None, None] == await partners(store, user_id, other_id)
    erased = {"type": "user.unlinked", "link_id": "l1", "reason": "erased"}
    assert erased == (await events_of(store, other_id))[-1]
    left = await store.journal.find_user("p", other_id)
    assert left is not None
    assert {} == left.config
    assert await link(store, "ben", other_id)


async def test_a_link_and_an_erasure_at_once_end_in_one_of_two_orders(two_handles: tuple[Store, Store]) -> None:
    """The id is linked from both sides, as a new user, or from none."""
    one, other = two_handles
    for number in range(20):
        user_id = f"u{number}"
        user = await one.journal.ensure_user("p", user_id, NOW)
        await asyncio.gather(link(one, user_id, f"other{number}", f"l{number}"), other.retention.erase(user.key, NOW))
        linked, back = await partners(one, user_id, f"other{number}")
        assert (linked, back) in {(None, None), (f"other{number}", user_id)}
        now = await one.journal.find_user("p", user_id)
        assert (linked is None) == (now is None)


async def test_an_erased_user_gets_no_session_that_has_ended(store: Store) -> None:
    """None that began before, and no other as long as the id has not come back; there is no name in the mark."""
    await store.users.mark_erased("p", "ann", NOW + 10)
    for session_id, started_ms in (("before", NOW + 10), ("after", NOW + 11)):
        await ended(store, session_id, started_ms)
        with pytest.raises(Refused) as caught:
            await give(store, session_id, "ann")
        assert "user_erased" == caught.value.code
        await give(store, session_id, "ben")
    await ended(store, "again", NOW + 12)
    await store.users.mark_erased("p", "ann", NOW + 11)
    await call(store, "new", "ann", NOW + 12)
    assert "ann" == (await give(store, "again", "ann")).config["user_id"]
    await ended(store, "elsewhere", NOW, project="q")
    assert "ann" == (await give(store, "elsewhere", "ann", project="q")).config["user_id"]
    assert 2 == len(await store.journal.list_sessions(SessionFilter(project="p", user_id="ann")))


async def ended(store: Store, session_id: str, started_ms: int, project: str = "p") -> None:
    """A session without a user, which is over."""
    stream, _ = await store.journal.create_session(project, session_id, validate_config({}), started_ms)
    await store.journal.close_session(stream.key, SessionEnding(started_ms, "left"), f"n-{session_id}", started_ms)


async def give(store: Store, session_id: str, user_id: str, project: str = "p") -> Stream:
    """The session after it was given to a user."""
    stream = await store.journal.get_session(project, session_id)
    patch = validate_config({"user_id": user_id})
    return await store.journal.change_config(stream.key, patch, b'{"type":"session.update"}', NOW, after_end=True)
