"""What stands in for `rtc.AudioSource`: a queue of 200 ms that plays 10 ms every 10 ms, and keeps what it played."""

from __future__ import annotations

import asyncio
import contextlib
from array import array
from collections import Counter
from typing import Any
from unittest.mock import Mock, patch

from livekit.agents.voice.room_io import _output as module

from bench.harness.livekit.voice import SAMPLE_RATE

room_io: Any = module
QUEUE_S = 0.2
TICK_S = 0.01


class Device:
    """Plays in real time."""

    def __init__(self) -> None:
        self.queue = array("h")
        self.played: Counter[int] = Counter()
        """How many samples of each word have sounded."""
        self.task = asyncio.create_task(self.play())

    @property
    def queued_duration(self) -> float:
        return len(self.queue) / SAMPLE_RATE

    async def capture_frame(self, frame: Any) -> None:
        self.queue.extend(array("h", bytes(frame.data)))
        while self.queued_duration > QUEUE_S:  # noqa: ASYNC110 (it waits for time to pass)
            await asyncio.sleep(TICK_S)

    async def play(self) -> None:
        """At each tick, as much as the time that has passed: late ticks make up for it."""
        loop = asyncio.get_running_loop()
        last = loop.time()
        while True:
            await asyncio.sleep(TICK_S)
            now = loop.time()
            samples = int((now - last) * SAMPLE_RATE)
            last += samples / SAMPLE_RATE
            self.played.update(self.queue[:samples])
            del self.queue[:samples]

    def clear_queue(self) -> None:
        del self.queue[:]

    async def wait_for_playout(self) -> None:
        while self.queue:  # noqa: ASYNC110 (likewise)
            await asyncio.sleep(TICK_S)

    async def aclose(self) -> None:
        self.task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await self.task

    def heard(self, first: int, last: int, lengths: dict[int, int]) -> tuple[int, int]:
        """Of the words of these numbers: how many until the last that ended, and until the last that had begun."""
        ended = max((n for n in range(first, last + 1) if self.played[n] >= lengths[n]), default=first - 1)
        begun = max((n for n in range(first, last + 1) if self.played[n]), default=first - 1)
        return ended - first + 1, begun - first + 1


def room_output(device: Device) -> Any:
    """LiveKit's own room output, with the device in the place of the track."""
    with patch.object(room_io.rtc, "AudioSource", lambda *_, **__: device):
        output = room_io._ParticipantAudioOutput(
            Mock(), sample_rate=SAMPLE_RATE, num_channels=1, track_publish_options=None
        )
    output._subscribed_fut.set_result(None)
    output._forwarding_task = asyncio.create_task(output._forward_audio())
    return output
