"""Who is connected, who fell silent, and what an end waits for."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.lifecycle import Clock, ended, opened
from tests.support.stores.contract import start_alone
from voicemem.runtime import Runtime
from voicemem.sessions.lifecycle import CLOSES_AT_ONCE, DISCONNECTIONS_AT_ONCE, SWEEP_BATCH, Presence, Sessions
from voicemem.store.records import DisconnectedProducer
from voicemem.store.session_filters import SessionFilter
from voicemem.store.streams import END_GRACE_MS, EXPECTED_BACK_MS, Stream


async def state(presence: Presence, session_id: str = "s") -> tuple[str, str | None]:
    """State and reason of a session."""
    stream = await presence.sessions.store.journal.get_session("p", session_id)
    return stream.state, stream.reason


async def test_a_session_falls_silent_with_its_last_connection(presence: Presence, clock: Clock) -> None:
    """Only when all connections of all producers are gone does silence begin."""
    lines = [await opened(presence, producer=name) for name in ("asr", "llm", "llm")]
    for lease in lines:
        assert (await presence.sessions.store.journal.get_session("p", "s")).silent_since_ms is None
        await presence.disconnect(lease)
    assert clock.now == (await presence.sessions.store.journal.get_session("p", "s")).silent_since_ms
    assert {} == presence.connected


async def test_many_connections_may_be_lost_at_once(presence: Presence, clock: Clock) -> None:
    """More than are written at a time: each of their sessions falls silent."""
    names = [f"s{number}" for number in range(2 * DISCONNECTIONS_AT_ONCE + 1)]
    lost = [await opened(presence, name) for name in names]
    await asyncio.gather(*(presence.disconnect(lease, lost=True) for lease in lost))
    silent = [(await presence.sessions.store.journal.get_session("p", name)).silent_since_ms for name in names]
    assert [clock.now] * len(names) == silent


async def test_connections_lost_one_after_the_other_share_a_commit(
    presence: Presence, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The first is written at once; those that are lost shortly after it are written together."""
    first, second, third = [await opened(presence, name) for name in ("first", "second", "third")]
    presence.pause_s, written, wrote = 1.0, list[int](), asyncio.Event()
    leave = presence.sessions.store.journal.leave

    async def noted(leaving: list[DisconnectedProducer], now_ms: int) -> list[Stream]:
        left = await leave(leaving, now_ms)
        written.append(len(leaving))
        wrote.set()
        return left

    monkeypatch.setattr(presence.sessions.store.journal, "leave", noted)
    writing = asyncio.create_task(presence.disconnect(first, lost=True))
    await asyncio.sleep(0)
    await presence.disconnect(second, lost=True)
    await wrote.wait()
    await presence.disconnect(third, lost=True)
    await writing
    assert [1, 2] == written


async def test_a_connection_is_gone_while_others_are_written(presence: Presence, clock: Clock) -> None:
    """It is written with them, or by the next sweep: hundreds would wait in memory for each other."""
    lease = await opened(presence)
    async with asyncio.timeout(60), presence.recording:
        await presence.disconnect(lease)
    await presence.sweep()
    assert clock.now == (await presence.sessions.store.journal.get_session("p", "s")).silent_since_ms


async def test_a_node_that_stops_gives_back_its_connections_in_one_step(presence: Presence, clock: Clock) -> None:
    """However many it has, none of them is written alone."""
    lease = await opened(presence)
    presence.draining.set()
    await presence.disconnect(lease, lost=True)
    assert (await presence.sessions.store.journal.get_session("p", "s")).silent_since_ms is None
    await start_alone(presence.sessions.store, clock.now)
    assert clock.now == (await presence.sessions.store.journal.get_session("p", "s")).silent_since_ms


async def test_silence_is_over_when_somebody_came_meanwhile(presence: Presence) -> None:
    """A connection that is replaced by another of the same producer is no silence."""
    before = await opened(presence)
    await opened(presence)
    await presence.disconnect(before)
    assert (await presence.sessions.store.journal.get_session("p", "s")).silent_since_ms is None


async def test_an_end_waits_for_producers_that_are_connected(presence: Presence, clock: Clock) -> None:
    """The close waits for the others, until they have ended or gone, and not longer than the grace."""
    asr, llm = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await ended(presence, asr)
    await presence.close_when_ended(asr)
    clock.now += END_GRACE_MS - 1
    assert (0, ("running", None)) == (await presence.sweep(), await state(presence))
    await presence.disconnect(llm)
    assert ("ended", "left") == await state(presence)


async def test_an_end_waits_for_producers_whose_connections_broke(presence: Presence, clock: Clock) -> None:
    """They are probably on their way back: the close waits until they have ended, or for the grace."""
    asr, llm = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await presence.disconnect(llm, lost=True)
    await ended(presence, asr)
    await presence.close_when_ended(asr)
    assert (0, ("running", None)) == (await presence.sweep(), await state(presence))
    back = await opened(presence, producer="llm")
    await ended(presence, back)
    await presence.close_when_ended(back)
    assert ("ended", "left") == await state(presence)


