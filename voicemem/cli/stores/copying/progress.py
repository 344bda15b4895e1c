"""How far a long copy has come: a bar on a terminal, and else a line now and then."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager

import click

from voicemem.store.ports.copying import CopyMark, Report

LINE_S = 5.0
"""Between two lines."""


@contextmanager
def shown_progress(label: str, begun: CopyMark) -> Iterator[Report]:
    """Show on standard error what is reported, from `begun` on, in events of all events."""
    total = begun.volume.events
    if not sys.stderr.isatty():
        yield Lines(label, begun).show
        return
    with click.progressbar(length=max(total, 1), label=label, file=sys.stderr, item_show_func=figures) as bar:

        def show(mark: CopyMark) -> None:
            bar.update(min(mark.events, bar.length or 1) - bar.pos, mark)

        show(begun)
        bar.start = time.time()
        bar.avg = []  # what an earlier run has done says nothing about the speed of this one
        yield show
        bar.update((bar.length or 1) - bar.pos)


class Lines:
    """Plain lines, for logs."""

    def __init__(self, label: str, begun: CopyMark) -> None:
        self.label = label
        self.begun = begun
        self.began_s = self.shown_s = time.monotonic()

    def show(self, mark: CopyMark) -> None:
        now = time.monotonic()
        if now - self.shown_s < LINE_S:
            return
        self.shown_s = now
        total, done = mark.volume.events, mark.events - self.begun.events
        left = (total - mark.events) * (now - self.began_s) / done if done > 0 else 0.0
        click.echo(f"{self.label}: {figures(mark)} of {total:,}, {max(left, 0):.0f} s left", err=True)


def figures(mark: CopyMark | None) -> str | None:
    """What is shown of a mark."""
    return None if mark is None else f"{mark.size / 1e6:,.0f} MB, {mark.events:,} events"
