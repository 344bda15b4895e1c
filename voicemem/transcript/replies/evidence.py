"""The generated text of a reply, and the reports about its playback and interruptions (docs/memory.md).

An event that names an item or a turn is kept under that name; its reply is found on reading, by its `ts`, so that the
order of arrival does not matter. Positions and word times are ms from the start of the reply's audio.
"""

from array import array
from bisect import bisect_left, bisect_right, insort
from collections.abc import Iterable, Iterator
from itertools import chain
from operator import attrgetter
from typing import Any, NamedTuple

from msgspec import Struct, field

from voicemem.protocol.events import Interrupt, Tts
from voicemem.transcript.timeline import (
    AFTER_ALL,
    BEFORE_ALL,
    NO_NUMBERS,
    Column,
    Entry,
    MergedMetadata,
    PrefixCompressedTexts,
    TextTimeline,
    TimedText,
    Timeline,
    column_of,
    merge_metadata,
)

# The text as the LLM generated it


class Deltas(Struct, array_like=True, gc=False):
    """Plain deltas, in the order of arrival."""

    pieces: list[str] | str
    """Their texts, which are joined when they are read."""
    base: int = 0
    """The time of the first; all times are kept as ms after it."""
    marks: Column = field(default_factory=lambda: NO_NUMBERS)
    """The time of each, and the length of the text through it, interleaved."""
    peaks: Column | None = None
    """The latest `ts` up to each delta; None while the deltas arrive in the order of time."""

    def __len__(self) -> int:
        return len(self.marks) // 2

    def ts(self, index: int) -> int:
        return self.base + self.marks[2 * index]

    def add(self, ts: int, text: str) -> None:
        """Add a delta that is not the first."""
        marks, after, pieces = self.marks, ts - self.base, self.pieces
        if self.peaks is not None:
            self.peaks.append(max(ts, self.peaks[-1]))
        elif after < marks[-2]:
            self.peaks = array("q", (*map(self.ts, range(len(self))), self.ts(-1)))
        try:
            marks.append(after)
        except OverflowError:
            marks = self.marks = array("q", marks)
            marks.append(after)
        marks.append(len(text) + marks[-2])
        if isinstance(pieces, str):
            self.pieces = [pieces, text]
        else:
            pieces.append(text)

    def text(self) -> str:
        if not isinstance(self.pieces, str):
            self.pieces = "".join(self.pieces)
        return self.pieces

    def count_until(self, ts: int) -> int:
        """Return how many deltas come before the first one with a time after `ts`."""
        if self.peaks is not None:
            return bisect_right(self.peaks, ts)
        return bisect_right(range(len(self)), ts, key=self.ts)

    def first_after(self, whole_ts: int, arrived: int) -> int:
        """Return the first delta after a whole text, if all arrived in order; `arrived` of them came before it."""
        if not arrived and (not self.marks or self.base >= whole_ts):
            return 0
        before = bisect_left(range(len(self)), whole_ts, key=self.ts)
        return max(before, min(arrived, self.count_until(whole_ts)))

    def after(self, whole_ts: int, arrived: int) -> list[int]:
        """Return the indexes of the deltas that belong after a whole text."""
        times = enumerate(map(self.ts, range(len(self))))
        return [i for i, ts in times if ts > whole_ts or (ts == whole_ts and i >= arrived)]

    def between(self, first: int, stop: int) -> str:
        return self.text()[self.end(first) : self.end(stop)]

    def end(self, count: int) -> int:
        """Return the length of the text of the first `count` deltas."""
        return self.marks[2 * count - 1] if count else 0

    def length(self, first: int, stop: int) -> int:
        return max(0, self.end(stop) - self.end(first))


NO_DELTAS = Deltas("")
"""The deltas of a reply without any, such as a whole message."""


