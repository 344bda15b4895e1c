"""The clock rule, for stacks that do not report playback: a reply is played in real time once its audio comes.

A reply's audio begins when its first audio comes, or when the reply before it has ended. What follows from that is
always marked as an estimate, and a position that anybody states counts more, whenever it arrives (docs/dialects.md).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from voicemem.dialects.known import Known, KnownReply, MadeEvent
from voicemem.protocol.events import Interrupt, Tts
from voicemem.protocol.types import SPACELESS

MAX_QUEUE = 20
"""Replies that may wait for each other to be played."""

UNITS_A_SECOND = 15
"""How fast a voice speaks, as in the fold: a character of a script without spaces counts three."""


class Playing(NamedTuple):
    """When the audio of a reply began to play, and where it stood at a time, both by the clock."""

    began: int
    position_ms: int
    total_ms: int

    @property
    def is_over(self) -> bool:
        return self.position_ms >= self.total_ms


def playing_at(reply: KnownReply, ts: int) -> Playing | None:
    """Return where the audio of a reply stood at a time; None where nothing says how long it is."""
    # It and those before it, back to one whose end is known, the newest first: when the audio of each came, how long
    # it is, and when the one before it ended, where anything but the clock says so.
    queue: list[tuple[int, int, int]] = []
    at: KnownReply | None = reply
    while at is not None and len(queue) < MAX_QUEUE:
        came, total_ms, before = at.audio_began, at.total_audio_ms, at.before
        if came is None or total_ms is None:
            break
        ended = None if before is None else before.ended
        queue.append((came, total_ms, came if ended is None else ended))
        at = before if ended is None else None
    if not queue:
        return None
    free_at, start, length_ms = queue[-1][2], 0, 0
    for came, length_ms, _ in reversed(queue):
        start = max(came, free_at)
        free_at = start + length_ms
    return Playing(start, max(0, min(ts - start, length_ms)), length_ms)


Where = Callable[[KnownReply, int], Playing | None]
"""Says where the audio of a reply stood at a time."""


def interrupt_by_clock(
    known: Known, item: str, ts: int, cause: str | None = None, where: Where = playing_at
) -> Iterator[MadeEvent]:
    """An interruption of a reply, where the clock says that it was; it marks nothing if the audio was over by then."""
    reply = known.reply(item)
    playing = None if reply is None or not known.has_clock or reply.has_playback else where(reply, ts)
    if playing is None:
        yield Interrupt(item=item, cause=cause)
    elif reply is not None and reply.complete and playing.is_over:
        # An end that playback reported, since a position that is stated later takes that back.
        yield Tts(item=item, done=True, estimated=True, ts=playing.began + playing.total_ms)
        yield Interrupt(item=item, cause=cause)
    else:
        yield Interrupt(item=item, audio_end_ms=playing.position_ms, estimated=True, cause=cause)


def close_by_clock(
    known: Known, ts: int, is_own: Callable[[str], bool], where: Where = playing_at
) -> Iterator[MadeEvent]:
    """Return where the clock says that the dialect's own replies stood when the caller hung up."""
    for reply in known.open_replies():
        if reply.item is None or reply.has_playback or not is_own(reply.item):
            continue
        playing = where(reply, ts)
        if playing is None:
            continue
        if reply.complete and playing.is_over:
            yield Tts(item=reply.item, done=True, estimated=True, ts=playing.began + playing.total_ms)
        else:
            yield stopped_at(reply.item, playing.position_ms, ts)


def spoken_ms(text: str) -> int:
    """Return how long it takes to say a text, where nothing says how long its audio is."""
    return (len(text) + 2 * len(SPACELESS.findall(text))) * 1000 // UNITS_A_SECOND


def stopped_at(item: str | None, position_ms: int, ts: int) -> MadeEvent:
    """How far the clock says that a reply had been played when the caller hung up; at 0 or less nothing was heard."""
    if position_ms > 0:
        return Tts(item=item, audio_ms=position_ms, estimated=True, ts=ts)
    return Interrupt(item=item, heard_text="", estimated=True, ts=ts)
