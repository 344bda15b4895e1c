"""Which state of a session a client has read, told in the one field that its `append` sends back: `last_accessed`.

A PUT replaces a list of messages, and says nothing of the list that it was made from. But what a client has read, it
sends back with its `last_accessed` as it came. So a read gives that time in ms, and behind it, in the microseconds, the
last three digits of the journal position that it has seen. A time that a client made itself hardly ever fits.
"""

from __future__ import annotations

from datetime import datetime, timedelta

from voicemem.memory.agent_memory.times import from_ms, to_ms

DIGITS = 1000
SLACK_MS = 60_000
"""An entry gets its time before a read can see it, and nodes have clocks of their own: a read may be told to be later
than the entry that it did not see."""


def stamp(now_ms: int, last_received_ms: int, position: int) -> datetime:
    """The time of a read at a position; never before what it has seen was received."""
    return from_ms(max(now_ms, last_received_ms)) + timedelta(microseconds=position % DIGITS)


def candidates(stamped: datetime, position: int) -> range:
    """The positions up to `position` that a stamp may mean, the newest first."""
    newest = position - (position - stamped.microsecond % DIGITS) % DIGITS
    return range(newest, -1, -DIGITS)


def fits(stamped: datetime, received_ms: int, next_received_ms: int | None) -> bool:
    """Whether a stamp may be of a read that has seen an entry, and not the one behind it."""
    ms = to_ms(stamped)
    return received_ms <= ms and (next_received_ms is None or ms <= next_received_ms + SLACK_MS)
