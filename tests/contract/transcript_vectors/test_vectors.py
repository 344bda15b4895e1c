"""Vectors of messages are kept with their messages, compared within a scope, and go with them."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.stores.contract import NOW, example_numbers
from tests.support.stores.heard import index_call, passages, reindex
from tests.support.stores.vectors import EMBEDDER, vector_of
from voicemem.store.port import Store
from voicemem.store.scopes import Scope
from voicemem.store.transcript_search import FoundMessage, MessagePlace
from voicemem.store.vectors import NearestTexts, TextToEmbed, VectorQuery


@pytest.fixture
async def store(store: Store) -> Store:
    """A store that compares vectors."""
    assert (await store.transcript_vectors.prepare_vectors()).max_compared > 0
    return store


async def embed(store: Store, *keys: int, embedder: str = EMBEDDER) -> list[TextToEmbed]:
    """Give all messages of these sessions vectors; those that had none."""
    texts = await store.transcript_vectors.find_without_vector(embedder, keys, 1_000)
    await store.transcript_vectors.save_vectors(embedder, [(one, vector_of(one.text)) for one in texts])
    return texts


async def embed_call(store: Store, session_id: str, *texts: str, **more: Any) -> int:
    key = await index_call(store, session_id, *texts, **more)
    await embed(store, key)
    return key


async def near(
    store: Store,
    text: str,
    project: str = "p",
    also: Sequence[MessagePlace] = (),
    embedder: str = EMBEDDER,
    **more: Any,
) -> NearestTexts[FoundMessage]:
    scope = Scope(project, *(more.pop(name, None) for name in ("namespace", "user_id", "session_id")))
    vector = vector_of(text)
    assert vector is not None
    whose = await store.users.query_scope(scope)
    return await store.transcript_vectors.find_near(VectorQuery(whose, embedder, vector, also=also, **more))


async def near_texts(store: Store, text: str, **more: Any) -> list[str]:
    return [message.text for message in (await near(store, text, **more)).found]


async def test_the_nearest_messages_are_first(store: Store) -> None:
    """With their cosines, and where they are from; one without a vector is not found."""
    key = await embed_call(store, "s", "north it is", "east then", "northeast", "nothing")
    found = (await near(store, "north")).found
    assert [message.text for message in found] == ["north it is", "northeast", "east then"]
    assert [round(message.score, 4) for message in found] == [1.0, 0.7071, 0.0]
    assert found[0][:-1] == (key, 1, 0, 10, "user", NOW, "north it is")
    assert await near_texts(store, "north", limit=1) == ["north it is"]


async def test_what_has_no_vector_is_found_out(store: Store) -> None:
    """By session, and in pages over all; what is to have none has been seen to, and other embedders' do not count."""
    keys = [await index_call(store, f"s{number}", "north", "nothing") for number in range(5)]
    assert await behind(store) == set(keys)
    assert [one.text for one in await store.transcript_vectors.find_without_vector(EMBEDDER, keys[:1], 10)] == [
        "north",
        "nothing",
    ]
    assert len(await store.transcript_vectors.find_without_vector(EMBEDDER, keys, 3)) == 3
    assert await store.transcript_vectors.count_without_vector(EMBEDDER) == 10
    assert len(await embed(store, *keys[:3])) == 6
    assert await behind(store) == set(keys[3:])
    assert await store.transcript_vectors.find_without_vector(EMBEDDER, keys[:3], 10) == []
    assert await store.transcript_vectors.count_without_vector(EMBEDDER) == 4
    assert await behind(store, "axes 5") == set(keys)
    assert await store.transcript_vectors.find_without_vector("axes 5", [], 10) == []


async def behind(store: Store, embedder: str = EMBEDDER, limit: int = 2) -> set[int]:
    found: list[int] = []
    after: int | None = 0
    while after is not None:
        check = await store.transcript_vectors.check_vectors(embedder, after, limit)
        found += check.behind
        after = check.through_key
    assert len(found) == len(set(found))
    return set(found)


async def test_another_embedder_takes_the_place_of_the_first(store: Store) -> None:
    """Vectors of two are never compared; those of the older one go as the new ones are made."""
    key = await embed_call(store, "s", "north")
    assert await near_texts(store, "north", embedder="axes 4 of another") == []
    await embed(store, key, embedder="axes 4 of another")
    assert await near_texts(store, "north", embedder="axes 4 of another") == ["north"]
    assert await near_texts(store, "north") == []


async def test_vectors_follow_their_messages(store: Store) -> None:
    """A message that changes loses its vector, one that stays keeps it; what changed meanwhile gets none."""
    key = await index_call(store, "s", "north", "east")
    late = [
        (one, vector_of(one.text)) for one in await store.transcript_vectors.find_without_vector(EMBEDDER, [key], 10)
    ]
    await embed(store, key)
    await reindex(store, key, {1: passages(1, "north", "northeast")}, position=2, since=1)
    assert await near_texts(store, "north") == ["north"]
    await store.transcript_vectors.save_vectors(EMBEDDER, late)
    assert await near_texts(store, "north") == ["north"]
    assert [one.text for one in await embed(store, key)] == ["northeast"]
    await reindex(store, key, {1: []}, position=3, since=2)
    await store.transcript_vectors.save_vectors(EMBEDDER, late)
    assert await near_texts(store, "north") == []
    assert await store.transcript_vectors.count_without_vector(EMBEDDER) == 0


