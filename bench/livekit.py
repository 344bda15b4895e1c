"""How exact the memory of LiveKit calls is: its own, and that of voicemem.integrations.livekit.

    python -m bench.livekit                     every scenario in every mode; takes a minute, in real time
    python -m bench.livekit --espeak            with the word times of espeak-ng
    python -m bench.livekit --mode plain        one mode; `--scenario NAME` one scenario
    python -m bench.livekit --rounds 3          each call so often

Real `AgentSession`s with LiveKit's own room output and transcript synchroniser; the recogniser, the LLM, the TTS and
the device are scripted (bench/harness/livekit). A reply counts 0 words wrong when the remembered text ends between the
last word that had ended and the last that had begun.
"""

from __future__ import annotations

import argparse
import asyncio
import logging
import sys
from collections.abc import Sequence
from typing import NamedTuple

from bench.harness.folding import memory_of
from bench.harness.livekit.scenarios import SCENARIOS, Scenario
from bench.harness.livekit.stage import MODES, Mode
from bench.harness.report import Measured, at_most, machine, show, table
from voicemem.integrations.livekit import LiveKitCall
from voicemem.protocol.types import JsonObject

GOALS = {"aligned": 0.2, "plain": 0.6, "unsynced": 0.6}
"""Words wrong of a cut reply, on average."""
AT_ONCE = 5
"""Calls that run side by side."""


class Outcome(NamedTuple):
    """One reply of one call."""

    scenario: str
    mode: str
    is_cut: bool
    own: int
    """Words that LiveKit's memory has too many, or too few, below 0."""
    ours: int
    heard: str
    truth: str


async def outcomes(scenario: Scenario, mode: Mode, espeak: bool) -> list[Outcome]:
    """One call, and what the memories have of its replies."""
    events: list[JsonObject] = []
    stage = scenario.stage(mode, espeak)
    LiveKitCall(stage.session, events.append, "b-", None).listen()
    await stage.start(scenario.agent())
    await scenario.act(stage)
    await stage.close()
    remembered = [one for one in memory_of(events) if one.role == "assistant"]
    found = []
    for text in scenario.replies:
        played = stage.heard(text)
        own = next((one for one in stage.own_memory() if one and text.startswith(one.strip())), "")
        ours = next(
            (one.content for one in remembered if (one.metadata.get("original") or one.content).strip() in text), ""
        )
        truth = f"{played.ended} to {played.begun} of {played.words} words"
        found.append(
            Outcome(scenario.name, mode.name, played.is_cut, played.wrong(own), played.wrong(ours), ours, truth)
        )
    return found


async def measure(scenarios: Sequence[Scenario], modes: Sequence[Mode], rounds: int, espeak: bool) -> list[Outcome]:
    turnstile = asyncio.Semaphore(AT_ONCE)

    async def one(scenario: Scenario, mode: Mode) -> list[Outcome]:
        async with turnstile:
            return await outcomes(scenario, mode, espeak)

    calls = [one(scenario, mode) for _ in range(rounds) for mode in modes for scenario in scenarios]
    return [outcome for found in await asyncio.gather(*calls) for outcome in found]


def mean(wrong: Sequence[int]) -> float:
    return sum(map(abs, wrong)) / max(1, len(wrong))


def figures(found: Sequence[Outcome], modes: Sequence[Mode]) -> list[Measured]:
    """Words wrong of a cut reply in each mode, next to LiveKit's own memory."""
    measured = []
    for mode in modes:
        cut = [one for one in found if one.mode == mode.name and one.is_cut]
        ours, own = mean([one.ours for one in cut]), mean([one.own for one in cut])
        what = f"words wrong of a cut reply: {mode.says}"
        measured.append(Measured(mode.name, what, ours, "words", own, at_most(ours, GOALS[mode.name])))
    return measured


def rows(found: Sequence[Outcome], scenarios: Sequence[Scenario], modes: Sequence[Mode]) -> list[tuple[str, ...]]:
    """Of each scenario, the words wrong in each mode: ours, and LiveKit's own."""
    cells: list[tuple[str, ...]] = []
    for scenario in scenarios:
        row = [scenario.name, scenario.says]
        for mode in modes:
            known = [one for one in found if (one.scenario, one.mode) == (scenario.name, mode.name)]
            row += [" ".join(f"{one.ours:+d}" for one in known), " ".join(f"{one.own:+d}" for one in known)]
        cells.append(tuple(row))
    return cells


def main(arguments: Sequence[str]) -> int:
    made = argparse.ArgumentParser(prog="python -m bench.livekit", description=__doc__.splitlines()[0])
    made.add_argument("--mode", choices=[mode.name for mode in MODES], help="only this mode")
    made.add_argument("--scenario", choices=[one.name for one in SCENARIOS], help="only this scenario")
    made.add_argument("--rounds", type=int, default=1, metavar="N", help="each call so often (1)")
    made.add_argument("--espeak", action="store_true", help="speech with the times of espeak-ng")
    given = made.parse_args(arguments)
    logging.getLogger("livekit").setLevel(logging.ERROR)
    modes = [mode for mode in MODES if given.mode in (None, mode.name)]
    scenarios = [one for one in SCENARIOS if given.scenario in (None, one.name)]
    found = asyncio.run(measure(scenarios, modes, given.rounds, given.espeak))
    heading = ["scenario", "", *(name for mode in modes for name in (mode.name, "LiveKit"))]
    print(table(heading, rows(found, scenarios, modes)), end="\n\n")
    wrong = [one for one in found if one.ours]
    for one in wrong:
        print(f"{one.scenario} {one.mode}: {one.ours:+d}, {one.truth}: {one.heard!r}")
    show("livekit", machine(), figures(found, modes), calls=len(found), damaged=sum(not one.is_cut for one in wrong))
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
