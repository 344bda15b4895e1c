"""A compacted journal reads as before, and still knows its seqs."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from tests.support.stores.contract import (
    NOW,
    REOPEN_MS,
    append_offers,
    close,
    close_idle,
    closed_session,
    mixed_call,
    offer,
    offers,
    open_key,
    open_session,
    refused_offer,
)
from voicemem.store.append_rules import Offer, Outcome
from voicemem.store.port import Store


async def compacted(store: Store, key: int) -> int:
    """Compact a journal to its end; the number of steps."""
    steps = 0
    while await store.compaction.compact(key):
        steps += 1
    return steps


async def test_a_compacted_journal_reads_as_before(store: Store) -> None:
    """Every page of it has the same bytes, positions, seqs and times, after every step of the compaction."""
    key = await mixed_call(store)
    whole = await store.journal.read_rows(key, 0, 10**6)
    assert len(whole) == whole[-1].position == 65
    while await store.compaction.compact(key):
        assert whole == await store.journal.read_rows(key, 0, 10**6)
    for after in range(0, len(whole) + 1, 7):
        for limit in (1, 5, 10**6):
            assert whole[after : after + limit] == await store.journal.read_rows(key, after, limit)
    stream = await store.journal.find_session("p", "s")
    assert stream is not None
    assert ("ended", len(whole)) == (stream.state, stream.position)
    assert 0 == await compacted(store, key)


async def test_a_compacted_journal_knows_its_seqs(store: Store) -> None:
    """Resent events are acknowledged again when equal, and told what they were told; others still cannot come in."""
    key = await mixed_call(store)
    await compacted(store, key)
    again = await append_offers(
        store, key, *offers(1, 40), offer(7, text="other"), refused_offer(47), offer(55), *offers(61, 70)
    )
    assert [Outcome(duplicate=True)] * 40 + [
        Outcome(code="seq_conflict"),
        Outcome(code="text_too_long", duplicate=True),
        Outcome(code="seq_conflict"),
    ] + [Outcome(duplicate=True)] * 10 == again
    assert [Outcome(duplicate=True)] * 6 == await append_offers(store, key, *offers(1, 6), producer="asr")
    assert [Outcome(code="session_ended")] == await append_offers(store, key, offer(71))
    assert [Outcome(code="seq_conflict")] * 13 == await append_offers(store, key, *offers(48, 60))


async def test_a_journal_half_compacted_knows_its_seqs(store: Store) -> None:
    """Also while its rows are on their way."""
    key = await mixed_call(store)
    while await store.compaction.compact(key):
        assert [Outcome(duplicate=True)] * 46 + [Outcome(code="seq_conflict")] * 2 == await append_offers(
            store, key, *offers(1, 40), *originals(), *offers(52, 53)
        )


def originals() -> list[Offer]:
    """What `mixed_call` sent between 41 and 46."""
    pairs = [(offer(seq, text="x" * 500_000), offer(seq + 1, NOW + 1)) for seq in (41, 43, 45)]
    return [one for pair in pairs for one in pair]


async def test_sessions_are_compacted_when_they_cannot_be_reopened(store: Store) -> None:
    """Not before `reopen_window` is over; what runs, or runs again, is not compacted."""
    key = await open_key(store, "later")
    await append_offers(store, key, offer(1))
    await close_idle(store, key)
    now = (await closed_session(store, "at once", hook=None)).key
    await open_key(store, "running")
    assert [] == await store.compaction.claim_compactable("", NOW + REOPEN_MS - 1, 1, 10)
    assert {key, now} == {*await store.compaction.claim_compactable("", NOW + REOPEN_MS, 1, 10)}
    assert (await open_session(store, "later")).reopened
    assert [now] == await store.compaction.claim_compactable("", NOW + 10**12, 1, 10)
    await compacted(store, now)
    assert [] == await store.compaction.claim_compactable("", NOW + 10**12, 1, 10)


async def test_a_session_that_was_compacted_too_early_goes_on(store: Store) -> None:
    """When the clock went back a compacted session can be reopened: it goes on, and is compacted again."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 30))
    await close_idle(store, key)
    await compacted(store, key)
    assert (await open_session(store)).reopened
    assert [Outcome(duplicate=True), Outcome(33)] == await append_offers(store, key, offer(30), offer(31))
    before = await store.journal.read_rows(key, 0, 100)
    assert list(range(1, 34)) == [row.position for row in before]
    await close(store, key)
    await compacted(store, key)
    assert before == (await store.journal.read_rows(key, 0, 100))[:-1]
    assert [Outcome(duplicate=True)] * 31 == await append_offers(store, key, *offers(1, 31))
