"""Work off the event loop: it holds up nobody, and is interrupted once it has used up its CPU time."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import asyncio
import subprocess
import sys
import threading
import time
from functools import partial

import pytest

from voicemem.sessions.read_models.off_loop import BACKGROUND_THREADS, THREADS, BudgetExhausted, OffLoop

SOON_S = 0.02
"""A budget that endless work uses up at once."""


def endless() -> None:
    """What an unforeseen loop does."""
    numbers = [0]
    while True:
        numbers[0] += sum(range(100))


def stubborn() -> None:
    """The same, by code that catches every error of its own."""
    while True:
        try:
            endless()
        except Exception:
            continue


async def test_the_result_comes_back() -> None:
    """So does what the work raises; it runs on a thread of its own."""
    off_loop = OffLoop()
    assert threading.get_ident() != await off_loop.run(threading.get_ident)
    with pytest.raises(ZeroDivisionError):
        await off_loop.run(lambda: 1 // 0)


@pytest.mark.parametrize("work", [endless, stubborn])
async def test_endless_work_is_interrupted(work: object) -> None:
    """Wherever it is in Python code, and the event loop goes on meanwhile."""
    assert callable(work)
    off_loop, turns = OffLoop(SOON_S), 0
    running = asyncio.create_task(off_loop.run(work))
    while not running.done():
        await asyncio.sleep(0)
        turns += 1
    with pytest.raises(BudgetExhausted):
        await running
    assert turns > 1


class Remains:
    """What runs Python code when it goes, as a weak reference's callback does; it swallows what is raised there."""

    def __init__(self, end_s: float) -> None:
        self.end_s = end_s

    def __del__(self) -> None:
        while time.monotonic() < self.end_s:
            sum(range(100))


async def test_an_interruption_that_python_drops_is_made_again() -> None:
    """One that comes while something is finalised reaches nobody, so another one follows."""
    off_loop = OffLoop(SOON_S)

    def tidies_up() -> None:
        Remains(time.monotonic() + 5 * SOON_S)
        endless()

    with pytest.raises(BudgetExhausted):
        await off_loop.run(tidies_up)
    threads = [thread for thread in threading.enumerate() if thread.name == "voicemem-off-loop"]
    for thread in threads:
        await asyncio.to_thread(thread.join, 10)
        assert not thread.is_alive()


async def test_waiting_costs_no_budget() -> None:
    """Only the CPU time of the work's own thread counts, so that a busy machine does not matter."""
    await OffLoop(SOON_S).run(partial(time.sleep, 10 * SOON_S))


async def test_work_that_cannot_be_interrupted_is_left_behind() -> None:
    """Its place is free for others, though its thread still runs."""
    off_loop, enough, left = OffLoop(SOON_S), threading.Event(), threading.Event()

    def deaf() -> None:
        while not enough.is_set():
            try:
                endless_until(enough)
            except BaseException:
                continue
        left.set()

    for _ in range(THREADS + 1):
        with pytest.raises(BudgetExhausted):
            await off_loop.run(deaf)
    assert "still works" == await off_loop.run(lambda: "still works")
    enough.set()
    assert await asyncio.to_thread(left.wait, 10)


def endless_until(enough: threading.Event) -> None:
    while not enough.is_set():
        sum(range(100))


async def test_an_interruption_hits_nothing_else() -> None:
    """Work that ends just as its budget does has a result or is interrupted; the loop and later work never are."""
    off_loop, outcomes = OffLoop(0.0), list[bool]()
    for size in range(300):
        try:
            outcomes.append(await off_loop.run(partial(sum, range(size * 300))) == sum(range(size * 300)))
        except BudgetExhausted:
            outcomes.append(True)
    assert 300 * [True] == outcomes
    assert "whole" == await OffLoop().run(lambda: "whole")


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


async def test_cancelled_work_is_interrupted() -> None:
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


PROFILED = """
import asyncio, sys
from voicemem.sessions.read_models.off_loop import BudgetExhausted, OffLoop

async def main():
    await OffLoop().run(lambda: sum(range(1000)))
    for budget_s in (0.001, 0.002, 0.004):
        try:
            await OffLoop(budget_s).run(lambda: [i * i for i in range(10**9)])
        except BudgetExhausted:
            pass

asyncio.run(main())
sys.setprofile(lambda *_: None)
(lambda: [len(str(i)) for i in range(1000)])()
sys.setprofile(None)
print("done")
"""


def test_the_process_can_be_profiled_afterwards() -> None:
    """Neither work that has ended nor work that was interrupted leaves the interpreter looking for interruptions."""
    ran = subprocess.run([sys.executable, "-c", PROFILED], capture_output=True, text=True, timeout=60, check=True)
    assert ran.stdout == "done\n"
