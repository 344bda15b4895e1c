"""The index follows the journals, forgets what is erased, and can be thrown away."""

from __future__ import annotations

from functools import partial

from msgspec.structs import replace

from tests.support.callers.rest import fresh_id
from tests.support.rows import every_row
from tests.support.stores.contract import NOW, append_offers, begin_node, offers, open_key
from tests.support.stores.heard import found_texts, index_call, passages, reindex
from voicemem.config.session import validate_config
from voicemem.store.port import Store
from voicemem.store.scopes import scope_of
from voicemem.store.transcript_index import CHARACTERS_AT_ONCE, TURNS_AT_ONCE, TranscriptUpdate, portions


async def test_what_has_changed_is_replaced(store: Store) -> None:
    """A turn that is given has its new messages only; the others stay as they are."""
    key = await index_call(store, "s", "walnuts", "noted")
    assert await reindex(store, key, {2: passages(2, "hazelnuts")}, position=2, since=1) == []
    assert await reindex(store, key, {1: passages(1, "almonds", "noted")}, position=3, since=2) == []
    assert [await found_texts(store, word) for word in ("walnuts", "hazelnuts")] == [[], ["hazelnuts"]]
    assert await found_texts(store, "almonds") == ["almonds", "noted"]
    assert await reindex(store, key, {2: []}, position=4, since=3) == []
    assert await found_texts(store, "hazelnuts") == []
    assert await reindex(store, key, {3: passages(3, "pecans")}, position=5) == []
    assert [await found_texts(store, word) for word in ("almonds", "pecans")] == [[], ["pecans"]]


async def test_a_part_needs_what_it_is_a_part_of(store: Store) -> None:
    """Where the index is behind, or knows nothing of the session, it asks for everything."""
    key = await open_key(store)
    assert [key] == await reindex(store, key, {1: passages(1, "walnuts")}, position=3, since=2)
    assert await reindex(store, key, {1: passages(1, "walnuts")}, position=3) == []
    assert [key] == await reindex(store, key, {1: passages(1, "almonds")}, position=6, since=5)
    assert await found_texts(store, "walnuts almonds") == ["walnuts"]


@every_row("user", ["ann", "ben"])
async def test_a_long_update_goes_in_by_parts(store: Store, user: str) -> None:
    """What was put in before the process ended is found, and known not to be all; so if the user has changed."""
    session_id = fresh_id()
    key = await open_key(store, session_id, {"user_id": "ann"})
    await reindex(store, key, {1: passages(1, "pecans")})
    for number in range(3):
        config = validate_config({"user_id": user, "labels": {"number": f"{number}"}})
        await store.journal.change_config(key, config, b'{"type":"session.update"}', NOW)
    (stream,) = await store.journal.find_sessions("p", [key])
    long = {turn: passages(turn, f"walnut {turn} " + "x" * CHARACTERS_AT_ONCE) for turn in (1, 2, 3)}
    update = TranscriptUpdate(key, 3, scope_of(stream), stream.started_ms, long)
    first, *others = portions([update])
    index = store.transcript_index
    assert len(others) == 2
    assert await index.index.write_readable([key], partial(index.index_parts, first)) == []
    assert len(await found_texts(store, "walnut pecans", session_id=session_id)) == 1
    assert key in [one.key for one in (await index.check_index(key - 1, 1)).behind]
    assert [key] == await reindex(store, key, {4: passages(4, "almonds")}, position=4, since=3)
    assert await index.index_messages([update]) == []
    assert len(await found_texts(store, "walnut pecans", session_id=session_id)) == 3
    await index.clear_index()
    assert [key] == await index.index.write_readable([key], partial(index.index_parts, others[0]))


async def test_a_turn_of_very_many_messages_goes_in_by_parts(store: Store) -> None:
    """Its messages are replaced like those of many turns, in transactions of bounded size."""
    texts = [f"walnut {number}" for number in range(5 * TURNS_AT_ONCE)]
    key = await index_call(store, "s", *texts, "pecan")
    (stream,) = await store.journal.find_sessions("p", [key])
    turns = {1: passages(1, *texts[:-1]), 2: passages(2, "almond"), 3: []}
    update = TranscriptUpdate(key, 2, scope_of(stream), stream.started_ms, turns)
    numbers = [(part.turns, part.first, len(part.passages)) for parts in portions([update]) for part in parts]
    assert numbers == [([1], 0, 400), ([1], 400, 400), ([1], 800, 199), ([2, 3], 0, 1)]
    assert await store.transcript_index.index_messages([update]) == []
    assert len(await found_texts(store, "walnut", limit=2_000)) == len(texts) - 1
    assert await found_texts(store, "pecan almond") == ["almond"]


