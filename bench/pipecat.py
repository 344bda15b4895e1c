"""How exact the memory of Pipecat calls is: its own, and that of voicemem.integrations.pipecat.

    python -m bench.pipecat                     every scenario in every mode; takes some minutes
    python -m bench.pipecat --mode words        one mode; `--scenario NAME` one scenario

Real `PipelineWorker`s with Pipecat's aggregators, base classes of services and output transport; the caller, the LLM,
the TTS and the device are scripted (bench/harness/pipecat), and time is virtual, so that two runs are the same. The
voice has the word times of espeak-ng (fixtures/truth). A reply counts 0 words wrong when the remembered text ends
between the last word that had ended and the last that had begun.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Sequence

from loguru import logger

from bench.harness.pipecat.call import MODES
from bench.harness.pipecat.scenarios import SCENARIOS
from bench.harness.pipecat.scoring import Score, record
from bench.harness.report import Measured, at_most, machine, show, table

GOALS = {name: 0.5 if "words" in name else 2.0 if name == "tokens" else 0.2 for name in MODES}
"""Words wrong of a cut reply, on average."""


def mean(wrong: Sequence[int]) -> float:
    return sum(map(abs, wrong)) / max(1, len(wrong))


def figures(found: dict[str, list[Score]]) -> list[Measured]:
    """Words wrong of a cut reply in each mode, next to Pipecat's own context."""
    measured = []
    for mode, scores in found.items():
        cut = [one for one in scores if one.cut]
        ours, own = mean([one.wrong for one in cut]), mean([one.own_wrong for one in cut])
        what = f"words wrong of a cut reply: {mode}"
        measured.append(Measured(mode, what, ours, "words", own, at_most(ours, GOALS[mode])))
    return measured


def rows(found: dict[str, list[Score]]) -> list[tuple[str, ...]]:
    """Of each scenario, the words wrong of its cut replies in each mode: ours, and Pipecat's own."""
    cells = []
    for scenario in SCENARIOS:
        row = [scenario.name]
        for scores in found.values():
            cut = [one for one in scores if one.scenario == scenario.name and one.cut]
            row += [" ".join(f"{one.wrong:+d}" for one in cut), " ".join(f"{one.own_wrong:+d}" for one in cut)]
        cells.append(tuple(row))
    return cells


def main(arguments: Sequence[str]) -> int:
    made = argparse.ArgumentParser(prog="python -m bench.pipecat", description=__doc__.splitlines()[0])
    made.add_argument("--mode", choices=list(MODES), help="only this mode")
    made.add_argument("--scenario", choices=[one.name for one in SCENARIOS], help="only this scenario")
    given = made.parse_args(arguments)
    logger.remove()
    found = {
        name: [
            score
            for scenario in SCENARIOS
            if given.scenario in (None, scenario.name)
            for score in record(scenario, mode).scores
        ]
        for name, mode in MODES.items()
        if given.mode in (None, name)
    }
    print(table(["scenario", *(name for mode in found for name in (mode, "Pipecat"))], rows(found)), end="\n\n")
    everything = [one for scores in found.values() for one in scores]
    damaged = sum(not one.cut and one.wrong != 0 for one in everything)
    show("pipecat", machine(), figures(found), replies=len(everything), damaged=damaged)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
