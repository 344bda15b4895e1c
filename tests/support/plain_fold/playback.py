"""What playback shows of a reply: whether it plays, and whether it was heard to its end (rules 4 and 5)."""

from __future__ import annotations

from collections.abc import Sequence
from fractions import Fraction

from .call import Call, meant
from .replies import ONLY_HEARD, Reply
from .rows import Event
from .text import cut, find_words, has_word, heard_at, runs, through
from .timing import largest_total, measured_text, words_of

DONE_SLACK_MS = 250


def playback_of(call: Call, reply: Reply) -> list[Event]:
    """Rule 5: the `tts` events of a reply other than timing only."""
    return [one for one in call.about(reply, "tts") if is_playback(one)]


def is_playback(event: Event) -> bool:
    """Events: progress is `heard_text`, `audio_ms` or `done`."""
    return bool("heard_text" in event.fields or "audio_ms" in event.fields or event.fields.get("done"))


def ends(call: Call, reply: Reply, interrupts: Sequence[Event]) -> list[Event]:
    """Rule 5: all that shows that the reply was heard to its end, while these interrupts stand."""
    dones = [one for one in call.about(reply, "tts") if one.fields.get("done")]
    standing = [one for one in dones if not is_taken_back(call, reply, one, interrupts)]
    return standing + reaching(call, reply)


def heard_to_end(call: Call, reply: Reply, interrupts: Sequence[Event], ts: int | None = None) -> bool:
    """Rule 5: whether playback, up to a `ts`, shows that the reply was heard to its end."""
    return any(ts is None or one.ts <= ts for one in ends(call, reply, interrupts))


def reaching(call: Call, reply: Reply) -> list[Event]:
    """Rule 5: progress that reaches the reply's end, once it has finished generating."""
    if not reply.finished or reply.kind == ONLY_HEARD:
        return []
    own = [one for one in call.about(reply, "interrupt") if not one.fields.get("more")]
    progress = call.about(reply, "tts") + own
    end_ms = end_of_audio(call, reply)
    return [
        one
        for one in progress
        if ("heard_text" in one.fields and runs(one.fields["heard_text"]) == runs(reply.text))
        or (end_ms is not None and one.fields.get("audio_ms", -1) >= end_ms)
    ]


def end_of_audio(call: Call, reply: Reply) -> int | None:
    """Rule 5: the largest total, or without a total the end of the last word of the reply's text."""
    total = largest_total(call, reply)
    if total:
        return int(total.fields["total_audio_ms"])
    found = find_words(reply.text, words_of(call, reply))
    return found[-1].end_ms if found and through(reply.text, found[-1].end) == reply.text else None


def is_taken_back(call: Call, reply: Reply, done: Event, interrupts: Sequence[Event]) -> bool:
    """Rule 4: a position that shows that the audio had not ended takes a done back; without a total it stands."""
    total = largest_total(call, reply)
    if total is None:
        return False
    largest = total.fields["total_audio_ms"]
    positions = stated_positions_since(done, interrupts) + new_heights_after(call, reply, done)
    return any(one < largest - DONE_SLACK_MS and leaves_a_word(call, reply, one) for one in positions)


def stated_positions_since(done: Event, interrupts: Sequence[Event]) -> list[int]:
    """Rule 4: the stated positions of interrupts with `ts` at or after a done."""
    stated = [one for one in interrupts if "audio_end_ms" in one.fields and not one.estimated]
    return [one.fields["audio_end_ms"] for one in stated if one.ts >= done.ts]


def new_heights_after(call: Call, reply: Reply, done: Event) -> list[int]:
    """Rule 4: every `audio_ms` reported after a done that is above every one before itself; 0 says nothing."""
    positions = [one for one in call.about(reply, "tts") if one.fields.get("audio_ms", 0) > 0]
    played = sorted(positions, key=lambda one: one.order)
    heights = []
    for at, one in enumerate(played):
        before = [earlier.fields["audio_ms"] for earlier in played[:at]]
        if one.order > done.order and all(one.fields["audio_ms"] > earlier for earlier in before):
            heights.append(one.fields["audio_ms"])
    return heights


def leaves_a_word(call: Call, reply: Reply, position: int) -> bool:
    """Rule 4: whether a position, by c, else e, leaves a word of the reply unheard."""
    found = find_words(reply.text, words_of(call, reply))
    if found:
        end, _ = heard_at(reply.text, found, position)
        text = through(reply.text, end) if end else ""
    else:
        total = largest_total(call, reply)
        assert total is not None
        measured = measured_text(reply, total)
        text = cut(reply.text, int(Fraction(position * len(measured), total.fields["total_audio_ms"])))
    return has_word(reply.text[len(text) :])


def ended_by_others(call: Call, reply: Reply) -> bool:
    """Rule 5: playback of a later reply, or a later turn's first final, also ends its playing."""
    finals = (one for one in call.events if one.type == "asr" and one.fields.get("final") and one.text)
    if any(one.turn is not None and one.turn > reply.turn for one in finals):
        return True
    played = (meant(one, call.replies) for one in call.events if one.type == "tts" and is_playback(one))
    return any(one is not None and one.order > reply.order for one in played)
