"""Room that sessions share, and gaps that an event leaves for which there is none."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from tests.unit.client.test_producer import add, error, ready, reopen, sent
from voicemem.client.options import Options, Room
from voicemem.client.producer import Producer


async def test_what_has_no_room_may_leave_a_gap() -> None:
    """With `leaves_gaps` its number is used up, and what comes behind the hole is sent once the rest is resolved."""
    line = Producer("s", "main", None, Options(max_events=2, leaves_gaps=True))
    line.open_frame()
    line.on_ready(ready())
    acks = add(line, 4)
    assert [None, None, "buffer_full", "buffer_full"] == [ack.error and ack.error.code for ack in acks]
    assert [1, 2] == sent(line)
    line.on_ack(1)
    (late,) = add(line, 1)
    assert (5, []) == (late.seq, sent(line))
    line.on_ack(2)
    assert [5] == sent(line)
    assert line.on_error(error("seq_gap", 5, expected=3)), "only an open with from_seq goes on"
    assert 5 == reopen(line, epoch=2, next_seq=5)["from_seq"]
    assert [5] == sent(line)


async def test_a_room_is_shared() -> None:
    """What one session holds is missing to another, until it is acknowledged; an end has room always."""
    one, other = (Producer(name, "main", None, Options(room=room)) for room in [Room(150)] for name in ("a", "b"))
    for line in (one, other):
        line.open_frame()
        line.on_ready(ready())
    (held,) = add(one, 1)
    (refused,) = add(other, 1)
    assert (None, "buffer_full") == (held.error, refused.error and refused.error.code)
    assert other.take({"type": "session.end"}).error is None
    assert [1] == sent(one)
    one.on_ack(1)
    assert one.options.room is not None
    assert other.buffer.size == one.options.room.used


def test_a_room_has_some_size() -> None:
    """None at all would take no event."""
    with pytest.raises(ValueError, match="at least 1"):
        Room(0)
