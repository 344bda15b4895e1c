"""SubRip (SRT): what was heard. The format has no comments, so what was not heard is not in it."""

from __future__ import annotations

from voicemem.exports.call import Call
from voicemem.exports.cues import cues_of
from voicemem.exports.plain_text import one_line
from voicemem.exports.times import cue_time


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