class Generation(Struct, array_like=True, gc=False):
    """The LLM's generation of one reply."""

    deltas: Deltas = field(default_factory=lambda: NO_DELTAS)
    whole_texts: TextTimeline | None = None
    """Whole texts so far; in place of a journal position, each has the number of deltas before it."""
    final: TimedText | None = None
    """The final text, if it is the only one, as it almost always is."""
    final_texts: TextTimeline | None = None
    """All final texts, if there are several."""
    ended_ts: int | None = None
    """When the LLM finished or failed, by the latest report; None before that."""
    others: int = 0
    """The number of events that are not plain deltas."""

    @property
    def events(self) -> int:
        """The number of events; a text made from fewer is outdated."""
        return len(self.deltas.marks) // 2 + self.others

    def add(self, ts: int, text: str) -> None:
        if self.deltas.marks:
            self.deltas.add(ts, text)
        else:
            self.deltas = Deltas(text, ts, column_of(0, len(text)))

    def add_whole(self, ts: int, text: str) -> None:
        self.others += 1
        self.whole_texts = self.whole_texts or TextTimeline(Timeline())
        self.whole_texts.add(ts, len(self.deltas), text)

    def finish(self, ts: int, order: int, text: str | None) -> None:
        self.others += 1
        if self.ended_ts is None:
            joined = self.deltas.text()  # one text takes less memory than pieces, and one object less than two
            text = joined if text == joined else text
            if self.deltas.marks:
                self.deltas.marks = self.deltas.marks[:]  # without spare room
        self.ended_ts = ts if self.ended_ts is None else max(ts, self.ended_ts)
        if text is not None and self.final is None and self.final_texts is None:
            self.final = TimedText(ts, order, text)
        elif text is not None:
            self.final_texts = self.final_texts or TextTimeline(Timeline())
            if self.final is not None:
                self.final_texts.add(*self.final)
                self.final = None
            self.final_texts.add(ts, order, text)

    @property
    def complete(self) -> bool:
        return self.ended_ts is not None

    def text(self) -> str:
        """Return the whole text: the newest final text, else the newest whole text and the deltas after it."""
        final = self.final if self.final_texts is None else self.final_texts.last()
        return self.joined() if final is None else final.text

    def length(self) -> int:
        """Return the length of the text, without joining it if the deltas arrived in the order of time."""
        deltas, whole = self.deltas, None if self.whole_texts is None else self.whole_texts.last()
        if self.final is not None or self.final_texts is not None or (whole is not None and deltas.peaks is not None):
            return len(self.text())
        first = 0 if whole is None else deltas.first_after(whole.ts, whole.order)
        return (0 if whole is None else len(whole.text)) + deltas.length(first, len(deltas))

    def joined(self) -> str:
        """Return the newest whole text, and the deltas after it in the order of arrival."""
        whole = self.whole_texts.last() if self.whole_texts is not None else None
        deltas = self.deltas
        if whole is None:
            return deltas.text()
        if not deltas.marks:
            return whole.text
        if deltas.peaks is None:
            return whole.text + deltas.between(deltas.first_after(whole.ts, whole.order), len(deltas))
        return whole.text + "".join(deltas.between(i, i + 1) for i in deltas.after(whole.ts, whole.order))

    def length_until(self, until: int) -> int | None:
        """Return the length of the text at a time; None if no delta has a later time.

        That is the longest prefix of the text in which no delta has a later time, since a delta continues those that
        arrived before it. Whole and final texts set no limit.
        """
        deltas = self.deltas
        whole = self.whole_texts.last() if self.whole_texts is not None else None
        length = 0 if whole is None else len(whole.text)
        if whole is None or deltas.peaks is None:
            first = 0 if whole is None else deltas.first_after(whole.ts, whole.order)
            count = max(first, deltas.count_until(until))
            return None if count == len(deltas) else length + deltas.length(first, count)
        for index in deltas.after(whole.ts, whole.order):
            if deltas.ts(index) > until:
                return length
            length += deltas.length(index, index + 1)
        return None

    def text_until(self, until: int) -> str:
        """Return the text generated up to and including a time, a prefix of the whole text."""
        length = self.length_until(until)
        return self.text() if length is None else self.text()[:length]


class Interruption(Struct, array_like=True, frozen=True, gc=False):
    """One interruption of a reply, with its evidence."""

    ts: int
    order: int
    """The position in the journal; of two with the same `ts`, the later one is the newer."""
    heard_text: int | None = None
    """The number of the text in `Evidence.heard_texts`."""
    heard_chars: int | None = None
    audio_end_ms: int | None = None
    estimated: bool = False
    more: bool = False
    """True if it marks the reply even if playback shows that all of it was heard."""
    closing: bool = False
    """True for the interruption by the close of the session."""
    cause: str | None = None
    metadata: dict[str, Any] | None = None

    def marks(self, heard_ts: int | None) -> bool:
        """Return whether it marks a reply that was heard to the end at `heard_ts`, or never was."""
        return heard_ts is None or self.ts < heard_ts or self.more


