"""Nodes on one store: who is connected to which, what they hold, and what becomes of it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable

import pytest

from tests.support.stores.contract import (
    END,
    HOOK,
    IDLE_MS,
    LEASE_MS,
    NODE_LEASE_MS,
    NOW,
    REOPEN_MS,
    append_batch,
    append_offers,
    begin_node,
    claim_one_delivery,
    close,
    closed_session,
    end_offer,
    hang_up,
    offer,
    open_key,
    open_session,
    reload,
    stored_at,
)
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.store.append_rules import EXPECT_AGAIN_MS, Batch
from voicemem.store.nodes import SUMMARY
from voicemem.store.port import Store
from voicemem.store.records import Snapshot
from voicemem.store.streams import END_GRACE_MS, EXPECTED_BACK_MS

Claim = Callable[[Store], Callable[[str, int, int, int], Awaitable[list[int]]]]
"""The method of a store that claims sessions for some work."""
Finish = Callable[[Store, list[int]], Awaitable[list[int]]]
"""Does the work for claimed sessions; the keys of those that it was done for."""


@pytest.fixture
async def nodes(two_handles: tuple[Store, Store]) -> tuple[Store, Store]:
    """Two handles on one store, of the nodes `a` and `b`."""
    for store, token in zip(two_handles, "ab", strict=True):
        await begin_node(store, token)
    return two_handles


class TestTwoHandles:
    """What happens on one node is so on the other: the rows of what broke when each knew its own connections only."""

    async def test_an_end_waits_for_a_producer_on_another_node(self, nodes: tuple[Store, Store]) -> None:
        """Last words of a producer that is connected elsewhere are stored."""
        one, other = nodes
        key = (await open_session(one, producer="asr", node="a")).stream.key
        await open_session(other, producer="llm", node="b")
        await append_offers(one, key, end_offer(1), producer="asr")
        assert await one.journal.close_ended(key, "n", NOW) is None
        assert stored_at(2, 3) == await append_offers(other, key, offer(1), end_offer(2), producer="llm")
        assert await other.journal.close_ended(key, "n", NOW) is not None

    async def test_one_producer_is_enough(self, nodes: tuple[Store, Store]) -> None:
        """A session is silent from the moment its last connection went, and due after its idle timeout."""
        one, other = nodes
        key = (await open_session(one, producer="asr", node="a")).stream.key
        await open_session(other, producer="llm", node="b")
        left = await hang_up(one, key, NOW + 1, producer="asr")
        assert left is not None
        assert None is left.silent_since_ms
        await hang_up(other, key, NOW + 2, producer="llm")
        assert NOW + 2 == (await reload(one, key)).silent_since_ms
        assert [key] == await one.journal.find_due(NOW + 2 + IDLE_MS, 10)

    async def test_the_order_of_a_late_leave_does_not_matter(self, nodes: tuple[Store, Store]) -> None:
        """A producer that has opened elsewhere is connected, whenever its old connection goes."""
        one, other = nodes
        key = (await open_session(one, node="a")).stream.key
        await open_session(other, node="b")
        assert await hang_up(one, key, epoch=1) is None
        assert None is (await reload(one, key)).silent_since_ms
        assert [(key, "main", 1)] == await one.nodes.find_superseded([(key, "main", 1), (key, "other", 1)])
        assert [] == await other.nodes.find_superseded([(key, "main", 2)])

    async def test_a_start_beside_another_node_changes_nothing(self, nodes: tuple[Store, Store]) -> None:
        """Connections, ends that wait, leases and claims of the other stay."""
        key = (await open_session(nodes[0], producer="asr", node="a")).stream.key
        await open_session(nodes[0], producer="llm", node="a")
        await append_offers(nodes[0], key, end_offer(1), producer="asr")
        await closed_session(nodes[0], "closed")
        assert 1 == len(await nodes[0].outbox.claim_deliveries(NOW, LEASE_MS, {}, 10, "a"))
        assert await nodes[0].claims.claim(SUMMARY, key, "a", NOW, LEASE_MS)
        before = await reload(nodes[0], key)
        await begin_node(nodes[1], "c", NOW + 1)
        assert before == await reload(nodes[1], key)
        assert [] == await nodes[1].outbox.claim_deliveries(NOW + 1, LEASE_MS, {}, 10, "c")
        assert not await nodes[1].claims.claim(SUMMARY, key, "c", NOW + 1, LEASE_MS)
        assert await nodes[1].journal.close_ended(key, "n", NOW + 1) is None

    async def test_a_name_is_taken_once(self, nodes: tuple[Store, Store]) -> None:
        """Of creations at once under one name exactly one succeeds, and it is free again after the close."""

        async def take(store: Store, number: int) -> int | None:
            try:
                given = validate_config({"name": "desk"})
                return (await store.journal.create_session("p", f"s{number}", given, NOW, takes_name=True))[0].key
            except Refused as refused:
                return None if refused.code == "session_exists" else -1

        taken = await asyncio.gather(*(take(store, number) for number, store in enumerate(nodes * 5)))
        (key,) = [one for one in taken if one is not None]
        await close(nodes[0], key)
        assert await take(nodes[1], 99) is not None

    async def test_a_node_that_is_gone_is_retired_once(self, nodes: tuple[Store, Store]) -> None:
        """When its lease is over another frees what it held: its sessions are silent, its producers expected back."""
        one, other = nodes
        key = (await open_session(one, "s", node="a")).stream.key
        shared = (await open_session(one, "t", producer="asr", node="a")).stream.key
        await open_session(other, "t", producer="llm", node="b")
        await other.nodes.renew_node("b", NOW + 10 * NODE_LEASE_MS)
        assert [] == await other.nodes.retire_lost_nodes(NOW + NODE_LEASE_MS - 1)
        later = NOW + NODE_LEASE_MS
        retired = await asyncio.gather(*(store.nodes.retire_lost_nodes(later) for store in nodes * 2))
        assert [["a"], [], [], []] == sorted(retired, reverse=True)
        assert [later, None] == [(await reload(other, each)).silent_since_ms for each in (key, shared)]
        assert not await one.nodes.renew_node("a", later + NODE_LEASE_MS)
        assert ["b"] == [node.token for node in await one.nodes.list_nodes()]

    async def test_the_end_of_a_node_gives_ends_their_grace_anew(self, nodes: tuple[Store, Store]) -> None:
        """Who was connected to it may still have last words; where no one has, the session is due at once."""
        one, other = nodes
        waits = (await open_session(one, "s", producer="asr", node="a")).stream.key
        await open_session(one, "s", producer="llm", node="a")
        ended = (await open_session(one, "t", producer="asr", node="a")).stream.key
        for key in (waits, ended):
            await append_offers(one, key, end_offer(1), producer="asr")
        later = NOW + END_GRACE_MS - 1
        assert await other.nodes.retire_node("a", later)
        assert not await other.nodes.retire_node("a", later)
        assert [ended] == await other.journal.find_due(later + END_GRACE_MS - 1, 10)
        assert END.reason == (await close(other, ended, None, now_ms=later)).reason
        assert await other.journal.close_ended(waits, "n", later + 1) is None
        assert [waits] == await other.journal.find_due(later + END_GRACE_MS, 10)
        assert await other.journal.close_ended(waits, "n", later + EXPECTED_BACK_MS) is not None

    async def test_the_end_of_a_node_frees_its_leases(self, nodes: tuple[Store, Store]) -> None:
        """Deliveries, claims and replies of it are for others at once; an old lease counts for nothing."""
        one, other = nodes
        closed = await closed_session(one)
        (leased,) = await one.outbox.claim_deliveries(NOW, LEASE_MS, {}, 10, "a")
        assert await one.claims.claim(SUMMARY, closed.key, "a", NOW, LEASE_MS)
        assert [closed.key] == await one.compaction.claim_compactable("a", NOW + REOPEN_MS, LEASE_MS, 10)
        await one.claims.begin_reply(closed.key, "item", "a")
        assert [] == await other.compaction.claim_compactable("b", NOW + REOPEN_MS, LEASE_MS, 10)
        await other.nodes.retire_node("a", NOW)
        assert leased.key == (await claim_one_delivery(other)).key
        assert await other.claims.claim(SUMMARY, closed.key, "b", NOW, LEASE_MS)
        assert [closed.key] == await other.compaction.claim_compactable("b", NOW + REOPEN_MS, LEASE_MS, 10)
        assert set() == await other.claims.list_replies(closed.key)

    async def test_replies_under_way_are_known_everywhere(self, nodes: tuple[Store, Store]) -> None:
        """From their begin to their end, by the items of their session."""
        one, other = nodes
        key = await open_key(one)
        await one.claims.begin_reply(key, "x", "a")
        await other.claims.begin_reply(key, "y", "b")
        assert {"x", "y"} == await one.claims.list_replies(key) == await other.claims.list_replies(key)
        await one.claims.end_reply(key, "x")
        assert ({"y"}, set()) == (await other.claims.list_replies(key), await other.claims.list_replies(key + 1))

    async def test_positions_are_seen_by_all(self, nodes: tuple[Store, Store]) -> None:
        """Where journals end, without streams that are erased or unknown."""
        one, other = nodes
        key, erased = await open_key(one), await open_key(one, "t")
        await append_offers(one, key, offer(1), offer(2))
        await one.retention.erase(erased, NOW)
        assert {key: 2} == await other.nodes.read_positions([key, erased, erased + 1])


class TestIncarnations:
    """A store that was restored, or that lost events, is another one."""

    async def test_another_incarnation_retires_every_node(self, nodes: tuple[Store, Store]) -> None:
        """No one is connected, and no lease holds; each node finds the new incarnation when it starts again."""
        one, other = nodes
        key = (await open_session(one, producer="asr", node="a")).stream.key
        before, secret = one.directory.incarnation, one.directory.cursor_secret
        assert await one.claims.claim(SUMMARY, key, "a", NOW, LEASE_MS)
        await other.nodes.renew_incarnation(NOW + 1)
        assert [] == await one.nodes.list_nodes()
        assert not await one.nodes.renew_node("a", NOW + NODE_LEASE_MS)
        await begin_node(one, "c")
        await begin_node(other, "d")
        assert before != one.directory.incarnation == other.directory.incarnation
        assert secret == one.directory.cursor_secret
        assert (await reload(one, key)).silent_since_ms is not None
        assert await other.claims.claim(SUMMARY, key, "d", NOW, LEASE_MS)

    async def test_a_store_that_is_what_it_was_stays_so(self, nodes: tuple[Store, Store]) -> None:
        """Neither a start of a node nor a look at the server changes the incarnation."""
        one, other = nodes
        before = one.directory.incarnation
        assert not one.nodes.is_displaced
        await one.nodes.settle(NOW)
        await begin_node(other, "c")
        assert await one.nodes.renew_node("a", NOW + NODE_LEASE_MS)
        assert before == one.directory.incarnation == other.directory.incarnation


class TestClaims:
    """Work that one node does at a time."""

    async def test_a_claim_holds_until_its_lease_is_over(self, nodes: tuple[Store, Store]) -> None:
        """Or until it is released; its node may claim again."""
        one, other = nodes
        key = await open_key(one)
        assert [True, True, False] == [await one.claims.claim(SUMMARY, key, node, NOW, LEASE_MS) for node in "aab"]
        await other.claims.release(SUMMARY, key, "b")
        assert not await other.claims.claim(SUMMARY, key, "b", NOW + LEASE_MS - 1, LEASE_MS)
        assert await other.claims.claim(SUMMARY, key, "b", NOW + LEASE_MS, LEASE_MS)
        await other.claims.release(SUMMARY, key, "b")
        assert await one.claims.claim(SUMMARY, key, "a", NOW, LEASE_MS)

    async def test_of_two_nodes_one_gets_a_claim(self, nodes: tuple[Store, Store]) -> None:
        """However many they claim at the same time."""
        keys = [await open_key(nodes[0], f"s{number}") for number in range(10)]
        claims = [
            store.claims.claim(SUMMARY, key, node, NOW, LEASE_MS)
            for key in keys
            for store, node in zip(nodes, "ab", strict=True)
        ]
        claimed = await asyncio.gather(*claims)
        assert [1] * len(keys) == [sum(claimed[first : first + 2]) for first in range(0, len(claimed), 2)]

    async def test_retention_is_claimed(self, nodes: tuple[Store, Store]) -> None:
        """What expires or is to be deleted is one node's until its lease is over."""
        one, other = nodes
        key = await open_key(one, given={"ttl_seconds": 1})
        await close(one, key)
        later = NOW + 1_000
        assert [key] == await one.retention.claim_expired("a", later, LEASE_MS, 10)
        assert [] == await other.retention.claim_expired("b", later, LEASE_MS, 10)
        assert [key] == await one.retention.claim_expired("a", later, LEASE_MS, 10)
        assert await other.retention.expire(key, later)
        assert [key] == await other.retention.claim_erased("b", later, LEASE_MS, 10)
        assert [] == await one.retention.claim_erased("a", later + LEASE_MS - 1, LEASE_MS, 10)
        assert [key] == await one.retention.claim_erased("a", later + LEASE_MS, LEASE_MS, 10)

    async def test_two_nodes_divide_sweeps(self, nodes: tuple[Store, Store]) -> None:
        """Of what is to be compacted, expires and is deleted, each node does a part, and nothing is done by both."""
        settings, later = {"ttl_seconds": 1, "reopen_window": 0}, NOW + 1_000
        keys = [await open_key(nodes[0], f"s{number}", settings) for number in range(24)]
        for key in keys:
            await close(nodes[0], key)

        async def sweep(claim: Claim, finish: Finish) -> list[list[int]]:
            """What each node did, both at the same time, until both found nothing more.

            Neither begins before both have claimed: on a fast disk one may be through before the other gets its turn.
            """
            done: list[list[int]] = [[], []]

            async def work(number: int, claimed: list[int]) -> None:
                idle = 0
                while idle < 3:
                    done[number] += await finish(nodes[number], claimed)
                    idle = 0 if claimed else idle + 1
                    claimed = await claim(nodes[number])("ab"[number], later, LEASE_MS, 3)

            first = [claim(store)(node, later, LEASE_MS, 3) for store, node in zip(nodes, "ab", strict=True)]
            await asyncio.gather(*map(work, range(2), await asyncio.gather(*first)))
            return done

        async def compact(store: Store, keys: list[int]) -> list[int]:
            for key in keys:
                while await store.compaction.compact(key):
                    pass
            return keys

        async def expire(store: Store, keys: list[int]) -> list[int]:
            return [key for key in keys if await store.retention.expire(key, later)]

        async def delete(store: Store, keys: list[int]) -> list[int]:
            while keys and await store.retention.delete_erased(keys):
                pass
            return keys

        steps: list[tuple[Claim, Finish]] = [
            (lambda store: store.compaction.claim_compactable, compact),
            (lambda store: store.retention.claim_expired, expire),
            (lambda store: store.retention.claim_erased, delete),
        ]
        for claim, finish in steps:
            done = await sweep(claim, finish)
            assert keys == sorted(done[0] + done[1]), finish.__name__
            assert all(done), finish.__name__
        assert [[]] * len(keys) == [await nodes[1].journal.read_rows(key, 0, 10) for key in keys]


