"""Subtitles, as WebVTT and as SubRip (SRT): what was heard of a call, each with its time on the screen.

SRT has no comments, so what was not heard is only in WebVTT.
"""

from __future__ import annotations

from typing import NamedTuple

from voicemem.exports.call import Call, Utterance
from voicemem.exports.text import cue_time, date_time, one_line

CHARACTERS_PER_S = 15
"""How fast people speak, where nothing says how long it took; as in docs/memory.md, rule 4."""
SHORTEST_MS = 1_000
HEAD = "WEBVTT\n\n"


class Cue(NamedTuple):
    """An utterance and when it is shown, in ms since the call began."""

    start: int
    end: int
    utterance: Utterance


def cues_of(call: Call) -> list[Cue]:
    """One for each utterance, in the order of their beginnings; of some of them nothing may have been heard."""
    ordered = sorted(call.utterances, key=lambda one: one.start_ms)
    cues, zero, next_start = [], call.start_ms, None
    for one in reversed(ordered):
        cues.append(Cue(one.start_ms - zero, shown_until(one, next_start) - zero, one))
        next_start = one.start_ms
    return cues[::-1]


def shown_until(utterance: Utterance, next_start: int | None) -> int:
    """When it had been heard; where nothing tells, as long as it takes to say, and until the next one at most."""
    start = utterance.start_ms
    if utterance.end_ms is not None:
        return utterance.end_ms
    guessed = start + max(SHORTEST_MS, len(utterance.heard) * 1000 // CHARACTERS_PER_S)
    return guessed if next_start is None or next_start <= start else min(guessed, next_start)


def webvtt(call: Call) -> str:
    """A file of cues whose times count from the first that was heard."""
    blocks = [f"NOTE session {escaped(call.facts.session_id)}, 00:00:00.000 is {date_time(call.start_ms)}\n"]
    number = 0
    for cue in cues_of(call):
        if one_line(cue.utterance.heard):
            number += 1
            blocks.append(cue_block(number, cue))
        if cue.utterance.is_cut:
            blocks.append(unheard_note(cue))
    return HEAD + "\n".join(blocks)


def cue_block(number: int, cue: Cue) -> str:
    said, speaker = escaped(cue.utterance.heard), tag_name(cue.utterance.speaker)
    return f"{number}\n{cue_time(cue.start, '.')} --> {cue_time(cue.end, '.')}\n<v {speaker}>{said}\n"


def unheard_note(cue: Cue) -> str:
    """The comment after an interrupted reply; where all of it was heard, it says so."""
    return f"NOTE interrupted at {cue_time(cue.end, '.')}, unheard: {escaped(cue.utterance.unheard) or '(nothing)'}\n"


def tag_name(speaker: str) -> str:
    """A name in a tag, whose end must not make an arrow of hyphens."""
    name = escaped(speaker)
    return f"{name[:-1]}&#45;" if name.endswith("-") else name


def escaped(text: str) -> str:
    """On one line, so that no blank line ends the cue, and without an arrow or a tag."""
    return one_line(text).replace("&", "&amp;").replace("<", "&lt;").replace(">", "&gt;")


def srt(call: Call) -> str:
    """Numbered cues whose times count from the first that was heard."""
    heard = [cue for cue in cues_of(call) if one_line(cue.utterance.heard)]
    return "\n".join(
        f"{number}\n{cue_time(cue.start, ',')} --> {cue_time(cue.end, ',')}\n"
        f"{shown(cue.utterance.speaker)}: {shown(cue.utterance.heard)}\n"
        for number, cue in enumerate(heard, 1)
    )


def shown(text: str) -> str:
    """On one line; players take tags in angle brackets as markup, and have no escape for them."""
    return one_line(text).replace("<", "‹").replace(">", "›")
