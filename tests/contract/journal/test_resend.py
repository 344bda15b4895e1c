"""Events that are sent again are acknowledged, and stored once."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.support.stores.contract import (
    NOW,
    append_offers,
    event_fields,
    is_acknowledged,
    journal_events,
    offer,
    offers,
    open_key,
    open_session,
    refused_offer,
    reload,
    seqs_by_producer,
    stored_at,
)
from voicemem.store.append_rules import Offer, Outcome
from voicemem.store.port import Store


async def test_duplicates_are_acknowledged(store: Store) -> None:
    """A seq that is equal as JSON, wherever it says it belongs, is acknowledged again and not stored again."""
    key = await open_key(store)
    await append_offers(
        store, key, Offer(1, NOW, b'{"type":"asr","seq":1,"text":"\xc3\xa9","words":[1,{"a":2,"b":3}]}')
    )
    equal = b' {"words": [1, {"b": 3, "a": 2}], "text": "\\u00e9", "producer": "main", "seq": 1,'
    equal += b' "session_id": "s", "type": "asr"} '

    assert [Outcome(duplicate=True)] == await append_offers(store, key, Offer(1, NOW + 1, equal))
    assert 1 == len(await store.journal.read_rows(key, 0, 10))


async def test_a_batch_may_repeat_itself(store: Store) -> None:
    """A seq that stands twice in one batch is stored once; a different one under it is a conflict."""
    key = await open_key(store)
    again = Outcome(duplicate=True)

    assert [Outcome(1), again, Outcome(2), again, Outcome(code="seq_conflict")] == await append_offers(
        store, key, offer(1), offer(1), offer(2), offer(1), offer(2, text="other")
    )
    assert [Outcome(3), again, again] == await append_offers(store, key, offer(3), offer(1), offer(3))
    assert {"main": [1, 2, 3]} == await seqs_by_producer(store, key)


async def test_a_resend_may_go_on(store: Store) -> None:
    """A batch that repeats what is stored and continues with what is not stores only the new."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 3))
    repeated = [Outcome(duplicate=True)] * 3

    assert repeated + stored_at(4, 5) == await append_offers(store, key, *offers(1, 5))
    assert {"main": [1, 2, 3, 4, 5]} == await seqs_by_producer(store, key)


async def test_duplicates_are_found_however_old(store: Store) -> None:
    """Duplicates are found by their key, late and between the events of another producer, alone or in a batch."""
    key = await open_key(store)
    seqs = {"main": 0, "asr": 0}
    for producer, count in [("main", 5), ("asr", 700), ("main", 1), ("asr", 3), ("main", 400), ("asr", 900)]:
        batch = offers(seqs[producer] + 1, seqs[producer] + count)
        await append_offers(store, key, *batch, producer=producer)
        seqs[producer] += count

    for producer, last in seqs.items():
        for seq in (1, 2, 5, 6, 7, last // 2, last - 1, last):
            assert [Outcome(duplicate=True)] == await append_offers(store, key, offer(seq), producer=producer)
        assert [Outcome(duplicate=True)] * last == await append_offers(store, key, *offers(1, last), producer=producer)
        assert [Outcome(duplicate=True)] * 3 == await append_offers(
            store, key, offer(last), offer(1), offer(7), producer=producer
        )
        assert [Outcome(code="seq_conflict")] == await append_offers(
            store, key, offer(6, text="other"), producer=producer
        )
    assert sum(seqs.values()) == (await reload(store, key)).position


async def test_duplicates_around_a_gap(store: Store) -> None:
    """After a gap what came before it is acknowledged again, and what lies in it can no longer be stored."""
    key = await open_key(store)
    await append_offers(store, key, *offers(1, 3))
    await open_session(store, from_seq=10)
    await append_offers(store, key, *offers(10, 12))
    again, lost = Outcome(duplicate=True), Outcome(code="seq_conflict")

    assert [again] * 3 + [lost] * 6 + [again] * 3 + stored_at(8) == await append_offers(store, key, *offers(1, 13))
    assert [lost] == await append_offers(store, key, offer(5))
    assert not is_acknowledged(lost)


async def test_another_event_under_a_seq_is_a_conflict(store: Store) -> None:
    """A seq that is stored with other content is refused, and the journal stays as it is."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))

    assert [Outcome(code="seq_conflict")] == await append_offers(store, key, offer(1, text="other"))
    assert [event_fields(1)] == await journal_events(store, key)


async def test_a_hole_stores_nothing(store: Store) -> None:
    """A seq above the next is refused with the expected one, and so is what follows it, until that one comes."""
    key = await open_key(store)
    gap = Outcome(code="seq_gap", expected=2)

    assert [Outcome(1), gap, gap] == await append_offers(store, key, offer(1), offer(3), offer(4))
    assert [gap] == await append_offers(store, key, offer(2**53))
    assert [Outcome(2)] == await append_offers(store, key, offer(2))
    assert {"main": [1, 2]} == await seqs_by_producer(store, key)


async def test_a_refused_event_leaves_its_code(store: Store) -> None:
    """A refused event takes its position and seq, and the journal holds its code without its content."""
    key = await open_key(store)

    assert [Outcome(1), Outcome(2, "invalid_field"), Outcome(3)] == await append_offers(
        store, key, offer(1), refused_offer(2), offer(3)
    )
    assert {"main": [1, 2, 3]} == await seqs_by_producer(store, key)
    assert {"type": "refused", "code": "invalid_field"} == (await journal_events(store, key))[1]


@pytest.mark.parametrize(
    "again", [refused_offer(1), refused_offer(1, "unknown_type"), offer(1), offer(1, text="mended")]
)
async def test_a_refused_event_stays_refused(store: Store, again: Offer) -> None:
    """Whatever is sent again under a refused seq gets the error of the first time, which is its acknowledgement."""
    key = await open_key(store)
    (first, inside) = await append_offers(store, key, refused_offer(1), again)
    (later,) = await append_offers(store, key, again)

    assert Outcome(1, "invalid_field") == first
    assert Outcome(code="invalid_field", duplicate=True) == inside == later
    assert is_acknowledged(first)
    assert is_acknowledged(later)
    assert 1 == len(await store.journal.read_rows(key, 0, 10))


async def test_a_stored_event_is_not_refused_later(store: Store) -> None:
    """A seq that was stored well cannot be replaced by an event that cannot be taken."""
    key = await open_key(store)
    await append_offers(store, key, offer(1))

    assert [Outcome(code="seq_conflict")] == await append_offers(store, key, refused_offer(1))
    assert [event_fields(1)] == await journal_events(store, key)
