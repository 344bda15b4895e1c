"""Calls at other stacks that are observed: one for a session, on one node, until it is over."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

from msgspec.structs import replace

from tests.support.stores.contract import NOW, begin_node, open_key
from voicemem.store.directory import ApiKey
from voicemem.store.observations import Observation
from voicemem.store.port import Store


async def observed(store: Store, name: str, call: str = "rtc_1") -> Observation:
    """A new observation of a new session."""
    return Observation(
        key=await open_key(store, name), dialect="openai-realtime", call=call, started_ms=NOW, changed_ms=NOW
    )


async def test_an_observation_is_kept(store: Store) -> None:
    """It is found by its session, and listed with that as long as it goes on."""
    one, other = await observed(store, "a"), await observed(store, "b", "call Ü")
    assert None is await store.observations.find_observation(one.key)
    for observation in (one, other):
        assert observation == await store.observations.begin_observation(observation, "p", 10)

    assert [one, other] == [await store.observations.find_observation(key) for key in (one.key, other.key)]
    assert [(one, "a", "running"), (other, "b", "running")] == [
        (listed.observation, listed.session_id, listed.state) for listed in await store.observations.list_observations()
    ]
    assert await store.observations.change_observation(one.key, None, "stopped", None, None, NOW + 1)
    assert [other.key] == [listed.observation.key for listed in await store.observations.list_observations()]


async def test_one_call_is_observed_for_a_session(store: Store) -> None:
    """A second one is not begun while the first goes on; after that it takes its place."""
    one = await observed(store, "a")
    other = replace(one, call="rtc_2", started_ms=NOW + 5)
    await store.observations.begin_observation(one, "p", 10)

    assert one == await store.observations.begin_observation(other, "p", 10)
    await store.observations.change_observation(one.key, None, "failed", "refused", 401, NOW + 1)
    assert other == await store.observations.begin_observation(other, "p", 10)
    assert other == await store.observations.find_observation(one.key)


async def test_as_many_as_are_allowed(two_handles: tuple[Store, Store]) -> None:
    """Of two that begin at once where there is room for one, one does; nothing is kept of the other."""
    observations = [await observed(two_handles[0], name) for name in ("a", "b")]
    begun = await asyncio.gather(
        *(
            store.observations.begin_observation(one, "p", 1)
            for store, one in zip(two_handles, observations, strict=True)
        )
    )
    assert 1 == len([one for one in begun if one is not None])
    assert 1 == len(await two_handles[0].observations.list_observations())


async def test_an_observation_belongs_to_one_node(store: Store) -> None:
    """Who claims it first has it until it is retired; only that node says how it stands."""
    one = await observed(store, "a")
    await store.observations.begin_observation(one, "p", 10)
    for token in ("n1", "n2"):
        await begin_node(store, token)

    assert [one.key] == await store.observations.claim_observations([one.key, one.key + 100], "n1")
    assert [] == await store.observations.claim_observations([one.key], "n2")
    assert [one.key] == await store.observations.claim_observations([one.key], "n1")
    assert not await store.observations.change_observation(one.key, "n2", "observing", None, None, NOW + 1)
    assert await store.observations.change_observation(one.key, "n1", "observing", None, None, NOW + 1)
    assert replace(one, state="observing", connections=1, changed_ms=NOW + 1, node="n1") == (
        await store.observations.find_observation(one.key)
    )
    await store.nodes.retire_node("n1", NOW)
    assert [one.key] == await store.observations.claim_observations([one.key], "n2")


async def test_what_is_over_goes_on_no_more(store: Store) -> None:
    """It has no node, and is neither claimed nor changed."""
    one = await observed(store, "a")
    await store.observations.begin_observation(one, "p", 10)
    await begin_node(store, "n1")
    await store.observations.claim_observations([one.key], "n1")

    assert await store.observations.change_observation(one.key, "n1", "failed", "refused", 401, NOW + 9)
    over = replace(one, state="failed", reason="refused", status=401, changed_ms=NOW + 9, ended_ms=NOW + 9)
    assert over == await store.observations.find_observation(one.key)
    assert not await store.observations.change_observation(one.key, None, "stopped", None, None, NOW + 10)
    assert [] == await store.observations.claim_observations([one.key], "n1")


async def test_an_erased_session_is_not_observed(store: Store) -> None:
    """None begins for it; one that goes on says so, and is deleted with its content."""
    one, other = await observed(store, "a"), await observed(store, "b")
    await store.observations.begin_observation(one, "p", 10)
    for observation in (one, other):
        await store.retention.erase(observation.key, NOW)

    assert [(one.key, "erased")] == [
        (row.observation.key, row.state) for row in await store.observations.list_observations()
    ]
    assert None is await store.observations.begin_observation(other, "p", 10)
    while await store.retention.delete_erased([one.key]):
        pass
    assert (None, []) == (
        await store.observations.find_observation(one.key),
        await store.observations.list_observations(),
    )


async def test_a_project_leaves_some_to_others(store: Store) -> None:
    """Where other projects have keys, it has no more than are left for all; alone it may have them all."""
    one, two, three = [await observed(store, name) for name in "abc"]
    assert one == await store.observations.begin_observation(one, "p", 3)
    await store.directory.add_key(ApiKey("k", "other", "k", b"k", ("ingest",), NOW))
    assert two == await store.observations.begin_observation(two, "p", 3)
    assert None is await store.observations.begin_observation(three, "p", 3)
