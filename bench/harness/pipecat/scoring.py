"""How far memories are from what the device played."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import msgspec

from bench.harness.folding import memory_of
from bench.harness.pipecat.call import Call, Mode, Scenario
from bench.harness.pipecat.virtual_time import run_in_virtual_time
from voicemem.integrations.pipecat import observer
from voicemem.protocol.types import JsonObject


class Score(NamedTuple):
    """How many words a memory has of one reply, and what was heard of it."""

    scenario: str
    reply: int
    cut: bool
    words: int
    begun: int
    ended: int
    own_words: int
    """How many words Pipecat's own context has."""

    @property
    def wrong(self) -> int:
        return wrong(self.words, self.begun, self.ended)

    @property
    def own_wrong(self) -> int:
        return wrong(self.own_words, self.begun, self.ended)


def wrong(words: int, begun: int, ended: int) -> int:
    """Words too many, or (below 0) too few."""
    return max(0, words - begun) + min(0, words - ended)


class Recorded(NamedTuple):
    """One call, when it is over."""

    call: Call
    events: list[JsonObject]
    scores: list[Score]

    def messages(self) -> list[JsonObject]:
        return [msgspec.to_builtins(one) for one in memory_of(self.events)]


def record(scenario: Scenario, mode: Mode, kind: type[Call] = Call) -> Recorded:
    """Make a call in virtual time."""
    events: list[JsonObject] = []

    async def run() -> Call:
        call = kind(scenario, mode)
        call.worker.add_observer(observer(events.append, client_buffer_ms=mode.buffer_ms))
        await call.run()
        return call

    call = run_in_virtual_time(run())
    remembered = [one.content for one in memory_of(events) if one.role == "assistant"]
    kept: list[Any] = list(call.context.get_messages())
    own = [one["content"] for one in kept if one["role"] == "assistant" and one.get("content")]
    return Recorded(call, events, list(scores_of(scenario, call, remembered, own)))


def scores_of(scenario: Scenario, call: Call, remembered: Sequence[str], own: Sequence[Any]) -> list[Score]:
    found = []
    for number, (speech, truth) in enumerate(zip(scenario.speeches, call.truths(), strict=True)):
        words, own_words = (most_words(texts, speech.text) for texts in (remembered, own))
        cut = truth.ended < len(speech.words)
        found.append(Score(scenario.name, number, cut, words, truth.begun, truth.ended, own_words))
    return found


def most_words(texts: Sequence[str], speech: str) -> int:
    """How many words of a speech a memory has."""
    wanted = speech.split()
    counts = [0]
    for text in texts:
        words = text.split()
        if words == wanted[: len(words)]:
            counts.append(len(words))
        elif words[: len(wanted)] == wanted:
            counts.append(len(wanted))
    return max(counts)
