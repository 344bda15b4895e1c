"""The heard part of a reply: what was played before the user cut in (docs/memory.md, rule 4).

The kinds of evidence are tried from the best to the worst; the first available one gives the text.
"""

from bisect import bisect_left
from collections.abc import Iterator
from fractions import Fraction
from itertools import chain
from typing import NamedTuple

from voicemem.dialects.known import UNITS_A_SECOND
from voicemem.transcript.replies import evidence, playing
from voicemem.transcript.replies.evidence import BY_TIME, ESTIMATED, Interruption, Source
from voicemem.transcript.replies.matching import WordMatch
from voicemem.transcript.state import Reply, State
from voicemem.transcript.timeline import AFTER_ALL, BEFORE_ALL, TimedText
from voicemem.transcript.whole_words import after_closing_marks, prefix_of_units, units_of, whole_word_prefix

USUAL = Fraction(UNITS_A_SECOND, 1000)
"""Units per millisecond, if no earlier reply shows a rate."""

NO_TEXT = TimedText(BEFORE_ALL, 0, "")


class HeardText(NamedTuple):
    """The heard text, and the method: None for exact text, else `aligned`, `estimated` or `unmatched`."""

    text: str
    method: str | None


class Position(NamedTuple):
    """A position in a reply's audio, and when it was reported; of two, the greater is the newer."""

    ts: int
    order: int
    ms: int


class Cut:
    """A reply that was cut, with the evidence about it."""

    def __init__(self, state: State, reply: Reply, sources: list[Source], resumed_ts: int, first: Interruption) -> None:
        self.state = state
        self.reply = reply
        self.sources = sources
        self.resumed_ts = resumed_ts
        """Interruptions up to this time were false alarms."""
        self.first = first
        """The first interruption that marks the reply; its time is that of the cut."""
        self.ts = first.ts
        self.until = AFTER_ALL if first.closing else self.ts + 1
        """Only evidence before this time counts, except that of interruptions; for a close, all does."""
        self.original = reply.generation.text()
        self.generated = self.original if first.closing else reply.generation.text_until(self.ts)

    def newest(self, kind: str) -> tuple[Interruption, Source] | tuple[None, None]:
        """Return the newest marking interruption that states evidence of a kind, and its source."""
        if self.first.closing:
            return None, None
        since, heard_ts = self.resumed_ts + 1, self.reply.heard_ts
        newest = ((source.newest(kind, since, heard_ts), source) for source in self.sources)
        known = ((cut, source) for cut, source in newest if cut is not None)
        return max(known, key=lambda pair: BY_TIME(pair[0]), default=(None, None))

    def metadata(self) -> list[Interruption]:
        """Return the marking interruptions that have metadata."""
        if self.first.closing:
            return []
        return [
            cut
            for source in self.sources
            for cut in source.stating("metadata")
            if self.resumed_ts < cut.ts and cut.marks(self.reply.heard_ts)
        ]

    def heard_text(self) -> HeardText:
        """Return the text by the best evidence."""
        return next(chain(self.reported(), self.by_clock()))

    def reported(self) -> Iterator[HeardText]:
        """Yield the heard texts by the evidence, the best first; none if only the clock shows how long it played."""
        yield from self.as_stated(estimated=False)
        yield from self.by_share(estimated=False)
        yield from self.as_stated(estimated=True)
        yield from self.by_share(estimated=True)
        if self.position(estimated=False) or self.position(estimated=True):
            yield from self.by_clock()

    def as_stated(self, estimated: bool) -> Iterator[HeardText]:
        """Yield the heard texts of the kinds a to d: by texts, counts, and positions among words."""
        prefix, method = (ESTIMATED, "estimated") if estimated else ("", "aligned")
        cut, source = self.newest(prefix + "heard_text")
        if cut is not None and source is not None:
            yield self.exact(source.heard_text(cut), estimated)
        cut, _ = self.newest(prefix + "heard_chars")
        if cut is not None:
            count = cut.heard_chars or 0
            fits = count <= len(self.generated)
            yield HeardText(whole_word_prefix(self.generated if fits else self.original, count), method)
        yield from self.by_words(estimated)
        text, is_estimate = self.last_text()
        if text is not None and is_estimate == estimated:
            yield self.exact(text, estimated)

    def exact(self, text: str, estimated: bool) -> HeardText:
        """Return a heard text, character for character."""
        if not " ".join(self.original.split()).startswith(" ".join(text.split())):
            return HeardText(text, "unmatched")
        return HeardText(text, "estimated" if estimated else None)

    def by_words(self, estimated: bool) -> Iterator[HeardText]:
        """Yield the heard texts by a position among the words; estimates if either is one."""
        match = playing.match_words(self.state, self.reply, self.sources)
        if match is None:
            return
        for is_estimate in (False, True) if estimated else (False,):
            position = self.position(is_estimate)
            if position is not None and estimated == (is_estimate or match.has_estimates):
                is_guess = estimated or match.clause_at(position.ms) is not None
                yield HeardText(self.through_word(match, position.ms), "estimated" if is_guess else "aligned")

    def through_word(self, match: WordMatch, position_ms: int) -> str:
        """Return the text through the last word that had ended; text generated later must not change it."""
        end = match.end_at(position_ms)
        text = self.generated if end <= len(self.generated) else self.original
        return text[: after_closing_marks(text, end)] if end else ""

    def position(self, estimated: bool) -> Position | None:
        """Return the position in the audio: the newest interruption's, else the last one that playback reported."""
        cut, _ = self.newest((ESTIMATED if estimated else "") + "audio_end_ms")
        stated = [] if cut is None else [Position(cut.ts, cut.order, cut.audio_end_ms or 0)]
        if stated and not estimated:
            return stated[-1]
        name = "estimated_audio" if estimated else "audio"
        for source in self.sources:
            for series in evidence.timelines(source, name):
                last = series.last(min(self.until, source.until), source.since)
                if last is not None:
                    stated.append(Position(*last))
        return max(stated, default=None)

    def last_text(self) -> tuple[str | None, bool]:
        """Return the last stated text by then, or a later estimate that begins with it, and whether it is one."""
        stated = max((next(texts, NO_TEXT) for texts in self.texts_before("texts")), default=NO_TEXT)
        estimates = (
            next((text for text in texts if text[:2] < stated[:2] or text.text.startswith(stated.text)), NO_TEXT)
            for texts in self.texts_before("estimated_texts")
        )
        estimate = max(estimates, default=NO_TEXT)
        newest = max(stated, estimate)
        return (None, False) if newest is NO_TEXT else (newest.text, newest is not stated)

    def texts_before(self, name: str) -> Iterator[Iterator[TimedText]]:
        """Yield the texts of a kind by then from each source, the newest first."""
        for source in self.sources:
            series = getattr(source.evidence.playback, name, None)
            if series is not None:
                yield series.backwards(min(self.until, source.until), source.since)

    def by_share(self, estimated: bool) -> Iterator[HeardText]:
        """Yield the heard text of the kind e: the share of the text is the position's share of the audio."""
        position, total = self.position(estimated), evidence.largest_total(self.sources)
        if position is not None and total is not None:
            entry = total[0]
            measured = evidence.measured_text(self.reply.generation, total)
            length = len(measured) * min(position.ms, entry.value) // entry.value
            yield HeardText(whole_word_prefix(self.generated, length), "estimated")

    def by_clock(self) -> Iterator[HeardText]:
        """Yield the heard text of the kinds f to h: by the rate of speech, else all text."""
        position = self.position(estimated=False) or self.position(estimated=True)
        elapsed_ms = self.elapsed_ms() if position is None else position.ms
        if elapsed_ms is None:
            yield HeardText(self.generated, "estimated")
            return
        units = int(elapsed_ms * rate_before(self.state, self.reply))
        yield HeardText(prefix_of_units(self.generated, units), "estimated")

    def elapsed_ms(self) -> int | None:
        """Return how long the reply had been playing, by the clock; None if no event states a time."""
        if not (self.reply.states_time or any(map(evidence.states_time, self.sources))):
            return None
        end = self.ts
        if self.first.closing:
            known = self.state.ended_ts
            end = self.state.clock_of(self.reply.producer, self.ts) if known is None else known
        start = evidence.first_progress(self.sources)
        if start is None:
            start = max(self.reply.text_ts, end_before(self.state, self.reply))
        return max(0, end - start - paused_ms(self.state, self.reply, self.sources, start, end))


