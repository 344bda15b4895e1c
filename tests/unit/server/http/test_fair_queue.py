"""Requests that come together begin some at a time, those of each project in turn."""

from __future__ import annotations

import asyncio

from voicemem.runtime import FairQueue


async def begin(queue: FairQueue, project: str, began: list[str]) -> None:
    await queue.enter_for_round(project)
    began.append(project)


async def test_a_flood_lets_others_in_between() -> None:
    """The request of another project begins in the next round, however many came before it."""
    queue = FairQueue(slots=2)
    began: list[str] = []
    flood = [asyncio.ensure_future(begin(queue, "flood", began)) for _ in range(50)]
    await asyncio.sleep(0)
    other = asyncio.ensure_future(begin(queue, "other", began))
    await asyncio.gather(*flood, other)
    assert len(began) == 51
    assert began.index("other") <= 6


async def test_few_requests_begin_at_once() -> None:
    """No one waits for a round of the event loop when there is no crowd."""
    queue = FairQueue(slots=2)
    for _ in range(3):
        for _ in range(2):
            turn = queue.enter_for_round("p")
            try:
                turn.send(None)
            except StopIteration:
                continue
            raise AssertionError("it waits")
        await asyncio.sleep(0)


async def test_who_hangs_up_costs_nobody_a_turn() -> None:
    """A request that was cancelled while it waited is passed over."""
    queue = FairQueue(slots=1)
    began: list[str] = []
    waiting = [asyncio.ensure_future(begin(queue, f"p{n}", began)) for n in range(3)]
    await asyncio.sleep(0)
    waiting[1].cancel()
    await asyncio.wait(waiting)
    assert began == ["p0", "p2"]
    assert not queue.waiting
