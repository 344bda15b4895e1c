"""`voicemem serve` with a look at its event loop: what ran whenever the loop was late, for `bench.stalls`.

    python -m bench.harness.stalling FILE MS ARGUMENT…

The loop wakes up every ms. When it does not for so many ms, a thread looks at what all threads are doing; each late
wake-up becomes a line of the file, a `Stall` as JSON. Each SIGUSR1 begins another phase.
"""

from __future__ import annotations

import asyncio
import os
import signal
import sys
import threading
import time
from contextlib import suppress
from pathlib import Path
from types import FrameType

import msgspec
from msgspec import Struct

from voicemem.app import App
from voicemem.cli import main

EVERY_S = 0.001
LONG_COMMIT_S, COMMIT = 0.01, "Writer.commit"
PACKAGE = "/voicemem/"
IDLE = ("run_until_complete", "run")
"""Innermost functions of a loop that runs no Python: it waits for the processor or for the interpreter, or writes."""


class Stall(Struct):
    """A wake-up of the loop that came so late, and what it and the other threads were at."""

    phase: int
    wake_ups: int
    """Of the phase so far."""
    ms: float
    own_ms: float
    """How long the loop's thread was working meanwhile: what it waited for a processor, or for another thread, is no
    work of its own."""
    unscheduled_ms: float
    """How long it was ready to run meanwhile, and other programs or threads had the processors."""
    ran: str
    others: list[str]


class Watch:
    """The heartbeat of the event loop, and the thread that looks at it."""

    def __init__(self, file: Path, late_s: float) -> None:
        self.late_s = late_s
        self.lines = file.open("wb", buffering=0)
        self.phase = self.wake_ups = 0
        self.seen: tuple[str, list[str]] | None = None
        self.awake_s, self.worked_s, self.unscheduled_s = time.perf_counter(), 0.0, 0.0
        self.schedule: int | None = None
        """The file in which Linux counts how long the loop's thread has waited for a processor."""
        self.commit: FrameType | None = None
        self.commit_since_s = 0.0
        self.committed: str | None = None
        """What the present commit was at when it had taken long."""

    def start(self) -> None:
        asyncio.get_running_loop().add_signal_handler(signal.SIGUSR1, self.begin_phase)
        with suppress(OSError):
            self.schedule = os.open(f"/proc/self/task/{threading.get_native_id()}/schedstat", os.O_RDONLY)
        self.awake_s = time.perf_counter()
        threading.Thread(target=self.look_forever, name="watch", daemon=True).start()
        self.beat()

    def begin_phase(self) -> None:
        self.phase, self.wake_ups = self.phase + 1, 0

    def beat(self) -> None:
        now, worked_s = time.perf_counter(), time.thread_time()
        took_s, self.awake_s = now - self.awake_s - EVERY_S, now
        own_s, self.worked_s = worked_s - self.worked_s, worked_s
        unscheduled_s = self.read_unscheduled_s()
        waited_s, self.unscheduled_s = unscheduled_s - self.unscheduled_s, unscheduled_s
        self.wake_ups += 1
        if took_s > self.late_s:
            ran, others = self.seen or ("(not seen)", [])
            stall = Stall(self.phase, self.wake_ups, took_s * 1000, own_s * 1000, waited_s * 1000, ran, others)
            self.lines.write(msgspec.json.encode(stall) + b"\n")
        self.seen = None
        asyncio.get_running_loop().call_later(EVERY_S, self.beat)

    def read_unscheduled_s(self) -> float:
        return 0.0 if self.schedule is None else int(os.pread(self.schedule, 64, 0).split()[1]) / 1e9

    def look_forever(self) -> None:
        own = threading.get_ident()
        while True:
            time.sleep(self.late_s / 2)
            self.look_at_commits()
            if self.seen is None and time.perf_counter() > self.awake_s + EVERY_S + self.late_s:
                frames = sys._current_frames()
                ran = described(frames.pop(threading.main_thread().ident or 0))
                others = {described(frame) for ident, frame in frames.items() if ident != own}
                self.seen = ran, sorted(other for other in others if PACKAGE[1:] in other)

    def look_at_commits(self) -> None:
        """Note what the writer runs in a commit that takes long, during which no event is acknowledged."""
        frames = (innermost_commit(frame) for frame in sys._current_frames().values())
        commit, innermost = next(filter(None, frames), (None, None))
        now = time.perf_counter()
        if commit is None or commit is not self.commit:
            if self.committed is not None:
                took_ms = (now - self.commit_since_s) * 1000
                stall = Stall(self.phase, self.wake_ups, took_ms, 0.0, 0.0, f"commit: {self.committed}", [])
                self.lines.write(msgspec.json.encode(stall) + b"\n")
            self.commit, self.commit_since_s, self.committed = commit, now, None
        elif innermost is not None and self.committed is None and now - self.commit_since_s > LONG_COMMIT_S:
            self.committed = job_of(innermost)


def innermost_commit(frame: FrameType) -> tuple[FrameType, FrameType] | None:
    """The frame of a commit on a stack, and the innermost one."""
    outer: FrameType | None = frame
    while outer is not None and outer.f_code.co_qualname != COMMIT:
        outer = outer.f_back
    return None if outer is None else (outer, frame)


def job_of(frame: FrameType) -> str:
    """The functions of a commit's job, the innermost last; that of the commit itself where it runs no job."""
    names, outer = list[str](), frame
    while outer.f_code.co_qualname not in (COMMIT, "Writer.run_job") and outer.f_back is not None:
        if PACKAGE in outer.f_code.co_filename and not outer.f_code.co_name.startswith("<"):
            names.insert(0, outer.f_code.co_qualname)
        outer = outer.f_back
    return " > ".join(names) or described(frame)


def described(frame: FrameType) -> str:
    """The innermost function of ours on a stack, with its line, and the one that it called."""
    innermost, ours = frame, frame
    while PACKAGE not in ours.f_code.co_filename and ours.f_back is not None:
        ours = ours.f_back
    name = innermost.f_code.co_qualname
    if PACKAGE not in ours.f_code.co_filename or ours.f_code.co_name == "serve":
        return "(no function)" if name.rpartition(".")[2] in IDLE else f"{innermost.f_globals['__name__']}.{name}"
    room = ours.f_code.co_filename.rpartition(PACKAGE)[2].removesuffix(".py")
    called = "" if innermost is ours else f" > {innermost.f_globals['__name__']}.{name}"
    return f"voicemem/{room}:{ours.f_lineno} {ours.f_code.co_qualname}{called}"


def run(file: Path, late_s: float, arguments: list[str]) -> None:
    watch, start = Watch(file, late_s), App.start

    async def watched(app: App) -> None:
        await start(app)
        watch.start()

    setattr(App, "start", watched)  # noqa: B010 (an assignment is an error to mypy)
    sys.argv[1:] = arguments
    main()


if __name__ == "__main__":
    run(Path(sys.argv[1]), float(sys.argv[2]) / 1000, sys.argv[3:])
