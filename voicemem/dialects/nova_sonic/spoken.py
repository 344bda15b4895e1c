"""FINAL texts: what Nova has spoken, sentence by sentence, of replies whose text and audio came before.

They may come late, after the user's next words, and they do not say which reply they belong to: their words do. Nova
makes audio faster than it is played, so a sentence counts as heard once the clock can have played it.

Notes: `r:REPLY` (how many of its characters are FINAL; of each block where its text and its audio, in ms, begin).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from voicemem.dialects.clock import playing_at
from voicemem.dialects.dialect import Known, KnownReply, Made
from voicemem.protocol.events import Interrupt, Tts

KEPT_REPLIES, KEPT_BLOCKS = 6, 40
SLACK_MS = 1_000
"""So much earlier than the clock Nova may say that a sentence was spoken."""
WORD = re.compile(r"\w+")
CLOSING = re.compile(r"[^\w\s]*")
LOOK_AHEAD = 4_000
"""Characters in which a sentence is looked for, where those before it were left out."""


def note_block(item: str, start: int, audio_ms: int, known: Known) -> None:
    """Note where a block begins in its reply."""
    key = f"r:{item}"
    if key not in known.notes:
        for old in [one for one in known.notes if one.startswith("r:")][: 1 - KEPT_REPLIES]:
            known.note(old, None)
    confirmed, blocks = known.notes.get(key, [0, []])
    known.note(key, [confirmed, [*blocks, [start, audio_ms]][-KEPT_BLOCKS:]])


def replies(known: Known) -> Iterator[KnownReply]:
    """The newest replies, in order."""
    for key in known.notes:
        reply = known.reply(key[2:]) if key.startswith("r:") else None
        if reply is not None:
            yield reply


def unfinished(ts: int, known: Known) -> Iterator[KnownReply]:
    """The replies that may still play; what is FINAL may be heard later than now."""
    for reply in replies(known):
        ended = reply.ended
        if reply.cut == "no" and (ended is None or (known.has_clock and ended > ts)):
            yield reply


def candidates(known: Known) -> list[tuple[KnownReply, int]]:
    """Replies of which FINAL texts may come, and how much of each is FINAL, in order.

    Of one that was cut before another began hardly any come, so these are the last to be looked at.
    """
    found = [(reply, known.notes[f"r:{reply.item}"][0]) for reply in replies(known)]
    return sorted(found, key=lambda one: one[0].cut != "no" and one is not found[-1])


def is_confirmed(reply: KnownReply, known: Known) -> bool:
    """Whether anything of a reply is FINAL."""
    return bool(known.notes.get(f"r:{reply.item}", [0])[0])


def matches_any(text: str, known: Known) -> bool:
    """Whether a text repeats what a reply says next."""
    return any(end_of(text, reply.text, confirmed) is not None for reply, confirmed in candidates(known))


def confirm(text: str, ts: int, known: Known) -> Made:
    """A sentence was spoken: with what came before it in its reply, that is what was heard."""
    found = place_of(text, known)
    if found is None:
        return
    reply, end = found
    assert reply.item is not None
    _, blocks = known.notes[f"r:{reply.item}"]
    heard = reply.text[:end]
    note_confirmed(reply.item, end, known)
    if reply.cut != "no":
        yield Interrupt(item=reply.item, heard_text=heard)
        return
    starts = [start for start, _ in blocks]
    is_whole = len(heard.rstrip()) == len(reply.text.rstrip()) or any(
        len(heard) <= at <= len(heard) + 1 for at in starts
    )
    yield Tts(item=reply.item, heard_text=heard, ts=played_at(reply, end, ts, known) if is_whole else None)


def note_confirmed(item: str, end: int, known: Known) -> None:
    """Note it in place: the order of notes is that of the replies."""
    _, blocks = known.notes[f"r:{item}"]
    later = {key: value for key, value in known.notes.items() if key.startswith("r:")}
    later[f"r:{item}"] = [end, blocks]
    for key, value in later.items():
        known.note(key, value)


def place_of(text: str, known: Known) -> tuple[KnownReply, int] | None:
    """The reply that a sentence is of, and where it ends there: where the next is expected, else further on."""
    waiting = candidates(known)
    for reply, confirmed in waiting:
        end = end_of(text, reply.text, confirmed)
        if end is not None:
            return reply, end
    for reply, confirmed in waiting:
        end = end_after(text, reply.text, confirmed)
        if end is not None:
            return reply, end
    return None


def end_of(text: str, said: str, start: int) -> int | None:
    """Where a text ends that stands at a place, word for word; its last word may be the beginning of one."""
    words = WORD.findall(text)
    end = None
    scan = WORD.finditer(said, start)
    for number, word in enumerate(words):
        found = next(scan, None)
        if found is None:
            return None
        said_word, folded = found[0].casefold(), word.casefold()
        if said_word == folded:
            end = found.end()
        elif number == len(words) - 1 and said_word.startswith(folded):
            return found.start() + len(word)
        else:
            return None
    closing = None if end is None else CLOSING.match(said, end)
    if closing is None:
        return None
    marks = len(text.rstrip()) - [*WORD.finditer(text)][-1].end()
    return min(closing.end(), closing.start() + marks)


def end_after(text: str, said: str, start: int) -> int | None:
    """Where a text ends that stands anywhere after a place."""
    first = WORD.search(text)
    if first is None:
        return None
    for found in WORD.finditer(said, start, start + LOOK_AHEAD):
        if found[0].casefold() == first[0].casefold():
            end = end_of(text, said, found.start())
            if end is not None:
                return end
    return None


def played_at(reply: KnownReply, end: int, ts: int, known: Known) -> int | None:
    """When the audio of a text up to a character can have been played at the earliest, if that is later."""
    playing = playing_at(reply, ts) if known.has_clock else None
    if playing is None:
        return None
    _, blocks = known.notes[f"r:{reply.item}"]
    audio_ms = next((at for start, at in blocks if start >= end), playing.total_ms)
    due = playing.began + audio_ms - SLACK_MS
    return due if due > ts else None