def end_before(state: State, reply: Reply) -> int:
    """Return when the reply before this one stopped playing, if that is known."""
    keys = playing.standing_keys(state)
    place = bisect_left(keys, reply.key) - 1
    before = None if place < 0 else state.replies[keys[place][2]]
    if before is None:
        return BEFORE_ALL
    ends = [ts for ts in (before.cut_ts, before.heard_ts) if ts is not None]
    if not ends and state.closed_ts is not None and playing.plays_at_close(state, before):
        ends.append(state.closed_ts)
    return min(ends, default=BEFORE_ALL)


def paused_ms(state: State, reply: Reply, sources: list[Source], start: int, end: int) -> int:
    alarms = playing.false_alarms_of(state, reply, sources)
    return sum(max(0, min(resume, end) - max(cut, start)) for cut, resume in alarms)


def cut_of(state: State, reply: Reply) -> Cut:
    """Return the cut of a reply, by the user or by the close (`playing.is_cut`)."""
    sources = playing.sources_of(state, reply)
    if reply.cut_ts is not None:
        first = playing.marking_cut(state, reply, sources)
        assert first is not None
        return Cut(state, reply, sources, playing.resumed_until(state, reply, sources), first)
    assert state.closed_ts is not None
    close = Interruption(state.closed_ts, state.position, closing=True, cause=state.close_reason)
    return Cut(state, reply, sources, BEFORE_ALL, close)


def heard_so_far(state: State, reply: Reply) -> str | None:
    """Return the heard text of a reply neither cut nor over, as if it were cut now; None without evidence."""
    now = Interruption(BEFORE_ALL, state.position, closing=True)
    reported = next(Cut(state, reply, playing.sources_of(state, reply), BEFORE_ALL, now).reported(), None)
    return None if reported is None else reported.text


# The rate of speech of a voice: units of text per millisecond


def rate_before(state: State, reply: Reply) -> Fraction:
    """Return the median rate of the replies before one that are complete, not interrupted, and have a total."""
    keys = playing.standing_keys(state)
    place = bisect_left(keys, reply.key)
    before = (rate_of(state, state.replies[key[2]]) for key in keys[max(0, place - playing.REACH) : place])
    rates = sorted(rate for rate in before if rate is not None)
    if not rates:
        return USUAL
    middle = len(rates) // 2
    return rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2


def rate_of(state: State, reply: Reply) -> Fraction | None:
    if reply.restored or playing.is_cut(state, reply) or not reply.generation.complete:
        return None
    sources = playing.sources_of(state, reply)
    largest = evidence.largest_total(sources)
    if largest is not None:
        return Fraction(units_of(evidence.measured_text(reply.generation, largest)), largest[0].value)
    highest = (one.highest for source in sources for one in evidence.timelines(source, "audio"))
    played_ms = max(highest if has_done(sources) else (), default=0)
    return Fraction(units_of(reply.generation.text()), played_ms) if played_ms else None


def has_done(sources: list[Source]) -> bool:
    return any(True for _ in evidence.first_entries(sources, "dones"))