class TestWithoutConnection:
    """Producers that send over HTTP, and appends under conditions."""

    async def test_a_producer_that_sends_is_expected_back(self, store: Store) -> None:
        """An end waits for it as long as it says; what has no seq says nothing."""
        key = await open_key(store)
        until = NOW + EXPECTED_BACK_MS
        await store.journal.append([Batch(key, "http", None, NOW, [offer(1).payload], 1, expected_until_ms=until)], NOW)
        loose = Batch(key, "loose", None, NOW, offers=[offer(None)], expected_until_ms=until + 10**6)
        await store.journal.append([loose], NOW)
        await append_offers(store, key, end_offer(1))
        assert await store.journal.close_ended(key, "n", until - 1) is None
        assert await store.journal.close_ended(key, "n", until) is not None

    async def test_that_it_is_expected_is_put_off(self, store: Store) -> None:
        """Each later event does so, once it is a second later; a duplicate too."""
        key = await open_key(store)
        until = NOW + EXPECTED_BACK_MS
        for later in (0, EXPECT_AGAIN_MS - 1, 2 * EXPECT_AGAIN_MS):
            batch = Batch(key, "http", None, NOW, [offer(1).payload], 1, expected_until_ms=until + later)
            await store.journal.append([batch], NOW)
        await append_offers(store, key, end_offer(1))
        assert await store.journal.close_ended(key, "n", until + 2 * EXPECT_AGAIN_MS - 1) is None
        assert await store.journal.close_ended(key, "n", until + 2 * EXPECT_AGAIN_MS) is not None

    async def test_an_append_may_need_its_position(self, store: Store) -> None:
        """Where the journal has gone on nothing is stored, and nothing else happens."""
        key = await open_key(store)
        await append_batch(store.journal, key, "main", None, [offer(1)], NOW)
        for position, taken in ((0, True), (2, True), (1, False)):
            batch = Batch(key, "own", None, NOW, offers=[offer(None)], expected_position=position)
            (appended,) = await store.journal.append([batch], NOW)
            assert (taken, 1 if taken else 2) == (appended.position_taken, appended.stream.position)


