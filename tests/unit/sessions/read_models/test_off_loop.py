"""Work off the event loop: it holds up no one, and is stopped once it has used up its CPU time."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import threading
import time
from functools import partial

import pytest

from voicemem.sessions.off_loop import BACKGROUND_THREADS, THREADS, BudgetExhausted, OffLoop, check_budget

SOON_S = 0.02
"""A budget that endless work uses up at once."""


def endless() -> None:
    """Work without an end, which checks its budget as a fold does."""
    while True:
        check_budget()
        sum(range(100))


async def test_the_result_comes_back() -> None:
    """So does what the work raises; it runs on a thread of its own."""
    off_loop = OffLoop()
    assert threading.get_ident() != await off_loop.run(threading.get_ident)
    with pytest.raises(ZeroDivisionError):
        await off_loop.run(lambda: 1 // 0)


async def test_endless_work_is_stopped() -> None:
    """It stops at its next check, and the event loop goes on meanwhile."""
    off_loop, turns = OffLoop(SOON_S), 0
    running = asyncio.create_task(off_loop.run(endless))
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(BudgetExhausted):
        await running
    assert turns > 1


async def test_waiting_costs_no_budget() -> None:
    """Only the CPU time of the work's own thread counts, so that a busy machine does not matter."""
    await OffLoop(SOON_S).run(partial(time.sleep, 10 * SOON_S))


async def test_work_that_checks_nothing_is_left_behind() -> None:
    """Its place is free for others, though its thread still runs."""
    off_loop, enough = OffLoop(SOON_S), threading.Event()
    for _ in range(THREADS + 1):
        with pytest.raises(BudgetExhausted):
            await off_loop.run(partial(endless_until, enough))
    assert "still works" == await off_loop.run(lambda: "still works")
    enough.set()


def endless_until(enough: threading.Event) -> None:
    while not enough.is_set():
        sum(range(100))


async def test_the_background_leaves_room_for_callers() -> None:
    """However much of the background waits, a caller's work begins at once."""
    off_loop, gate, running = OffLoop(), threading.Event(), threading.Semaphore(0)

    def wait() -> None:
        running.release()
        gate.wait(10)

    background = [asyncio.create_task(off_loop.run(wait, background=True)) for _ in range(5)]
    await asyncio.to_thread(running.acquire)
    assert "caller" == await off_loop.run(lambda: "caller")
    begun = BACKGROUND_THREADS
    while running.acquire(blocking=False):
        begun += 1
    assert BACKGROUND_THREADS == begun
    gate.set()
    await asyncio.gather(*background)


async def test_cancelled_work_is_stopped() -> None:
    """A caller that goes away does not leave a thread at work for nothing."""
    begun, ended = threading.Event(), threading.Event()

    def work() -> None:
        try:
            begun.set()
            endless()
        finally:
            ended.set()

    running = asyncio.create_task(OffLoop().run(work))
    assert await asyncio.to_thread(begun.wait, 10)
    running.cancel()
    with pytest.raises(asyncio.CancelledError):
        await running
    assert await asyncio.to_thread(ended.wait, 10)


async def test_projects_take_turns() -> None:
    """Long work of one project gives its thread to another that waits, and continues behind it."""
    off_loop, ended = OffLoop(), list[str]()

    def work(name: str, seconds: float) -> None:
        while time.thread_time() < seconds:
            check_budget()
        ended.append(name)

    crowd = [asyncio.create_task(off_loop.run(partial(work, "crowd", 1.0), owner="crowd")) for _ in range(2 * THREADS)]
    await asyncio.sleep(0)
    await off_loop.run(partial(work, "other", 0.01), owner="other")
    assert ended == ["other"]
    for one in crowd:
        one.cancel()
    await asyncio.gather(*crowd, return_exceptions=True)
    assert "free" == await off_loop.run(lambda: "free")
