"""How exact the memory is: words wrong in interrupted replies, for each kind of evidence.

    python -m bench.heard                                  the table
    python -m bench.heard --kind position --worst 10       the replies that a kind gets most wrong
    python -m bench.heard --calls FOLDER                   other true calls
    python -m bench.heard --markdown                       the tables of docs/evidence.md

The calls of fixtures/truth/ say what was really played. For each kind of evidence the events that an engine would have
sent are derived from them and folded, and the remembered text is compared with the truth: 0 words are wrong when it
ends between the last word that had ended and the last that had begun. In scripts without spaces, characters count.

`generated` is the baseline: what a memory keeps that takes everything generated for heard. The conditions change what
arrives: reports that are late and positions that are off, another rate of speech, clocks that differ between the host
of the LLM and the one that plays.

Without --kind and --condition, the calls are also made frames of other stacks, where only the clock knows what was
played, and bridged to a simulated phone, whose media stream says it.
"""

from __future__ import annotations

import argparse
import asyncio
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import NamedTuple

from bench.harness.report import Goal, Measured, at_most, machine, number, show, table
from bench.harness.stack_calls import StackExactness, stacks_measured
from bench.harness.truth import CALLS, CONDITIONS, Condition, Score, load_calls, scores
from voicemem.cli.truth import KINDS, Kind, TrueCall

BASELINE = "generated"
GOALS = {
    "words": 0.1,
    "words_sentences": 0.5,
    "clauses": 0.5,
    "total_after": 1.0,
    "total_before": 1.0,
    "done_before": 1.0,
    "position": 1.5,
    "clock_gaps": 1.0,
    "clock_audio": 1.5,
    "clock_text": 2.5,
}
"""Words wrong on average, as it happened."""
BY_CLOCK, WITH_PHONE = 1.5, 0.6
"""The same of stacks."""


class Exactness(NamedTuple):
    """What became of the replies of all calls, with one kind of evidence and under one condition."""

    kind: Kind
    condition: Condition
    cut: list[Score]
    whole: list[Score]

    @property
    def mean(self) -> float:
        return sum(abs(one.wrong) for one in self.cut) / max(1, len(self.cut))

    @property
    def spaceless(self) -> float:
        """The mean of those in scripts without spaces."""
        found = [abs(one.wrong) for one in self.cut if one.spaceless]
        return sum(found) / max(1, len(found))

    @property
    def worst(self) -> int:
        return max((abs(one.wrong) for one in self.cut), default=0)

    @property
    def right(self) -> float:
        """The share of cut replies without a wrong word."""
        return sum(one.wrong == 0 for one in self.cut) / max(1, len(self.cut))

    @property
    def damaged(self) -> int:
        """Complete replies that the memory does not have whole."""
        return sum(one.wrong != 0 for one in self.whole)


def measure(calls: Sequence[TrueCall], kind: Kind, condition: Condition) -> Exactness:
    found = [one for call in calls for one in scores(call, kind, condition)]
    return Exactness(kind, condition, [one for one in found if one.is_cut], [one for one in found if not one.is_cut])


def figures(plain: Sequence[Exactness]) -> list[Measured]:
    """The words wrong as it happened, compared with everything generated."""
    base = next((one.mean for one in plain if one.kind.name == BASELINE), None)
    return [
        Measured(one.kind.name, one.kind.says.replace("`", ""), one.mean, "words", base, goal_of(one)) for one in plain
    ]


def goal_of(one: Exactness) -> Goal | None:
    limit = GOALS.get(one.kind.name)
    return None if limit is None else at_most(one.mean, limit)


def stack_figures(stacks: Sequence[StackExactness]) -> list[Measured]:
    kinds = (("clock", "by the clock", BY_CLOCK), ("phone", "with a phone's stream", WITH_PHONE))
    return [
        Measured(f"{one.stack}_{kind}", f"{one.stack} {says}", mean(wrong), "words", None, at_most(mean(wrong), limit))
        for one in stacks
        for (kind, says, limit), wrong in zip(kinds, (one.by_clock, one.with_phone), strict=True)
        if wrong
    ]


def mean(wrong: Sequence[int]) -> float:
    return sum(wrong) / max(1, len(wrong))


def stack_rows(stacks: Sequence[StackExactness]) -> list[tuple[str, ...]]:
    return [
        (
            one.stack,
            str(len(one.by_clock)),
            *(fixed(mean(wrong)) if wrong else "" for wrong in (one.by_clock, one.with_phone)),
        )
        for one in stacks
    ]