class TestSnapshots:
    """Two versions of the program on one store."""

    async def test_each_version_has_its_own(self, store: Store) -> None:
        """While a node of the other version is registered neither replaces the other's."""
        key = await open_key(store)
        await append_offers(store, key, offer(1), offer(2))
        await begin_node(store, "old", version=1)
        await begin_node(store, "new", version=2)
        await store.journal.save_snapshot(key, Snapshot(1, 1, b"old"))
        await store.journal.save_snapshot(key, Snapshot(2, 2, b"new"))
        assert Snapshot(1, 1, b"old") == await store.journal.load_snapshot(key, 1, 9)
        assert Snapshot(2, 2, b"new") == await store.journal.load_snapshot(key, 2, 9)
        await store.nodes.retire_node("old", NOW)
        await store.journal.save_snapshot(key, Snapshot(2, 2, b"newer"))
        assert await store.journal.load_snapshot(key, 1, 9) is None
        assert Snapshot(2, 2, b"newer") == await store.journal.load_snapshot(key, 2, 9)


async def test_a_left_session_is_closed_only_if_nobody_is_connected(store: Store) -> None:
    """A close that is for silent sessions leaves one alone to which a producer is connected."""
    key = await open_key(store, given={"webhook": {"url": HOOK}})
    assert await store.journal.close_session(key, END, "n", NOW, if_silent=True) is None
    await hang_up(store, key)
    assert await store.journal.close_session(key, END, "n", NOW, if_silent=True) is not None
