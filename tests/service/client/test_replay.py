"""Recorded calls on their way into a running service (what they fold to: `test_replay.py`)."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio

import pytest

from tests.support.callers.rest import RestClient
from tests.support.events import final_transcript, session_end, unknown_event
from voicemem.app import App
from voicemem.client.replay import MAX_UNACKED, Replay, ReplayFailed
from voicemem.protocol.types import JsonObject


async def replay(app: App, events: list[JsonObject], pace: float | None = None) -> tuple[Replay, list[int]]:
    """A recording after its replay into session "s", and the seqs that were told of."""
    told: list[int] = []
    one = Replay(events, lambda event: told.append(event["seq"]))
    await asyncio.wait_for(one.run(f"ws://{app.ingest_address}", "s", pace=pace), 20)
    return one, told


async def stored(app: App) -> list[int]:
    return [row["seq"] for row in await RestClient(app).journal() if row["seq"]]


async def test_every_event_is_told_once_it_is_on_disk(app: App) -> None:
    """More events than may be under way at once are all sent, and told in their order."""
    events = [final_transcript(seq) for seq in range(1, 3 * MAX_UNACKED)]
    one, told = await replay(app, events)
    assert ([event["seq"] for event in events], len(events)) == (told, one.acked)
    assert told == await stored(app)


async def test_events_are_told_while_the_next_is_waited_for(app: App) -> None:
    """At a call's own pace an event is told in the pause after it, not with the next one."""
    events = [final_transcript(1, ts=1_000), final_transcript(2, ts=4_000)]
    told: asyncio.Queue[int] = asyncio.Queue()
    one = Replay(events, lambda event: told.put_nowait(event["seq"]))
    running = asyncio.create_task(one.run(f"ws://{app.ingest_address}", "s", pace=0.01))  # a pause of five minutes
    assert 1 == await asyncio.wait_for(told.get(), 10)
    assert ([1], False) == (await stored(app), running.done())
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    await Replay(events, lambda event: told.put_nowait(event["seq"])).run(f"ws://{app.ingest_address}", "s")
    assert 2 == told.get_nowait()


async def test_refused_events_are_listed(app: App) -> None:
    """A recording with an event that cannot be taken goes on behind it."""
    one, told = await replay(app, [final_transcript(1), unknown_event(2), final_transcript(3)])
    assert [(2, "unknown_type")] == [(error["seq"], error["code"]) for error in one.errors]
    assert ([1, 2, 3], [1, 2, 3]) == (told, await stored(app))


@pytest.mark.parametrize(
    "events",
    [[final_transcript(1), session_end(2), final_transcript(3)], [final_transcript(5), final_transcript(6)]],
    ids=["goes on after its end", "begins in the middle"],
)
async def test_a_recording_that_does_not_fit_is_an_error(app: App, events: list[JsonObject]) -> None:
    """What can never be stored ends the replay with a sentence."""
    with pytest.raises(ReplayFailed, match="cannot continue"):
        await replay(app, events)


async def test_a_session_that_is_over_is_an_error(app: App) -> None:
    """A recording cannot go on in a session that was ended."""
    await RestClient(app).create()
    await RestClient(app).end()
    with pytest.raises(ReplayFailed, match="has ended"):
        await replay(app, [final_transcript(1)])


async def test_a_server_that_goes_away_is_an_error(app: App) -> None:
    """A replay does not wait for a server that has stopped."""
    events = [final_transcript(1, ts=0), *(final_transcript(seq, ts=3_000) for seq in range(2, 500))]
    running = asyncio.create_task(replay(app, events, pace=3.0))
    await asyncio.sleep(0.2)
    await app.ingest.drain()
    with pytest.raises(ReplayFailed, match="connection refused"):
        await running
