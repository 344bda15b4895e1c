"""Nothing of an erased session is left."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.stores.contract import (
    END,
    HOOK,
    NOW,
    append_offers,
    attempt_of,
    claim_deliveries,
    claim_one_delivery,
    closed_session,
    listed_ids,
    offer,
    offers,
    open_key,
    open_session,
    start_alone,
)
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store
from voicemem.store.records import DisconnectedProducer, Snapshot


async def test_nothing_of_an_erased_session_is_readable(store: Store) -> None:
    """After an erase neither the session nor its events, snapshots or deliveries can be read, and nothing waits."""
    stream = await closed_session(store, "s")
    await store.outbox.finish_delivery(await claim_one_delivery(store), attempt_of(), "delivered", None)
    key = await open_key(store, "running", {"user_id": "u", "webhook": {"url": HOOK}})
    await append_offers(store, key, offer(1))
    await closed_session(store, "kept", hook=None)
    for erased in (stream.key, key):
        await store.journal.save_snapshot(erased, Snapshot(1, 1, b"state"))
        await store.retention.erase(erased, NOW + 1)
        await store.journal.save_snapshot(erased, Snapshot(1, 1, b"state"))

        assert [] == await store.journal.read_rows(erased, 0, 10)
        assert await store.journal.load_snapshot(erased, 1, 10) is None
        assert [] == await store.deliveries.list_deliveries(erased)
    assert (None, None) == (
        await store.journal.find_session("p", "s"),
        await store.journal.find_session("p", "running"),
    )
    assert (["kept"], []) == (await listed_ids(store), await listed_ids(store, user_id="u"))
    assert ([], [], None) == (
        await store.journal.find_due(NOW + 10**12, 10),
        await claim_deliveries(store, NOW + 10**9),
        await store.outbox.next_delivery_ms(),
    )


async def test_sessions_are_found_by_their_keys(store: Store) -> None:
    """By keys the sessions of the project are found, as they are after what was acknowledged, erased ones included."""
    first, second, erased = [await open_key(store, name) for name in ("a", "b", "c")]
    await append_offers(store, first, *offers(1, 3))
    await store.retention.erase(erased, NOW)
    found = await store.journal.find_sessions("p", [erased, first, 10**6])
    assert [("a", 3, "running"), ("c", 0, "erased")] == [(one.id, one.position, one.state) for one in found]
    assert [] == await store.journal.find_sessions("other", [first, second])
    assert [] == await store.journal.find_sessions("p", [])


async def test_an_erased_session_does_not_come_back(store: Store) -> None:
    """After an erase every way of writing to the session is refused, or does nothing."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))
    await store.retention.erase(key, NOW)

    with pytest.raises(Refused, match="session_erased"):
        await open_session(store)
    with pytest.raises(Refused, match="session_erased"):
        await store.journal.create_session("p", "s", validate_config({}), NOW)
    with pytest.raises(Refused):
        await store.journal.change_config(key, validate_config({}), b"{}", NOW)
    assert [Outcome(code="session_erased")] * 2 == await append_offers(store, key, *offers(1, 2))
    assert [Outcome(code="session_erased")] == await append_offers(store, key, offer(2), epoch=1)
    assert await store.journal.close_session(key, END, "n", NOW) is None
    assert await store.journal.close_ended(key, "n", NOW) is None
    assert [] == await store.journal.leave([DisconnectedProducer(key, "main", 1)], NOW)
    await start_alone(store, NOW)
    await store.retention.erase(key, NOW)
    assert [] == await store.journal.read_rows(key, 0, 10)
    assert await store.journal.find_session("p", "s") is None


async def test_erasing_what_is_not_there(store: Store) -> None:
    """Erasing an unknown session does nothing."""
    await store.retention.erase(99, NOW)

    assert [] == await listed_ids(store)