KINDS = ("heard_text", "heard_chars", "audio_end_ms")
ESTIMATED = "~"
"""The prefix of a kind that was reported as an estimate."""


def kinds_of(interruption: Interruption) -> Iterator[str]:
    """Yield the kinds of evidence that an interruption states."""
    prefix = ESTIMATED if interruption.estimated else ""
    yield from (prefix + kind for kind in KINDS if getattr(interruption, kind) is not None)
    if interruption.metadata:
        yield "metadata"


class TimedWord(Struct, array_like=True, frozen=True, gc=False):
    """One word of a reply's audio; `ts` is the time of the engine's report."""

    ts: int
    order: int
    start_ms: int
    end_ms: int
    text: str
    estimated: bool


class TimedMetadata(Struct, array_like=True, frozen=True, gc=False):
    """The metadata of one event, with its `ts` and its position in the journal."""

    ts: int
    order: int
    metadata: dict[str, Any]


class Playback(Struct, array_like=True, gc=False):
    """Reports about playback. Most calls use one or two of these series, so the others are None."""

    starts: Timeline | None = None
    """Positions of 0, which only show that playback has begun."""
    audio: Timeline | None = None
    """Positions above 0, in ms."""
    estimated_audio: Timeline | None = None
    texts: TextTimeline | None = None
    estimated_texts: TextTimeline | None = None
    dones: Timeline | None = None
    totals: Timeline | None = None
    """The lengths of the audio, in ms."""
    measured_texts: dict[int, str] | None = None
    """The texts whose audio some of these totals measure, by journal position."""
    words: list[TimedWord] | None = None
    metadata: list[TimedMetadata] | None = None
    merged_metadata: MergedMetadata | None = None
    undated: set[int] | None = None
    """The journal positions of the events that stated no `ts`."""
    audio_start: int | None = None
    """When the audio would have begun to end at the same time without gaps (`note_gap`)."""

    def add(self, event: Tts, ts: int, order: int) -> None:
        audio_ms = event.audio_ms
        if event.heard_text is not None:
            self.series("estimated_texts" if event.estimated else "texts").add(ts, order, event.heard_text)
        if audio_ms is not None and audio_ms > 0 and not event.estimated:
            if self.audio is None:
                self.audio = Timeline()
            self.audio.add(ts, order, audio_ms)
        elif audio_ms is not None:
            self.series("starts" if audio_ms == 0 else "estimated_audio").add(ts, order, audio_ms)
        if event.done:
            self.series("dones").add(ts, order, 0)
        if event.total_audio_ms is not None:
            if event.ts is not None:
                self.note_gap(ts, event.total_audio_ms)
            self.series("totals").add(ts, order, event.total_audio_ms)
            if event.synthesised_text is not None:
                self.measured_texts = self.measured_texts or {}
                self.measured_texts[order] = event.synthesised_text
        if event.words or event.metadata or event.ts is None:
            self.add_rest(event, ts, order)

    def note_gap(self, ts: int, total_ms: int) -> None:
        """Move the start of the audio by the silence before this piece, if all before it may have been played."""
        before = None if self.totals is None else self.totals.last()
        before_ms = 0 if before is None else before.value
        if total_ms > before_ms or self.audio_start is None:
            start = ts if not before_ms else ts - before_ms  # mostly the same object as the time of the report
            self.audio_start = start if self.audio_start is None else max(self.audio_start, start)

    def add_rest(self, event: Tts, ts: int, order: int) -> None:
        if event.words:
            self.words = self.words or []
            self.words += (
                TimedWord(ts, order, word.start_ms, word.end_ms, word.text, event.estimated) for word in event.words
            )
        if event.metadata:
            self.metadata = self.metadata or []
            self.metadata.append(TimedMetadata(ts, order, event.metadata))
            self.merged_metadata = merge_metadata(self.merged_metadata, order, event.metadata)
        if event.ts is None:
            self.undated = self.undated or set()
            self.undated.add(order)

    def series(self, name: str) -> Any:
        """Return the series of a name, which is made on its first use."""
        known = getattr(self, name)
        if known is None:
            known = TextTimeline(Timeline()) if name.endswith("texts") else Timeline()
            setattr(self, name, known)
        return known


