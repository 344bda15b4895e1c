"""What a frame of another stack costs: reduced before the journal, and translated and folded after it.

    python -m bench.dialects [--rounds 40]

It takes the recorded calls of `fixtures/`, so that every dialect is measured as soon as it has one. Webhooks are taken
apart first, as the service does. The baseline is the decoding of what is journaled for the frame.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable
from pathlib import Path
from typing import Any

import msgspec

from bench.harness.report import Measured, at_most, best, machine, show
from voicemem.dialects.dialect import Frame
from voicemem.dialects.registry import DIALECTS, split_frame
from voicemem.protocol.codec import decode_journaled
from voicemem.protocol.events import FrameEvent
from voicemem.transcript.fold import DecodedRow, fold_all
from voicemem.transcript.state import State

FIXTURES = Path(__file__).parents[1] / "fixtures"
MAX_FOLD_US = 40.0


def envelopes(dialect: str) -> list[list[dict[str, Any]]]:
    """The envelopes of each recorded call."""
    calls = [path.read_text("utf-8").splitlines() for path in sorted((FIXTURES / dialect).glob("*.jsonl"))]
    return [[line for text in call if "frame" in (line := msgspec.json.decode(text))] for call in calls]


def taken(dialect: str, line: dict[str, Any]) -> list[Frame]:
    """What is kept of the frames of one message."""
    reduce, side = DIALECTS[dialect].reduce, line.get("from")
    frames = split_frame(FrameEvent(dialect=dialect, frame=line["frame"]))
    return [frame for one in frames if (frame := reduce(one.frame, side)) is not None]


def kept(dialect: str, call: list[dict[str, Any]]) -> list[bytes]:
    """What is journaled of a call."""
    return [
        msgspec.json.encode(FrameEvent(dialect=dialect, frame=frame.content, ts=line.get("ts"), id=frame.id))
        for line in call
        for frame in taken(dialect, line)
    ]


def microseconds(work: Callable[[], object], rounds: int, frames: int) -> float:
    return best(lambda: [work() for _ in range(rounds)]) / (rounds * frames) * 1e6


def measure(dialect: str, rounds: int) -> list[Measured]:
    """The cost of a frame of one dialect, over all of its recorded calls."""
    calls = envelopes(dialect)
    journals = [kept(dialect, call) for call in calls]
    rows = [[DecodedRow(place, 0, decode_journaled(text)) for place, text in enumerate(one, 1)] for one in journals]
    sent, stored = sum(map(len, calls)), sum(map(len, journals))
    decoding = microseconds(lambda: [decode_journaled(text) for one in journals for text in one], rounds, stored)
    reducing = microseconds(lambda: [taken(dialect, line) for call in calls for line in call], rounds, sent)
    folding = microseconds(lambda: [fold_all(State(), one) for one in rows], rounds, stored)
    goal = at_most(folding, MAX_FOLD_US)
    return [
        Measured(f"{dialect}_reduce_us", f"{dialect}: a message reduced", reducing, "us"),
        Measured(f"{dialect}_fold_us", f"{dialect}: a frame translated and folded", folding, "us", decoding, goal),
    ]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=40, help="how often each call is folded")
    rounds = parser.parse_args().rounds
    show("dialects", machine(), [one for dialect in DIALECTS for one in measure(dialect, rounds)])


if __name__ == "__main__":
    main()