def exactness_rows(plain: Sequence[Exactness]) -> list[tuple[str, ...]]:
    return [
        (
            *(one.kind.name, one.kind.says, str(len(one.cut))),
            *(fixed(one.mean), fixed(one.spaceless), str(one.worst), f"{one.right:.0%}"),
        )
        for one in plain
    ]


def condition_rows(found: Sequence[Exactness], conditions: Sequence[Condition]) -> list[tuple[str, ...]]:
    means = {(one.kind.name, one.condition.name): fixed(one.mean) for one in found}
    kinds = dict.fromkeys(one.kind.name for one in found)
    return [(kind, *(means[kind, condition.name] for condition in conditions)) for kind in kinds]


def fixed(value: float) -> str:
    return f"{value:.2f}"


EXACTNESS = ("kind", "what is sent", "cut replies", "words wrong", "without spaces", "worst", "right")
STACK = ("stack", "cut replies", "by the clock", "with a phone's stream")


def print_tables(
    found: Sequence[Exactness], conditions: Sequence[Condition], stacks: Sequence[StackExactness], markdown: bool
) -> None:
    """First as it happened, then (not for the page) the means under each condition, then those of stacks."""
    plain = [one for one in found if one.condition is conditions[0]]
    show_table = markdown_table if markdown else table
    heading = ("words wrong", *(condition.name for condition in conditions))
    print(show_table(EXACTNESS, exactness_rows(plain)), end="\n\n")
    if not markdown:
        print(table(heading, condition_rows(found, conditions)), end="\n\n")
    if stacks:
        print(show_table(STACK, stack_rows(stacks)), end="\n\n")


def markdown_table(heading: Sequence[str], rows: Sequence[Sequence[str]]) -> str:
    lines = [heading, ["---"] * len(heading), *(with_code(row) for row in rows)]
    return "\n".join(f"| {' | '.join(line)} |" for line in lines)


def with_code(row: Sequence[str]) -> list[str]:
    return [f"`{row[0]}`", *row[1:]]


def print_worst(found: Sequence[Exactness], count: int) -> None:
    for one in found:
        wrong = [reply for reply in one.cut if reply.wrong]
        for reply in sorted(wrong, key=lambda known: -abs(known.wrong))[:count]:
            print(f"{one.kind.name} {one.condition.name} {reply.call} {reply.item}: {reply.wrong:+d}")
            print(f"    truth      {reply.truth[-70:]!r}\n    remembered {reply.heard[-70:]!r}")


def parser() -> argparse.ArgumentParser:
    made = argparse.ArgumentParser(
        prog="python -m bench.heard", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    made.add_argument("--calls", type=Path, default=CALLS, metavar="FOLDER", help="true calls (fixtures/truth/calls)")
    made.add_argument("--kind", action="append", choices=KINDS, help="only this kind of evidence; may be repeated")
    made.add_argument(
        "--condition", action="append", choices=[one.name for one in CONDITIONS], help="only this condition; likewise"
    )
    made.add_argument("--worst", type=int, default=0, metavar="N", help="also show the N worst replies of each")
    made.add_argument("--markdown", action="store_true", help="print the tables for docs/evidence.md, and no JSON")
    return made


def main(arguments: Sequence[str]) -> int:
    made = parser()
    given = made.parse_args(arguments)
    calls = load_calls(given.calls)
    if not calls:
        made.error(f"{given.calls} has no true calls; python fixtures/truth/make.py makes them")
    conditions = [one for one in CONDITIONS if not given.condition or one.name in given.condition]
    kinds = [kind for name, kind in KINDS.items() if not given.kind or name in given.kind]
    found = [measure(calls, kind, condition) for kind in kinds for condition in conditions]
    stacks = [] if given.kind or given.condition else asyncio.run(stacks_measured(calls))
    print_tables(found, conditions, stacks, given.markdown)
    print_worst(found, given.worst)
    if given.markdown:
        return 0
    damaged = sum(one.damaged for one in found)
    print(
        f"{len(calls)} calls; {damaged} of {sum(len(one.whole) for one in found)} complete replies were not kept whole"
    )
    plain = [one for one in found if one.condition is conditions[0]]
    means = {
        kind.name: {one.condition.name: float(number(one.mean)) for one in found if one.kind is kind} for kind in kinds
    }
    show(
        "heard",
        machine(),
        [*figures(plain), *stack_figures(stacks)],
        words_wrong=means,
        damaged=damaged,
        calls=len(calls),
    )
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