class Evidence(Struct, array_like=True, gc=False):
    """Reports that name one item or one turn, or that were assigned to one reply."""

    playback: Playback | None = None
    interruptions: list[Interruption] | None = None
    """Sorted by time, then by arrival."""
    resumes: list[int] | None = None
    """The times of `resume`, sorted."""
    cancels: list[int] | None = None
    """The times of `llm.cancel`, sorted."""
    by_kind: dict[str, list[Interruption]] | None = None
    """The interruptions that state evidence, by its kind (`kinds_of`), sorted likewise."""
    heard: dict[str, list[int]] | None = None
    """The times of their heard texts, by the texts with single spaces."""
    heard_texts: PrefixCompressedTexts | None = None
    """The heard texts of all interruptions."""
    has_more: bool = False
    """True if an interruption marks its reply whatever playback shows."""
    word_count: int = 0

    def interrupt(self, event: Interrupt, ts: int, order: int) -> None:
        self.interruptions = self.interruptions or []
        heard = None
        if event.heard_text is not None:
            self.heard_texts = self.heard_texts or PrefixCompressedTexts()
            heard = self.heard_texts.add(event.heard_text)
        stated = heard, event.heard_chars, event.audio_end_ms, event.estimated, event.more
        interruption = Interruption(ts, order, *stated, cause=event.cause, metadata=event.metadata)
        insort(self.interruptions, interruption, key=BY_TIME)
        for kind in kinds_of(interruption):
            self.by_kind = self.by_kind or {}
            insort(self.by_kind.setdefault(kind, []), interruption, key=BY_TIME)
        if event.heard_text is not None and not event.more:
            self.heard = self.heard or {}
            insort(self.heard.setdefault(" ".join(event.heard_text.split()), []), ts)
        self.has_more |= event.more

    def resume(self, ts: int) -> None:
        self.resumes = self.resumes or []
        insort(self.resumes, ts)

    def cancel(self, ts: int) -> None:
        self.cancels = self.cancels or []
        insort(self.cancels, ts)


BY_TIME = attrgetter("ts", "order")
TS = attrgetter("ts")


class Source(NamedTuple):
    """The part of some evidence that is about one reply: the reports from `since` to before `until`."""

    evidence: Evidence
    since: int = BEFORE_ALL
    until: int = AFTER_ALL

    @property
    def is_whole(self) -> bool:
        return self.since == BEFORE_ALL and self.until == AFTER_ALL

    def interruptions(self, since: int = BEFORE_ALL) -> list[Interruption]:
        """Return the interruptions from a time on, in order."""
        return self.within(self.evidence.interruptions or [], since)

    def stating(self, kind: str) -> list[Interruption]:
        """Return the interruptions that state evidence of a kind (`kinds_of`), in order."""
        known = (self.evidence.by_kind or {}).get(kind, [])
        return known if self.is_whole else self.within(known)

    def within(self, known: list[Interruption], since: int = BEFORE_ALL) -> list[Interruption]:
        first = bisect_left(known, max(since, self.since), key=TS)
        return known[first : bisect_left(known, self.until, key=TS)]

    def newest(self, kind: str, since: int, heard_ts: int | None) -> Interruption | None:
        """Return the newest marking interruption from `since` on that states evidence of a kind."""
        known = self.stating(kind)
        until = AFTER_ALL if heard_ts is None or self.evidence.has_more else heard_ts
        for place in range(bisect_left(known, until, key=TS) - 1, -1, -1):
            if known[place].ts < since:
                return None
            if known[place].marks(heard_ts):
                return known[place]
        return None

    def heard_text(self, cut: Interruption) -> str:
        """Return the text that an interruption of this evidence states."""
        texts = self.evidence.heard_texts
        return "" if texts is None or cut.heard_text is None else texts.text(cut.heard_text)

    def first_heard(self, text: str) -> int | None:
        """Return when an interruption first stated a heard text, which has single spaces here."""
        times = (self.evidence.heard or {}).get(text)
        place = bisect_left(times, self.since) if times else 0
        return times[place] if times and place < len(times) and times[place] < self.until else None

    def first_interruption(self, since: int = BEFORE_ALL) -> Interruption | None:
        """Return the earliest interruption from a time on."""
        known = self.evidence.interruptions
        if not known:
            return None
        place = bisect_left(known, max(since, self.since), key=TS)
        return known[place] if place < len(known) and known[place].ts < self.until else None

    def resumes(self, since: int, until: int) -> list[int]:
        """Return the times of the resumes from `since` to before `until`."""
        known = self.evidence.resumes
        return [] if not known else known[bisect_left(known, since) : bisect_left(known, until)]

    def newest_resume(self, since: int, until: int) -> int:
        """Return the time of the newest resume in that range; `BEFORE_ALL` if there is none."""
        known = self.evidence.resumes or ()
        place = bisect_left(known, until) - 1
        return known[place] if place >= 0 and known[place] >= since else BEFORE_ALL

    def text_of(self, total: Entry) -> str | None:
        """Return the text that a total measures, if it states one."""
        playback = self.evidence.playback
        texts = None if playback is None else playback.measured_texts
        return None if texts is None else texts.get(total.order)


