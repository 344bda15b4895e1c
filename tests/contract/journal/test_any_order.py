"""In whatever order batches come, each seq is stored once."""

from __future__ import annotations

import asyncio

from hypothesis import given
from hypothesis import strategies as st

from tests.support.stores.contract import (
    append_offers,
    example_numbers,
    is_acknowledged,
    offers,
    on_one_store,
    open_key,
    seqs_by_producer,
)
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store

batches = st.lists(
    st.tuples(st.sampled_from(["main", "asr"]), st.integers(1, 14), st.integers(1, 6), st.booleans()), max_size=30
)


@on_one_store
@given(batches)
async def test_any_order_of_batches_gives_each_seq_once(store: Store, sent: list[tuple[str, int, int, bool]]) -> None:
    """Whatever two producers send and send again, each outcome follows from what is stored, and seqs are 1 to n."""
    session_id = f"s{next(example_numbers)}"
    key = await open_key(store, session_id)
    expected = {"main": 1, "asr": 1}
    position = 0
    for producer, first, count, backwards in sent:
        batch = offers(first, first + count - 1)
        outcomes = []
        for each in (batch := batch[::-1] if backwards else batch):
            assert each.seq is not None
            if each.seq > expected[producer]:
                outcomes.append(Outcome(code="seq_gap", expected=expected[producer]))
            elif each.seq < expected[producer]:
                outcomes.append(Outcome(duplicate=True))
            else:
                position, expected[producer] = position + 1, expected[producer] + 1
                outcomes.append(Outcome(position))
        assert outcomes == await append_offers(store, key, *batch, producer=producer)

    journaled = await seqs_by_producer(store, key)
    assert list(range(1, position + 1)) == [row.position for row in await store.journal.read_rows(key, 0, 1000)]
    assert {name: list(range(1, following)) for name, following in expected.items() if following > 1} == journaled


@on_one_store
@given(batches)
async def test_batches_at_once_give_each_seq_once(
    two_handles: tuple[Store, Store], sent: list[tuple[str, int, int, bool]]
) -> None:
    """Batches that race through two handles give each producer's seqs 1 to n once, with all that was acknowledged."""
    key = await open_key(two_handles[0], f"s{next(example_numbers)}")
    answers = await asyncio.gather(
        *(
            append_offers(two_handles[number % 2], key, *offers(first, first + count - 1), producer=producer)
            for number, (producer, first, count, _) in enumerate(sent)
        )
    )

    journaled = await seqs_by_producer(two_handles[1], key)
    assert all(list(range(1, len(seqs) + 1)) == seqs for seqs in journaled.values())
    for (producer, first, _, _), outcomes in zip(sent, answers, strict=True):
        acknowledged = {first + number for number, outcome in enumerate(outcomes) if is_acknowledged(outcome)}
        assert acknowledged <= set(journaled.get(producer, []))
