"""The measuring program's handles on `bench.harness.load.crowd` and `victim`: start, give commands, stop."""

from __future__ import annotations

import contextlib
import subprocess
from collections.abc import Iterator
from typing import TypeVar

import msgspec
from msgspec import Struct

from bench.harness.load.crowd import Ended, Filled, Paced, Plan
from bench.harness.load.victim import Ack
from bench.harness.servers import started

T = TypeVar("T", bound=Struct)


class Crowd:
    """Sessions that are open and filled."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        self.filled = self.hear(Filled)

    def pace(self, seconds: float, rate: float) -> Paced:
        self.say(f"rate {seconds} {rate}")
        return self.hear(Paced)

    def end(self, sessions: int, gap: float = 0.0) -> Ended:
        self.say(f"end {sessions} {gap}")
        return self.hear(Ended)

    def say(self, line: str) -> None:
        assert self.process.stdin is not None
        self.process.stdin.write(f"{line}\n")
        self.process.stdin.flush()

    def hear(self, kind: type[T]) -> T:
        """The next line that the process prints. Raises `RuntimeError` if it ends instead."""
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise RuntimeError(f"The sessions could not go on; their program ended with {self.process.wait()}.")
        return msgspec.json.decode(line, type=kind)

    def leave(self) -> None:
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()


@contextlib.contextmanager
def crowd(plan: Plan) -> Iterator[Crowd]:
    """Open and filled sessions, in a process of their own."""
    with started("bench.harness.load.crowd", msgspec.json.encode(plan).decode()) as process:
        yield Crowd(process)
        process.kill()


class Watching:
    """The victim, whose session is open."""

    def __init__(self, process: subprocess.Popen[str]) -> None:
        self.process = process
        assert process.stdout is not None
        if not process.stdout.readline():
            raise RuntimeError(f"The victim did not start; its program ended with {process.wait()}.")

    def acks(self) -> list[Ack]:
        """End it; its acks so far."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.stdin = None
        return msgspec.json.decode(self.process.communicate()[0], type=list[Ack])


@contextlib.contextmanager
def victim(host: str, port: int, path: str) -> Iterator[Watching]:
    with started("bench.harness.load.victim", host, str(port), path) as process:
        yield Watching(process)
