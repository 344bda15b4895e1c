"""The rate of speech of a voice: units of text a millisecond (docs/memory.md, rule 4)."""

from __future__ import annotations

from bisect import bisect_left
from fractions import Fraction

from voicemem.transcript.cutting import units_of
from voicemem.transcript.replies.interruptions import largest_total, measured_text
from voicemem.transcript.replies.playing import REACH, is_cut_by_close
from voicemem.transcript.replies.sources import sources_of, standing_keys
from voicemem.transcript.state import Reply, State

USUAL = Fraction(15, 1000)
"""Units a millisecond, where no reply before shows it."""


def rate_before(state: State, reply: Reply) -> Fraction:
    """The median rate of the replies before one that are complete, not interrupted, and have a total."""
    keys = standing_keys(state)
    place = bisect_left(keys, reply.key)
    found = (rate_of(state, state.replies[key[2]]) for key in keys[max(0, place - REACH) : place])
    rates = sorted(rate for rate in found if rate is not None)
    if not rates:
        return USUAL
    middle = len(rates) // 2
    return rates[middle] if len(rates) % 2 else (rates[middle - 1] + rates[middle]) / 2


def rate_of(state: State, reply: Reply) -> Fraction | None:
    """The rate of one reply, if it shows it."""
    is_cut = reply.cut_ts is not None or reply.restored or is_cut_by_close(state, reply)
    if is_cut or not reply.generation.complete:
        return None
    found = largest_total(sources_of(state, reply))
    if found is None:
        return None
    return Fraction(units_of(measured_text(reply, found)), found[0].value)