async def test_an_update_may_come_in_several(store: Store) -> None:
    """Each brings some turns; turns that none of them names are gone, and the session is indexed with the last."""
    key = await index_call(store, "s", "pecans")
    await reindex(store, key, {1: passages(1, "pecans"), 2: passages(2, "walnuts")}, position=2)
    (stream,) = await store.journal.find_sessions("p", [key])
    first = TranscriptUpdate(key, 3, scope_of(stream), stream.started_ms, {2: passages(2, "walnuts")}, rest=[3])
    assert await store.transcript_index.index_messages([first]) == []
    assert await found_texts(store, "pecans walnuts") == ["walnuts"]
    assert [key] == await reindex(store, key, {4: passages(4, "almonds")}, position=4, since=3)
    last = replace(first, turns={3: passages(3, "almonds")}, rest=(), continues=True)
    assert await store.transcript_index.index_messages([last]) == []
    assert await found_texts(store, "walnuts almonds") == ["almonds", "walnuts"]
    assert await reindex(store, key, {4: passages(4, "almonds")}, position=4, since=3) == []


async def test_old_news_change_nothing(store: Store) -> None:
    """What another node has indexed up to a later position stays."""
    key = await index_call(store, "s", "walnuts")
    await reindex(store, key, {1: passages(1, "almonds")}, position=9)
    assert await reindex(store, key, {1: passages(1, "walnuts")}, position=8) == []
    assert await reindex(store, key, {1: passages(1, "pecans")}, position=8, since=2) == []
    assert await found_texts(store, "walnuts almonds pecans") == ["almonds"]


async def test_a_session_that_gets_another_user_moves_as_a_whole(store: Store) -> None:
    """It is found under the new one only, and a part is not enough for that."""
    key = await index_call(store, "s", "walnuts", given={"user_id": "ann"})
    await store.journal.change_config(key, validate_config({"user_id": "ben"}), b'{"type":"session.update"}', NOW)
    assert [key] == await reindex(store, key, {2: passages(2, "almonds")}, position=2, since=1)
    assert await reindex(store, key, {1: passages(1, "walnuts"), 2: passages(2, "almonds")}, position=2) == []
    assert await found_texts(store, "walnuts almonds", user_id="ann") == []
    assert len(await found_texts(store, "walnuts almonds", user_id="ben")) == 2


async def test_an_erased_session_leaves_the_index(store: Store) -> None:
    """Its messages are deleted with its content, and it is never indexed again."""
    key = await index_call(store, "s", *(f"walnut {number}" for number in range(50)))
    other = await index_call(store, "other", "walnut of another")
    await store.retention.erase(key, NOW)
    while await store.retention.delete_erased([key]):
        pass
    assert await found_texts(store, "walnut", limit=100) == ["walnut of another"]
    for since in (None, 1):
        erased = await store.journal.find_sessions("p", [key])
        assert erased[0].state == "erased"
        assert await reindex(store, key, {1: passages(1, "walnut")}, position=5, since=since) == []
    assert await found_texts(store, "walnut", limit=100) == ["walnut of another"]
    assert await store.retention.finish_erased()
    assert await reindex(store, other, {1: []}, position=2) == []


async def test_sessions_that_have_grown_are_found_by_their_positions(store: Store) -> None:
    """In pages over all projects; without those that are indexed to their end, users, and erased ones."""
    keys = []
    for number in range(7):
        keys.append(await open_key(store, f"s{number}"))
        await append_offers(store, keys[-1], *offers(1, 2))
    await store.journal.ensure_user("p", "ann", NOW)
    await store.retention.erase(keys[6], NOW)
    await reindex(store, keys[0], {1: []}, position=2)
    await reindex(store, keys[1], {1: []}, position=1)
    assert set(keys[1:6]) == await behind(store, 3)
    for key in keys[1:6]:
        await reindex(store, key, {1: []}, position=2)
    assert set() == await behind(store, 100)
    await store.transcript_index.clear_index()
    assert set(keys[:6]) == await behind(store, 2)
    assert await store.transcript_index.count_sessions_to_index() == 6


async def behind(store: Store, limit: int) -> set[int]:
    """The keys of the sessions that are not indexed to their end."""
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        check = await store.transcript_index.check_index(after, limit)
        found += [stream.key for stream in check.behind]
        after = check.through_key
    assert len(found) == len(set(found))
    return set(found)


async def test_an_index_that_was_cleared_is_empty(store: Store) -> None:
    """Nothing is found, and parts are not enough."""
    key = await index_call(store, "s", "walnuts")
    await store.transcript_index.clear_index()
    assert await found_texts(store, "walnuts") == []
    assert [key] == await reindex(store, key, {2: passages(2, "almonds")}, position=2, since=1)


async def test_one_node_at_a_time_looks_at_all_sessions(two_handles: tuple[Store, Store]) -> None:
    """Where several may, a claim keeps the others from it until it is over."""
    one, other = two_handles
    await begin_node(one, "a")
    await begin_node(other, "b")
    assert await one.transcript_index.claim_index_check("a", NOW, 1_000)
    assert await one.transcript_index.claim_index_check("a", NOW, 1_000)
    shared = await other.transcript_index.claim_index_check("b", NOW, 1_000)
    assert await other.transcript_index.claim_index_check("b", NOW + 1_001, 1_000)
    assert shared == (type(one).__name__ != "PostgresqlStore")
