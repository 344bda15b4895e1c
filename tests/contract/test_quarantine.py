"""Streams that are set aside are known to later processes of the same version, until they are put back or erased."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    LEASE_MS,
    NOW,
    claim_deliveries,
    claim_one_delivery,
    closed_session,
    freeze_payload,
    open_key,
    start_alone,
)
from voicemem.store.port import Store
from voicemem.store.quarantine import QuarantineEntry

FAILED = QuarantineEntry("failed", NOW, "1/1")


async def test_a_stream_is_quarantined_once(store: Store) -> None:
    """The first entry of a version stays; that of a later version takes its place."""
    key = await open_key(store)
    assert await store.quarantine.find_quarantined(key, "1/1") is None
    stream = await store.quarantine.add(key, FAILED)
    assert stream is not None
    assert ("p", "s") == (stream.project, stream.id)
    assert await store.quarantine.add(key, QuarantineEntry("too_slow", NOW + 5, "1/1")) is None
    assert FAILED == await store.quarantine.find_quarantined(key, "1/1")
    assert await store.quarantine.find_quarantined(key, "1/2") is None
    assert await store.quarantine.add(key, QuarantineEntry("damaged", NOW + 9, "1/2")) is not None
    assert QuarantineEntry("damaged", NOW + 9, "1/2") == await store.quarantine.find_quarantined(key, "1/2")
    assert await store.quarantine.find_quarantined(key, "1/1") is None


async def test_what_is_quarantined_is_counted_and_named(store: Store) -> None:
    """By version, the newest first; a user's stream counts, and has no session to name."""
    keys = [await open_key(store, name) for name in ("a", "b", "c", "other")]
    for number, key in enumerate(keys[:3]):
        await store.quarantine.add(key, QuarantineEntry("failed", NOW + number, "1/1"))
    await store.quarantine.add(keys[3], QuarantineEntry("failed", NOW, "0/1"))
    user = await store.journal.ensure_user("p", "anna", NOW)
    await store.quarantine.add(user.key, FAILED)
    assert (4, 1, 0) == tuple([await store.quarantine.count_quarantined(version) for version in ("1/1", "0/1", "2/2")])
    assert ["c", "b"] == [stream.id for stream in await store.quarantine.list_quarantined("1/1", 2)]


async def test_what_is_put_back_is_not_set_aside(store: Store) -> None:
    """A stream that is put back may be set aside again; putting back what is not set aside changes nothing."""
    key = await open_key(store)
    await store.quarantine.release(key, NOW)
    await store.quarantine.add(key, FAILED)
    await store.quarantine.release(key, NOW)
    assert (None, 0) == (
        await store.quarantine.find_quarantined(key, "1/1"),
        await store.quarantine.count_quarantined("1/1"),
    )
    assert await store.quarantine.add(key, FAILED) is not None


async def test_an_erased_session_is_not_set_aside(store: Store) -> None:
    """Nothing says so any more after its erasure, and nothing can be noted about it."""
    key = await open_key(store)
    await store.quarantine.add(key, FAILED)
    await store.retention.erase(key, NOW)
    found = (await store.quarantine.find_quarantined(key, "1/1"), await store.quarantine.count_quarantined("1/1"))
    assert (None, 0) == found
    assert [] == await store.quarantine.list_quarantined("1/1", 10)
    assert await store.quarantine.add(key, FAILED) is None
    while await store.retention.delete_erased([key]):
        pass
    assert await store.retention.finish_erased()


async def test_a_delivery_waits_without_an_attempt(store: Store) -> None:
    """It stays pending and says what for; it is claimed again when it is due, under a new lease."""
    stream = await closed_session(store)
    claimed = await claim_one_delivery(store)
    await store.outbox.postpone_delivery(claimed, "session_set_aside", NOW + 10 * LEASE_MS)
    (made,) = await store.deliveries.list_deliveries(stream.key)
    assert ("pending", [], "session_set_aside") == (made.state, made.attempts, made.waiting_for)
    assert [] == await claim_deliveries(store, NOW + 10 * LEASE_MS - 1)
    again = await claim_one_delivery(store, NOW + 10 * LEASE_MS)
    assert (claimed.key, 0) == (again.key, again.attempts)
    await store.outbox.postpone_delivery(claimed, "session_set_aside", NOW + 20 * LEASE_MS)  # its lease is over
    assert [] == await claim_deliveries(store, NOW + 10 * LEASE_MS + 1)
    assert b"made" == await freeze_payload(store, again, b"made")
    (made,) = await store.deliveries.list_deliveries(stream.key)
    assert made.waiting_for is None


async def test_a_start_leaves_alone_what_waits(store: Store) -> None:
    """It is not due at once, but soon, whatever time it was given by a clock that was ahead."""
    await closed_session(store)
    await store.outbox.postpone_delivery(await claim_one_delivery(store), "session_set_aside", NOW + 10**12)
    await start_alone(store, NOW)
    assert [] == await claim_deliveries(store)
    due = await store.outbox.next_delivery_ms()
    assert due is not None
    assert NOW < due < NOW + 3_600_000


async def test_what_waited_for_a_session_is_due_when_it_is_put_back(store: Store) -> None:
    """Deliveries of other sessions keep their times."""
    streams = [await closed_session(store, name, notice_id=name) for name in ("back", "other")]
    for claimed in await claim_deliveries(store):
        await store.outbox.postpone_delivery(claimed, "session_set_aside", NOW + 10 * LEASE_MS)
    await store.quarantine.release(streams[0].key, NOW + 1)
    assert ["back"] == [delivery.notice_id for delivery in await claim_deliveries(store, NOW + 1)]
    (made,) = await store.deliveries.list_deliveries(streams[0].key)
    assert made.waiting_for is None
