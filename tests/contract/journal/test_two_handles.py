"""Two handles on one store see one journal."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

from tests.support.stores.contract import (
    END,
    HOOK,
    IDLE_MS,
    NOW,
    append_offers,
    event_types,
    hang_up,
    is_acknowledged,
    journal_events,
    offer,
    offers,
    open_key,
    open_session,
    reload,
    seqs_by_producer,
    stored_at,
)
from voicemem.config.session import validate_config
from voicemem.store.append_rules import Outcome
from voicemem.store.port import Store
from voicemem.store.streams import ClosedSession


async def test_what_one_acknowledges_the_other_reads(two_handles: tuple[Store, Store]) -> None:
    """Whatever was acknowledged through one handle is there through another."""
    one, other = two_handles
    key = await open_key(one)
    for seq in range(1, 21):
        writer, reader = (one, other) if seq % 2 else (other, one)
        await append_offers(writer, key, offer(seq))

        assert seq == (await reload(reader, key)).position
        assert [seq] == [row.seq for row in await reader.journal.read_rows(key, seq - 1, 10)]


async def test_two_make_one_session(two_handles: tuple[Store, Store]) -> None:
    """Of several who create or open a session at once exactly one makes it."""
    made = await asyncio.gather(
        *(store.journal.create_session("p", "s", validate_config({}), NOW) for store in two_handles * 5)
    )
    opened = await asyncio.gather(*(open_session(store, "t") for store in two_handles * 5))

    assert 1 == [how for _, how in made].count("created")
    assert 1 == len({stream.key for stream, _ in made})
    assert (1, set(range(1, 11))) == (sum(each.created for each in opened), {each.epoch for each in opened})


async def test_two_recorders_of_two_producers(two_handles: tuple[Store, Store]) -> None:
    """Two producers who append at once share the positions without holes, each in its own order."""
    key = await open_key(two_handles[0])

    async def record(store: Store, producer: str) -> list[Outcome]:
        batches = [await append_offers(store, key, *offers(seq, seq + 2), producer=producer) for seq in range(1, 61, 3)]
        return [outcome for batch in batches for outcome in batch]

    outcomes = await asyncio.gather(record(two_handles[0], "main"), record(two_handles[1], "asr"))
    taken = [outcome.position for each in outcomes for outcome in each]
    assert set(range(1, 121)) == set(taken)
    assert list(range(1, 121)) == [row.position for row in await two_handles[0].journal.read_rows(key, 0, 1000)]
    assert {name: list(range(1, 61)) for name in ("main", "asr")} == await seqs_by_producer(two_handles[0], key)


async def test_two_recorders_of_one_producer(two_handles: tuple[Store, Store]) -> None:
    """Of two connections of one producer only the newer one writes from its open on."""
    key = await open_key(two_handles[0])
    moment = asyncio.Event()

    async def older() -> list[Outcome]:
        taken = []
        for seq in range(1, 41):
            taken += await append_offers(two_handles[0], key, offer(seq, text="older"), epoch=1)
            if seq == 10:
                moment.set()
        return taken

    async def newer() -> tuple[int, list[Outcome]]:
        await moment.wait()
        opened = await open_session(two_handles[1])
        new = [offer(seq, text="newer") for seq in range(opened.next_seq, 51)]
        return opened.next_seq, [
            (await append_offers(two_handles[1], key, each, epoch=opened.epoch))[0] for each in new
        ]

    old, (first, new) = await asyncio.gather(older(), newer())
    assert first > 10
    assert stored_at(*range(1, first)) + [Outcome(code="superseded")] * (41 - first) == old
    assert stored_at(*range(first, 51)) == new
    assert {"main": list(range(1, 51))} == await seqs_by_producer(two_handles[0], key)
    assert ["older"] * (first - 1) + ["newer"] * (51 - first) == [
        event["text"] for event in await journal_events(two_handles[0], key)
    ]


async def test_two_resends_at_once(two_handles: tuple[Store, Store]) -> None:
    """The same events sent at once through two handles are stored once and acknowledged to both."""
    key = await open_key(two_handles[0])
    answers = await asyncio.gather(*(append_offers(store, key, *offers(1, 50)) for store in two_handles * 3))

    assert {"main": list(range(1, 51))} == await seqs_by_producer(two_handles[0], key)
    assert all(is_acknowledged(outcome) for answer in answers for outcome in answer)
    assert 50 == sum(outcome.position is not None for answer in answers for outcome in answer)


async def test_two_sweepers_close_once(two_handles: tuple[Store, Store]) -> None:
    """Sweepers who close the same due session at once make exactly one close and one delivery."""
    keys = [await open_key(two_handles[0], f"s{number}", {"webhook": {"url": HOOK}}) for number in range(5)]
    for key in keys:
        await hang_up(two_handles[0], key, NOW)
    later = NOW + IDLE_MS

    async def sweep(store: Store, notice_id: str) -> list[ClosedSession | None]:
        return [
            await store.journal.close_session(key, None, notice_id, later)
            for key in await store.journal.find_due(later, 10)
        ]

    swept = await asyncio.gather(
        sweep(two_handles[0], "a"), sweep(two_handles[1], "b"), sweep(two_handles[0], "c"), sweep(two_handles[1], "d")
    )
    assert sorted(keys) == sorted(closed.stream.key for each in swept for closed in each if closed is not None)
    for key in keys:
        assert ["session.closed"] == await event_types(two_handles[1], key)
        assert 1 == len(await two_handles[1].deliveries.list_deliveries(key))


async def test_a_close_meets_an_append(two_handles: tuple[Store, Store]) -> None:
    """Of a close and appends at once, every event that was acknowledged stands before the close."""
    key = await open_key(two_handles[0])

    async def record() -> int:
        return sum([is_acknowledged((await append_offers(two_handles[0], key, offer(seq)))[0]) for seq in range(1, 41)])

    acknowledged, _ = await asyncio.gather(record(), two_handles[1].journal.close_session(key, END, "n", NOW))
    assert ["llm.delta"] * acknowledged + ["session.closed"] == await event_types(two_handles[0], key)
