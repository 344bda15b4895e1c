"""What a tee costs: in the path of the call, and in all, with reducing and sending, for each kind of frame.

    python -m bench.tee [--frames 20000]

The connection is one of openai's shape that gives and takes frames without a network, and the memory is a real service
in a process of its own. Costs are CPU time of this process, of the fastest of several runs. The baseline of the path is
the same connection without a tee; that of the whole is `json.loads` of the frame, which the SDK does as well.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import time
from collections.abc import Awaitable, Callable
from typing import Any, NamedTuple

import voicemem
from bench.harness.report import Measured, at_most, best, machine, show
from bench.harness.servers import Server, serving
from voicemem.client import Client, Options
from voicemem.integrations.tee import CallMemory

MAX_PATH_US = 20.0
RUNS = 5
IN_A_ROW = 50
"""Frames that pass before the event loop is free: a burst."""
DIALECT = "openai-realtime"
ABOUT = {"response_id": "resp_001", "item_id": "item_001", "output_index": 0, "content_index": 0}


class Kind(NamedTuple):
    """A kind of frame, and who sends it."""

    key: str
    what: str
    is_received: bool
    frame: dict[str, Any]


def audio(size: int) -> str:
    """Audio that takes so many bytes as base64."""
    return base64.b64encode(bytes(range(256)) * (size * 3 // 4 // 256 + 1)).decode()[:size]


def delta(kind: str, text: str) -> dict[str, Any]:
    return {"type": kind, "event_id": "event_AbCdEfGhIjKlMnOpQrStU", **ABOUT, "delta": text}


KINDS = (
    Kind("audio_4k", "audio of the vendor, 4 KB", True, delta("response.output_audio.delta", audio(4_000))),
    Kind("audio_10k", "audio of the vendor, 10 KB", True, delta("response.output_audio.delta", audio(10_000))),
    Kind("text", "a piece of the reply's text", True, delta("response.output_audio_transcript.delta", "Hello ")),
    Kind("append", "audio of the app, 4 KB", False, {"type": "input_audio_buffer.append", "audio": audio(4_000)}),
)


class Connection:
    """What of openai's connection the messages pass, without a network."""

    def __init__(self, message: bytes) -> None:
        self.message = message

    async def recv_bytes(self) -> bytes:
        return self.message

    async def send(self, event: dict[str, Any]) -> None:
        await self._send(json.dumps(event))

    async def _send(self, data: str) -> None:
        pass

    async def close(self) -> None:
        pass


async def pass_frames(connection: Connection, kind: Kind, frames: int, between: Callable[[], Awaitable[None]]) -> int:
    """CPU nanoseconds in the path of the call for so many frames; `between` bursts nothing is counted."""
    spent, text = 0, connection.message.decode()
    for _ in range(frames // IN_A_ROW):
        began = time.process_time_ns()
        if kind.is_received:
            for _ in range(IN_A_ROW):
                await connection.recv_bytes()
        else:
            for _ in range(IN_A_ROW):
                await connection._send(text)
        spent += time.process_time_ns() - began
        await between()
    return spent


async def nothing() -> None:
    pass


async def bare_us(kind: Kind, frames: int) -> float:
    """The path without a tee, µs a frame."""
    connection = Connection(json.dumps(kind.frame).encode())
    return min([await pass_frames(connection, kind, frames, nothing) for _ in range(RUNS)]) / frames / 1_000


async def teed_us(kind: Kind, frames: int, server: Server) -> tuple[float, float]:
    """The path with a tee, and everything that the tee does for a frame until it is acknowledged; µs a frame."""
    url = f"ws://{server.host}:{server.port}"
    options = Options(max_events=10**7, max_bytes=2**31, open_timeout_s=20.0)
    paths, wholes = [], []
    async with Client(url, server.rest, options=options) as client:
        for run in range(RUNS):
            connection = voicemem.tee(
                Connection(json.dumps(kind.frame).encode()), client, f"{kind.key}-{run}", dialect=DIALECT
            )
            memory: CallMemory = voicemem.memory_of(connection)
            assert memory.background is not None
            await memory.background.opening

            async def free(memory: CallMemory = memory) -> None:
                while memory.queue.queued:  # noqa: ASYNC110 (it is the event loop that is measured)
                    await asyncio.sleep(0)

            began = time.process_time_ns()
            paths.append(await pass_frames(connection, kind, frames, free))
            await memory.aclose(timeout=60.0)
            wholes.append(time.process_time_ns() - began)
            assert memory.dropped == 0
    return min(paths) / frames / 1_000, min(wholes) / frames / 1_000


async def measure(kind: Kind, frames: int, server: Server) -> list[Measured]:
    bare = await bare_us(kind, frames)
    path, whole = await teed_us(kind, frames, server)
    text = json.dumps(kind.frame)
    loads = best(lambda: [json.loads(text) for _ in range(1_000)]) / 1_000 * 1e6
    added = path - bare
    return [
        Measured(f"{kind.key}_path_us", f"{kind.what}: in the path", added, "us", bare, at_most(added, MAX_PATH_US)),
        Measured(f"{kind.key}_all_us", f"{kind.what}: in all", whole - bare, "us", loads),
    ]


async def measure_all(frames: int) -> list[Measured]:
    with serving("voicemem", "memory:") as server:
        return [one for kind in KINDS for one in await measure(kind, frames, server)]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--frames", type=int, default=20_000, help="frames of each kind and run")
    frames = max(IN_A_ROW, parser.parse_args().frames // IN_A_ROW * IN_A_ROW)
    show("tee", machine(), asyncio.run(measure_all(frames)))


if __name__ == "__main__":
    main()
