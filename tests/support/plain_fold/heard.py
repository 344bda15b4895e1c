"""How much of a cut reply was heard (rule 4)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from fractions import Fraction
from functools import cached_property

from .call import Call
from .clock import speaking_ms
from .interruptions import is_cut, marking_interrupts
from .replies import Reply
from .rows import Event
from .text import code_points_in, cut, find_words, heard_at, runs, through
from .timing import largest_total, measured_text, median_rate, rate_of, timed_words

Evidence = tuple[str, str | None]
"""The heard text, and the value of `metadata.heard`."""


@dataclass(frozen=True)
class Cut:
    """Where a reply was cut: by its interrupts, or by the close (`until` is None then: all that arrived counts)."""

    call: Call
    reply: Reply

    @cached_property
    def interrupts(self) -> list[Event]:
        """Rule 4: all interrupts of a reply count."""
        return marking_interrupts(self.call, self.reply)

    @cached_property
    def time(self) -> int | None:
        """Rule 4: the earliest `ts` is the time; at a close there is none, since all that has arrived counts."""
        return min((one.ts for one in self.interrupts), default=None)

    @cached_property
    def generated(self) -> str:
        """The text generated until the time."""
        return self.reply.generated_until(self.time)

    def played(self, name: str) -> list[Event]:
        """The reply's playback with this field up to the time, by `ts`, then by arrival."""
        mine = (one for one in self.call.about(self.reply, "tts") if name in one.fields)
        return sorted((one for one in mine if self.time is None or one.ts <= self.time), key=lambda one: one.order)

    def latest(self, name: str, estimated: bool) -> Event | None:
        """Rule 4: inside a kind the later `ts`, then the later arrival."""
        mine = [one for one in self.interrupts if name in one.fields and one.estimated == estimated]
        return max(mine, key=lambda one: one.order, default=None)

    def position(self, estimated: bool) -> int | None:
        """Rule 4c: the `audio_end_ms` of an interrupt, else the last `audio_ms` above 0 up to the time."""
        if interrupt := self.latest("audio_end_ms", estimated):
            return int(interrupt.fields["audio_end_ms"])
        heights = [one.fields["audio_ms"] for one in self.played("audio_ms") if one.estimated == estimated]
        above = [height for height in heights if height > 0]
        return above[-1] if above else None

    def any_position(self) -> tuple[int | None, bool]:
        """A position and whether it is estimated: a stated one, where there is one."""
        stated = self.position(False)
        return (stated, False) if stated is not None else (self.position(True), True)


def heard_of(call: Call, reply: Reply) -> Evidence:
    """Rule 4: the best evidence gives the text."""
    where = Cut(call, reply)
    exact: list[Callable[[Cut, bool], Evidence | None]] = [
        heard_text,
        heard_chars,
        position_in_words,
        played_text,
        share_of_total,
    ]
    for estimated in (False, True):
        for kind in exact:
            found = kind(where, estimated)
            if found is not None:
                return found
    return at_rate(where)


def matched(reply: Reply, text: str, estimated: bool) -> Evidence:
    """Messages: `unmatched` when a heard text is no beginning of the original, which wins over `estimated`."""
    if not runs(reply.text).startswith(runs(text)):
        return text, "unmatched"
    return text, "estimated" if estimated else None


def heard_text(where: Cut, estimated: bool) -> Evidence | None:
    """Rule 4a: the `heard_text` of an interrupt, character for character."""
    best = where.latest("heard_text", estimated)
    return matched(where.reply, best.fields["heard_text"], estimated) if best else None


def heard_chars(where: Cut, estimated: bool) -> Evidence | None:
    """Rule 4b: so many code points of the text generated until the time, or of the original if they go beyond it."""
    best = where.latest("heard_chars", estimated)
    if best is None:
        return None
    count = best.fields["heard_chars"]
    text = where.generated if count <= len(where.generated) else where.reply.text
    return cut(text, count), "estimated" if estimated else "aligned"


def position_in_words(where: Cut, estimated: bool) -> Evidence | None:
    """Rule 4c: a position against the words; it is marked when the position or a word is."""
    timed = timed_words(where.call, where.reply)
    position, guessed = where.any_position()
    marked = guessed or any(event.estimated for _, event in timed)
    found = find_words(where.reply.text, [word for word, _ in timed])
    if position is None or marked != estimated or not found:
        return None
    end, is_share = heard_at(where.reply.text, found, position)
    text = where.generated if end <= len(where.generated) else where.reply.text
    return through(text, end) if end else "", "estimated" if estimated or is_share else "aligned"


def played_text(where: Cut, estimated: bool) -> Evidence | None:
    """Rule 4d: the last stated `tts.heard_text` up to the time, unless a later estimated one begins with it."""
    played = where.played("heard_text")
    stated = [one for one in played if not one.estimated]
    best = stated[-1] if stated else next(iter(reversed(played)), None)
    for one in played:
        if stated and one.estimated and one.order > stated[-1].order:
            longer = one.fields["heard_text"].startswith(stated[-1].fields["heard_text"])
            best = one if longer else best
    if best is None or best.estimated != estimated:
        return None
    return matched(where.reply, best.fields["heard_text"], estimated)


def share_of_total(where: Cut, estimated: bool) -> Evidence | None:
    """Rule 4e: as large a share of the measured text as the position is of the largest total."""
    position = where.position(estimated)
    total = largest_total(where.call, where.reply)
    if position is None or total is None:
        return None
    length = len(measured_text(where.reply, total))
    count = min(length, int(Fraction(position * length, total.fields["total_audio_ms"])))
    return cut(where.generated, count), "estimated"


def at_rate(where: Cut) -> Evidence:
    """Rules 4f to 4h: what is said in this time at the rate of speech, or all where nothing states a time."""
    position, _ = where.any_position()
    if position is None and nothing_timed(where):
        return where.generated, "estimated"
    duration = speaking_ms(where.call, where.reply, where.time) if position is None else position
    budget = Fraction(duration) * rate_of_speech(where.call, where.reply) / 1000
    return cut(where.generated, code_points_in(where.generated, budget)), "estimated"


def nothing_timed(where: Cut) -> bool:
    """Rule 4h: whether nothing of the reply, neither its text nor its playback, states a `ts`."""
    return not any(one.stated for one in (*where.reply.events, *where.call.about(where.reply, "tts")))


def rate_of_speech(call: Call, reply: Reply) -> Fraction:
    """Rule 4: the median over those of the 20 replies before that are complete, uncut and have a total."""
    before = [one for one in call.replies if one.order < reply.order][-20:]
    uncut = [one for one in before if one.finished and not is_cut(call, one)]
    return median_rate([rate for one in uncut if (rate := rate_of(call, one)) is not None])