# Reports about one reply


def timelines(source: Source, *names: str) -> Iterator[Timeline]:
    """Yield the named series of a playback that have entries."""
    playback = source.evidence.playback
    for name in names:
        series = None if playback is None else getattr(playback, name)
        if series is not None:
            yield getattr(series, "lengths", series)


def first_entries(sources: Iterable[Source], *names: str) -> Iterator[Entry]:
    """Return the first entry about a reply in each of the named series of its sources."""
    firsts = (series.first(one.until, one.since) for one in sources for series in timelines(one, *names))
    return (first for first in firsts if first is not None)


def last_entries(sources: Iterable[Source], *names: str) -> Iterator[Entry]:
    """Return the last entry about a reply in each of them."""
    lasts = (series.last(one.until, one.since) for one in sources for series in timelines(one, *names))
    return (last for last in lasts if last is not None)


PROGRESS = ("starts", "audio", "estimated_audio", "texts", "estimated_texts", "dones")
POSITIONS = ("audio", "estimated_audio")
TEXTS = ("texts", "estimated_texts")


def first_progress(sources: list[Source]) -> int | None:
    """Return when playback was first reported; word times and totals alone do not count."""
    return min((first.ts for first in first_entries(sources, *PROGRESS)), default=None)


def has_progress(sources: list[Source]) -> bool:
    """Return whether any playback was reported; word times and totals alone do not count."""
    for source in sources:
        playback = source.evidence.playback
        if playback is None:
            continue
        for name in PROGRESS:
            series = getattr(playback, name)
            if series is not None and (
                source.is_whole or getattr(series, "lengths", series).last(source.until, source.since)
            ):
                return True
    return False


def states_time(source: Source) -> bool:
    """Return whether any playback stated its `ts`."""
    playback = source.evidence.playback
    if playback is None:
        return False
    entries = chain(
        *(series.entries(source.until, source.since) for series in timelines(source, *PROGRESS, "totals")),
        (one for one in (*(playback.words or ()), *(playback.metadata or ())) if source.since <= one.ts < source.until),
    )
    return any(entry.order not in (playback.undated or ()) for entry in entries)


def largest_total(sources: list[Source]) -> tuple[Entry, Source] | None:
    """Return the largest total of the audio, and its source; of equal ones the newest."""
    largest: tuple[Entry, Source] | None = None
    for source in sources:
        totals = None if source.evidence.playback is None else source.evidence.playback.totals
        total = None if totals is None else totals.highest_entry(source.until, source.since)
        if total is None or not total.value:
            continue
        if largest is None or (total.value, *total[:2]) > (largest[0].value, *largest[0][:2]):
            largest = total, source
    return largest


def measured_text(generation: Generation, total: tuple[Entry, Source]) -> str:
    """Return the text that a total measures: the one that it states, else that generated by then, else the whole."""
    stated = total[1].text_of(total[0])
    if stated is not None:
        return stated
    return generation.text_until(total[0].ts) or generation.text()


def was_played(sources: list[Source]) -> bool:
    """Return whether there is a position above 0, a `tts.done`, or an interrupt with heard text."""
    for source in sources:
        if any(last_entries([source], "audio", "estimated_audio", "dones")):
            return True
        for series in timelines(source, *TEXTS):
            if any(entry.value for entry in series.entries(source.until, source.since)):
                return True
        for kind in ("heard_text", ESTIMATED + "heard_text"):
            if any(cut.heard_text for cut in source.stating(kind)):
                return True
    return False


def may_show_end(evidence: Evidence) -> bool:
    """Return whether any report may show the end of a reply; totals and word times never do."""
    playback = evidence.playback
    if playback is None or evidence.heard:
        return bool(evidence.heard)
    return not (
        playback.dones is None
        and playback.audio is None
        and playback.estimated_audio is None
        and playback.texts is None
        and playback.estimated_texts is None
    )