async def test_an_end_does_not_wait_for_producers_that_broke_off_long_ago(presence: Presence, clock: Clock) -> None:
    """Who did not come back in time is not expected any more."""
    asr, llm = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await presence.disconnect(llm, lost=True)
    clock.now += EXPECTED_BACK_MS
    await ended(presence, asr)
    await presence.close_when_ended(asr)
    assert ("ended", "left") == await state(presence)


async def test_after_a_start_an_end_waits_for_all_that_were_connected(presence: Presence, clock: Clock) -> None:
    """Their connections broke with the process before, and one of them is the first to be back."""
    await ended(presence, await opened(presence, producer="gone"))
    for name in ("asr", "llm"):
        await opened(presence, producer=name)
    await start_alone(presence.sessions.store, clock.now)
    again = Presence(
        Sessions(presence.sessions.store, Runtime(clock, presence.sessions.new_id), presence.sessions.check_settings)
    )
    assert 0 == await again.sweep()
    asr = await opened(again, producer="asr")
    await ended(again, asr)
    await again.close_when_ended(asr)
    assert (0, ("running", None)) == (await again.sweep(), await state(again))
    llm = await opened(again, producer="llm")
    await ended(again, llm)
    await again.close_when_ended(llm)
    assert ("ended", "left") == await state(again)


async def test_an_end_waits_no_longer_than_its_grace(presence: Presence, clock: Clock) -> None:
    """A producer that stays connected and never ends does not keep the session open."""
    asr, _ = [await opened(presence, producer=name) for name in ("asr", "llm")]
    await ended(presence, asr)
    clock.now += END_GRACE_MS
    assert (1, ("ended", "left")) == (await presence.sweep(), await state(presence))


async def test_an_end_waits_for_nobody_when_all_have_ended(presence: Presence) -> None:
    """The last of the ends closes at once."""
    lines = [await opened(presence, producer=name) for name in ("asr", "llm")]
    for lease in lines:
        assert ("running", None) == await state(presence)
        await ended(presence, lease)
        await presence.close_when_ended(lease)
    assert ("ended", "left") == await state(presence)


async def test_closes_wait_for_the_acks(presence: Presence) -> None:
    """While a commit is being answered no session closes, since hundreds may end together."""
    lease = await opened(presence)
    await ended(presence, lease)
    presence.answered.clear()
    closing = asyncio.create_task(presence.close_when_ended(lease))
    await opened(presence, "other")  # the store takes this after everything that it was asked for before
    assert ("running", None) == await state(presence)
    presence.answered.set()
    await closing
    assert ("ended", "left") == await state(presence)


async def test_many_sessions_may_end_at_once(presence: Presence) -> None:
    """More than are closed at a time: each of them closes."""
    lines = [await opened(presence, f"s{number}") for number in range(2 * CLOSES_AT_ONCE + 1)]
    for lease in lines:
        await ended(presence, lease)
    await asyncio.gather(*map(presence.close_when_ended, lines))
    assert {("ended", "left")} == {await state(presence, lease.session_id) for lease in lines}


async def test_a_sweep_closes_what_is_due_and_nothing_else(presence: Presence, clock: Clock) -> None:
    """Silent presence are closed when their time is over; connected ones are not."""
    await opened(presence, "connected")
    await presence.disconnect(await opened(presence, "gone"))
    clock.now += 59_999
    assert 0 == await presence.sweep()
    clock.now += 1
    assert [1, 0] == [await presence.sweep(), await presence.sweep()]
    assert [("running", None), ("ended", "idle")] == [await state(presence, name) for name in ("connected", "gone")]


async def test_a_sweep_closes_more_than_it_takes_at_once(presence: Presence, clock: Clock) -> None:
    """However many are due, they are closed batch by batch."""
    for number in range(SWEEP_BATCH + 5):
        await presence.sessions.create("p", str(number), {})
    clock.now += 60_000
    assert [SWEEP_BATCH, 5, 0] == [await presence.sweep() for _ in range(3)]


async def test_two_sweepers_close_each_session_once(nodes: list[Presence], clock: Clock) -> None:
    """Whoever comes second finds nothing to do; every journal has one close."""
    for number in range(40):
        await nodes[0].sessions.create("p", str(number), {})
    clock.now += 60_000
    counts = await asyncio.gather(*(node.sweep() for node in nodes * 3))
    assert 40 == sum(counts)
    streams = await nodes[1].sessions.store.journal.list_sessions(SessionFilter(project="p"))
    assert [("ended", 1)] * 40 == [(stream.state, stream.position) for stream in streams]


async def test_a_sweep_meets_a_producer_that_comes_back(nodes: list[Presence], clock: Clock) -> None:
    """Whichever is first, the session runs and the producer can send: an idle close is provisional."""
    for number in range(20):
        await nodes[0].sessions.create("p", str(number), {})
    clock.now += 60_000
    sweeping = asyncio.create_task(nodes[0].sweep())
    await asyncio.gather(*(opened(nodes[1], str(number)) for number in range(20)))
    await sweeping
    assert [("running", None)] * 20 == [await state(nodes[0], str(number)) for number in range(20)]
