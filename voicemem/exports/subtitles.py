"""Subtitles, as WebVTT and as SubRip (SRT): the heard text of a call, with its times on the screen.

SRT has no comments, so unheard text is only in WebVTT.
"""

from collections.abc import Iterator
from itertools import zip_longest
from typing import NamedTuple

from voicemem.exports.call import Call, Utterance, cue_time, date_time, one_line

CHARACTERS_PER_S = 15
"""The usual rate of speech, if the length is unknown; as in docs/memory.md, rule 4."""
SHORTEST_MS = 1_000
HEAD = "WEBVTT\n\n"


class Cue(NamedTuple):
    """An utterance, and the times of its display, in ms since the call began."""

    start: int
    end: int
    utterance: Utterance


def cues_of(call: Call) -> Iterator[Cue]:
    """Yield a cue for each utterance, by start; the heard text of some may be empty."""
    zero, starts = call.start_ms, [one.start_ms for one in call.utterances]
    ordered = sorted(range(len(starts)), key=starts.__getitem__)
    for place, following in zip_longest(ordered, ordered[1:]):
        one = call.utterances[place]
        start, end = one.start_ms, one.end_ms
        if end is None:  # as long as it takes to say, but not beyond the next one
            end = start + max(SHORTEST_MS, len(one.heard) * 1000 // CHARACTERS_PER_S)
            end = end if following is None or starts[following] <= start else min(end, starts[following])
        yield Cue(start - zero, end - zero, one)


def webvtt(call: Call) -> Iterator[str]:
    """Yield a file of cues whose times count from the first heard utterance."""
    zero, number = call.start_ms, 0
    yield f"{HEAD}NOTE session {escaped(call.facts.session_id)}, 00:00:00.000 is {date_time(zero)}\n"
    for cue in cues_of(call):
        one, start, end = cue.utterance, cue_time(cue.start, "."), cue_time(cue.end, ".")
        if one_line(one.heard):
            number += 1
            name = escaped(one.speaker)
            name = f"{name[:-1]}&#45;" if name.endswith("-") else name  # or it would make an arrow with the tag's end
            yield f"\n{number}\n{start} --> {end}\n<v {name}>{escaped(one.heard)}\n"
        if one.is_cut:
            cut = end if one.cut_at_ms is None else cue_time(max(0, one.cut_at_ms - zero), ".")
            yield f"\nNOTE interrupted at {cut}, unheard: {escaped(one.unheard) or '(nothing)'}\n"


def escaped(text: str) -> str:
    """Return a text on one line, so that no blank line ends the cue, and without an arrow or a tag."""
    return one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def srt(call: Call) -> Iterator[str]:
    """Yield numbered cues whose times count from the first heard utterance."""
    number = 0
    for cue in cues_of(call):
        said = shown(cue.utterance.heard)
        if said:
            between = "\n" if number else ""
            number += 1
            times = f"{cue_time(cue.start, ',')} --> {cue_time(cue.end, ',')}"
            yield f"{between}{number}\n{times}\n{shown(cue.utterance.speaker)}: {said}\n"


def shown(text: str) -> str:
    """Return a text on one line, without angle brackets: players take tags as markup, and have no escape for them."""
    return one_line(text).replace("<", "‹").replace(">", "›")
