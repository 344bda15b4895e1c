"""Webhook events of a session's start and end, for those who subscribed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from collections.abc import Sequence

import pytest

from tests.support.stores.contract import (
    END,
    HOOK,
    NOW,
    OPERATOR,
    add_endpoint,
    append_offers,
    claim_deliveries,
    claim_one_delivery,
    close,
    close_idle,
    closed_session,
    endpoint_of,
    offer,
    offers,
    open_key,
    open_session,
    update_offer,
)
from voicemem.config.session import validate_config
from voicemem.store.outbox import ClaimedDelivery, SessionHeader
from voicemem.store.port import Store
from voicemem.store.records import JournalRow, RestoredSession
from voicemem.store.streams import SessionEnding


def webhook_event_summaries(deliveries: Sequence[ClaimedDelivery]) -> list[tuple[int, str, int]]:
    return [(delivery.event_type, delivery.notice_id, delivery.position) for delivery in deliveries]


async def test_a_start_and_a_close_are_told_to_who_wants_it(store: Store) -> None:
    """Each webhook event is of one position of the journal, has an id of its own, and goes to who subscribed to it."""
    endpoint = await add_endpoint(store, endpoint_of("e1", 101, 102, 103, 111, 112))
    await add_endpoint(store, endpoint_of("e2", 103))
    key = await open_key(store, given={"name": "joker", "labels": {"a": "1"}})
    (start,) = await claim_deliveries(store)
    await append_offers(store, key, *offers(1, 2))
    await close(store, key, END, "n", NOW + 5000)
    closing = await claim_deliveries(store, NOW + 5000)

    assert (101, 0, endpoint) == (start.event_type, start.position, start.endpoint)
    assert start.notice_id.endswith("-101")
    assert SessionHeader("s", "joker", None, {"a": "1"}, NOW, NOW) == start.header
    mine = [delivery for delivery in closing if delivery.endpoint.id == "e1"]
    assert [(102, "n-102", 3), (103, "n", 3), (111, "n-111", 3), (112, "n-112", 3)] == webhook_event_summaries(mine)
    assert SessionHeader("s", "joker", None, {"a": "1"}, NOW, NOW + 5000, END.reason) == mine[0].header
    assert [None] * 4 == [delivery.payload for delivery in mine]
    assert [(103, "n", 3)] == webhook_event_summaries(
        [delivery for delivery in closing if delivery.endpoint.id == "e2"]
    )


@pytest.mark.parametrize("reason", ["idle", "max_duration", "left"])
async def test_how_a_session_left(store: Store, reason: str) -> None:
    """The row of a close has its reason."""
    await add_endpoint(store, endpoint_of("e1", 102))
    await close(store, await open_key(store), SessionEnding(NOW, reason))
    assert reason == (await claim_one_delivery(store)).header.reason


@pytest.mark.parametrize("updated", [False, True])
async def test_an_idle_session_that_nobody_joined_only_left(store: Store, updated: bool) -> None:
    """It has nothing to tell, also after a change of its configuration; a close by request tells all the same."""
    await add_endpoint(store, endpoint_of("e1", 102, 103, 111, 112))
    await store.directory.set_operator_endpoint(OPERATOR, None)
    for session_id, ending in (("idle", None), ("ended", END)):
        stream, _ = await store.journal.create_session(
            "p", session_id, validate_config({"idle_timeout": 1}), NOW - 1000
        )
        if updated:
            await store.journal.change_config(
                stream.key, validate_config({"name": "n"}), b'{"type":"session.update"}', NOW
            )
        await close(store, stream.key, ending, session_id)
    heard = [
        (delivery.header.session_id, delivery.endpoint.id, delivery.event_type)
        for delivery in await claim_deliveries(store)
    ]
    ended = [("ended", "e1", 102), ("ended", "e1", 103), ("ended", "e1", 111), ("ended", "e1", 112)]
    assert [*ended, ("ended", None, 103), ("idle", "e1", 102)] == sorted(heard, key=str)


@pytest.mark.parametrize("way", ["open", "event", "restored"])
async def test_an_idle_session_that_somebody_joined_tells(store: Store, way: str) -> None:
    """An open is enough, and so is an event without one, or a journal that the session was made with."""
    config = validate_config({"idle_timeout": 1})
    await store.directory.set_operator_endpoint(OPERATOR, None)
    if way == "open":
        key = await open_key(store)
    elif way == "event":
        key = (await store.journal.create_session("p", "s", config, NOW - 1000))[0].key
        await append_offers(store, key, offer(1))
    else:
        rows = [JournalRow(1, "main", 1, NOW, b'{"type":"asr","turn_id":1,"text":"Hi.","final":true}')]
        restored = await store.journal.restore_session(
            "default", "s", config, RestoredSession(rows=rows, started_ms=NOW - 1000), NOW - 1000
        )
        assert restored is not None
        key = restored.key
    await close_idle(store, key)
    assert [103] == [delivery.event_type for delivery in await claim_deliveries(store)]


async def test_a_session_that_comes_back_starts_again(store: Store) -> None:
    """By an open or by an event; whoever opens one that runs starts nothing."""
    await add_endpoint(store, endpoint_of("e1", 101))
    key = await open_key(store)
    await open_session(store)
    assert 1 == len(await claim_deliveries(store))
    await close_idle(store, key)
    await append_offers(store, key, offer(1))
    await close_idle(store, key)
    await open_session(store)
    deliveries = await claim_deliveries(store)

    assert [2, 5] == [delivery.position for delivery in deliveries]
    assert 2 == len({delivery.notice_id for delivery in deliveries})


async def test_only_the_own_project_is_heard(store: Store) -> None:
    """A project's endpoint hears of no other project's sessions, the operator's of histories of all."""
    await store.directory.set_operator_endpoint(OPERATOR, None)
    await add_endpoint(store, endpoint_of("e1", 101, 102, 103))
    await add_endpoint(store, endpoint_of("e2", 101, 102, 103, project="other"))
    await closed_session(store, hook=None)
    heard = [(delivery.endpoint.id, delivery.event_type) for delivery in await claim_deliveries(store)]

    assert [("e1", 101), ("e1", 102), ("e1", 103), (None, 103)] == sorted(heard, key=str)


async def test_an_own_receiver_may_hear_more(store: Store) -> None:
    """A session's receiver gets the types of its configuration; taken away, they are histories again."""
    key = await open_key(store, given={"webhook": {"url": HOOK, "event_types": [101, 112]}})
    await append_offers(store, key, update_offer(1, {"webhook": {"event_types": [102]}}))
    await close_idle(store, key)
    await append_offers(store, key, update_offer(2, {"webhook": {"event_types": None}}), now_ms=NOW + 1)
    await close(store, key, END, "n2", NOW + 2)

    assert [101, 102, 103] == [delivery.event_type for delivery in await claim_deliveries(store, NOW + 2)]