async def test_a_search_compares_within_its_scope(store: Store) -> None:
    """Project, namespace, user, session and time each narrow it."""
    for user in ("ann", "ben"):
        for namespace in ("shop", "bank"):
            config = {"user_id": user, "labels": {"namespace": namespace}}
            await embed_call(store, f"{user}-{namespace}", f"north {user} {namespace}", given=config)
    await embed_call(store, "nobody", "north nobody")
    other = await index_call(store, "ann-shop", "north of another project", project="q", given={"user_id": "ann"})
    await embed(store, other)
    assert len(await near_texts(store, "north")) == 5
    assert sorted(await near_texts(store, "north", user_id="ann")) == ["north ann bank", "north ann shop"]
    assert sorted(await near_texts(store, "north", namespace="shop")) == ["north ann shop", "north ben shop"]
    assert await near_texts(store, "north", user_id="ben", namespace="bank") == ["north ben bank"]
    assert await near_texts(store, "north", session_id="nobody") == ["north nobody"]
    assert await near_texts(store, "north", project="q") == ["north of another project"]
    assert await near_texts(store, "north", user_id="ann", session_id="ben-shop") == []
    assert await near_texts(store, "north", user_id="ann", until_ms=NOW) == []
    assert len(await near_texts(store, "north", user_id="ann", since_ms=NOW, until_ms=NOW + 1)) == 2


names = st.sampled_from(["ann", "ben", 'a" OR b', "1 OR 1", "核桃", "e\u0301"])


@examples(0.2)
@given(st.lists(st.tuples(names, names), min_size=1, max_size=5), names, names)
async def test_tenants_are_never_compared(
    store: Store, calls: list[tuple[str, str]], user_id: str, namespace: str
) -> None:
    """Whatever users and namespaces are called, in two projects."""
    number = next(example_numbers)
    projects = [f"p{number}", f"q{number}"]
    for place, (user, space) in enumerate(calls):
        config = {"user_id": user, "labels": {"namespace": space}}
        key = await index_call(store, f"s{number}-{place}", f"north {place}", project=projects[place % 2], given=config)
        await embed(store, key)
    for first, project in enumerate(projects):
        own = {f"north {place}": calls[place] for place in range(first, len(calls), 2)}
        found = await near_texts(store, "north", project=project, user_id=user_id, namespace=namespace)
        assert sorted(found) == [text for text, call in own.items() if call == (user_id, namespace)]
        found = await near_texts(store, "north", project=project, user_id=user_id)
        assert sorted(found) == [text for text, call in own.items() if call[0] == user_id]


async def test_the_nearness_of_given_messages_is_told(store: Store) -> None:
    """Also of those that are not among the best; not of those without a vector."""
    key = await embed_call(store, "s", "north", "east", "nothing")
    places = [MessagePlace(key, 1, number) for number in range(4)]
    answer = await near(store, "northeast", also=places, limit=1)
    assert {place: round(cosine, 4) for place, cosine in answer.also.items()} == {places[0]: 0.7071, places[1]: 0.7071}
    assert len(answer.found) == 1
    assert not answer.is_capped


async def test_a_session_that_gets_another_user_takes_its_vectors_along(store: Store) -> None:
    """They are made again, as its words are indexed again."""
    from voicemem.config.session import validate_config

    key = await embed_call(store, "s", "north", given={"user_id": "ann"})
    await store.journal.change_config(key, validate_config({"user_id": "ben"}), b'{"type":"session.update"}', NOW)
    await reindex(store, key, {1: passages(1, "north")}, position=2)
    await embed(store, key)
    assert await near_texts(store, "north", user_id="ann") == []
    assert await near_texts(store, "north", user_id="ben") == ["north"]


async def test_vectors_go_with_an_erased_session_and_with_the_index(store: Store) -> None:
    """None is left, none can be added, and others keep theirs."""
    texts = [f"north {number}" for number in range(50)]
    key, other = await embed_call(store, "s", *texts), await embed_call(store, "other", "north of another")
    late = [(TextToEmbed(MessagePlace(key, 1, 0), "north 0"), vector_of("north"))]
    await store.retention.erase(key, NOW)
    while await store.retention.delete_erased([key]):
        pass
    await store.transcript_vectors.save_vectors(EMBEDDER, late)
    assert await near_texts(store, "north") == ["north of another"]
    assert await behind(store) == set()
    await store.transcript_index.clear_index()
    assert await near_texts(store, "north") == []
    await reindex(store, other, {1: passages(1, "north of another")}, position=5)
    assert await behind(store) == {other}


async def test_no_more_is_compared_than_is_allowed(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    """The newest sessions come first, and the answer says that there is more."""
    for module in ("sqlite.store", "postgresql.store"):
        monkeypatch.setattr(f"voicemem.store.{module}.MAX_COMPARED", 3)
    for number in range(4):
        await embed_call(store, f"s{number}", f"north {number}")
    answer = await near(store, "north", limit=2)
    assert answer.is_capped
    assert len(answer.found) == 2
    assert "north 3" in {message.text for message in (await near(store, "north")).found}
    assert not (await near(store, "north", session_id="s0")).is_capped
    assert not (await near(store, "north", until_ms=NOW)).is_capped
