"""The text of a reply as the LLM generated it: deltas, whole texts, and ends (docs/memory.md, rule 2)."""

from __future__ import annotations

from array import array
from bisect import bisect_left, bisect_right

from msgspec import Struct, field

from voicemem.transcript.timeline import Column, TextTimeline, Timeline


class Deltas(Struct, array_like=True, gc=False):
    """Plain deltas, in the order of their arrival."""

    pieces: list[str] = []
    """Their texts; joined when they are read."""
    times: Column = field(default_factory=lambda: array("q"))
    ends: Column = field(default_factory=lambda: array("q"))
    """The length of the text through each delta."""
    peaks: Column | None = None
    """The latest `ts` up to each delta; None while the deltas arrive in the order of their times."""

    def add(self, ts: int, text: str) -> None:
        times = self.times
        if self.peaks is not None:
            self.peaks.append(max(ts, self.peaks[-1]))
        elif times and ts < times[-1]:
            self.peaks = array("q", times)
            self.peaks.append(times[-1])
        times.append(ts)
        self.ends.append(len(text) + (self.ends[-1] if self.ends else 0))
        self.pieces.append(text)

    def text(self) -> str:
        if len(self.pieces) > 1:
            self.pieces = ["".join(self.pieces)]
        return self.pieces[0] if self.pieces else ""

    def count_until(self, ts: int) -> int:
        """How many deltas come before the first that has a later time than `ts`."""
        return bisect_right(self.times if self.peaks is None else self.peaks, ts)

    def first_after(self, whole_ts: int, arrived: int) -> int:
        """The first delta after a whole text, where all arrived in order; `arrived` were there when the text came."""
        if not arrived and (not self.times or self.times[0] >= whole_ts):
            return 0
        return max(bisect_left(self.times, whole_ts), min(arrived, bisect_right(self.times, whole_ts)))

    def after(self, whole_ts: int, arrived: int) -> list[int]:
        """The indexes of the deltas that belong after a whole text."""
        times = self.times
        return [i for i, ts in enumerate(times) if ts > whole_ts or (ts == whole_ts and i >= arrived)]

    def between(self, first: int, stop: int) -> str:
        if stop <= first:
            return ""
        return self.text()[self.ends[first - 1] if first else 0 : self.ends[stop - 1]]

    def length(self, first: int, stop: int) -> int:
        if stop <= first:
            return 0
        return self.ends[stop - 1] - (self.ends[first - 1] if first else 0)


class Generation(Struct, array_like=True, gc=False):
    """What the LLM generated of one reply."""

    deltas: Deltas = field(default_factory=Deltas)
    whole_texts: TextTimeline | None = None
    """Texts of all so far; in place of its journal position, each has the number of deltas that came before it."""
    final_texts: TextTimeline | None = None
    ended_ts: int | None = None
    """When the LLM finished or failed, the last time if it said so several times; None until then."""
    others: int = 0
    """How many events there were that are not plain deltas."""

    @property
    def events(self) -> int:
        """How many events there were; a text made from fewer is out of date."""
        return len(self.deltas.times) + self.others

    def add_whole(self, ts: int, text: str) -> None:
        self.others += 1
        self.whole_texts = self.whole_texts or TextTimeline(Timeline())
        self.whole_texts.add(ts, len(self.deltas.times), text)

    def finish(self, ts: int, order: int, text: str | None) -> None:
        self.others += 1
        if self.ended_ts is None:
            self.deltas.text()  # one text takes less memory than its pieces
        self.ended_ts = ts if self.ended_ts is None else max(ts, self.ended_ts)
        if text is not None:
            self.final_texts = self.final_texts or TextTimeline(Timeline())
            self.final_texts.add(ts, order, text)

    @property
    def complete(self) -> bool:
        return self.ended_ts is not None

    def text(self) -> str:
        """All of the text: the newest final text, else the newest whole text and the deltas after it."""
        final = self.final_texts.last() if self.final_texts is not None else None
        return self.joined() if final is None else final.text

    def joined(self) -> str:
        """The newest whole text, and the deltas after it in the order of their arrival."""
        whole = self.whole_texts.last() if self.whole_texts is not None else None
        deltas = self.deltas
        if whole is None:
            return deltas.text()
        if not deltas.times:
            return whole.text
        if deltas.peaks is None:
            return whole.text + deltas.between(deltas.first_after(whole.ts, whole.order), len(deltas.times))
        return whole.text + "".join(deltas.between(i, i + 1) for i in deltas.after(whole.ts, whole.order))

    def length_until(self, until: int) -> int | None:
        """How long the text was at a time; None where no delta of it has a later time.

        It is the longest beginning of the text in which no delta has a later time: a delta continues those that
        arrived before it. Whole and final texts limit nothing.
        """
        deltas = self.deltas
        whole = self.whole_texts.last() if self.whole_texts is not None else None
        if whole is None:
            count = deltas.count_until(until)
            return None if count == len(deltas.times) else deltas.length(0, count)
        if deltas.peaks is None:
            first = deltas.first_after(whole.ts, whole.order)
            count = max(first, deltas.count_until(until))
            return None if count == len(deltas.times) else len(whole.text) + deltas.length(first, count)
        length = len(whole.text)
        for index in deltas.after(whole.ts, whole.order):
            if deltas.times[index] > until:
                return length
            length += deltas.length(index, index + 1)
        return None

    def text_until(self, until: int) -> str:
        """The text generated until a time, that time included: a beginning of all the text."""
        length = self.length_until(until)
        return self.text() if length is None else self.text()[:length]
