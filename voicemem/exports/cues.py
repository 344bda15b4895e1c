"""Subtitles: what was heard of a call, each with its time on the screen."""

from __future__ import annotations

from typing import NamedTuple

from voicemem.exports.call import Call, Utterance

CHARACTERS_PER_S = 15
"""How fast people speak, where nothing says how long it took; as in docs/memory.md, rule 4."""
SHORTEST_MS = 1_000


class Cue(NamedTuple):
    """An utterance and when it is shown, in ms since the call began."""

    start: int
    end: int
    utterance: Utterance


def cues_of(call: Call) -> list[Cue]:
    """One for each utterance, in the order of their beginnings; of some of them nothing may have been heard."""
    ordered = sorted(call.utterances, key=lambda one: one.start_ms)
    cues, zero, next_start = [], call.start_ms, None
    for one in reversed(ordered):
        cues.append(Cue(one.start_ms - zero, shown_until(one, next_start) - zero, one))
        next_start = one.start_ms
    return cues[::-1]


def shown_until(utterance: Utterance, next_start: int | None) -> int:
    """When it had been heard; where nothing tells, as long as it takes to say, and until the next one at most."""
    start = utterance.start_ms
    if utterance.end_ms is not None:
        return utterance.end_ms
    guessed = start + max(SHORTEST_MS, len(utterance.heard) * 1000 // CHARACTERS_PER_S)
    return guessed if next_start is None or next_start <= start else min(guessed, next_start)
