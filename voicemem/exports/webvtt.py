"""WebVTT: a cue for each utterance that was heard, and what was not heard as a comment."""

from __future__ import annotations

from voicemem.exports.call import Call
from voicemem.exports.cues import Cue, cues_of
from voicemem.exports.plain_text import one_line
from voicemem.exports.times import cue_time, date_time

HEAD = "WEBVTT\n\n"


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
