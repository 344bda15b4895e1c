"""The client's side of the rules of order, without a network: what is held, sent again, and believed."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import json
from typing import Any

import pytest

from voicemem.client.buffer import Ack
from voicemem.client.errors import EventRefused, SessionEnded, Superseded
from voicemem.client.options import Options
from voicemem.client.producer import Producer, ServerFrame


def ready(epoch: int | None = 1, next_seq: int = 1, **more: Any) -> ServerFrame:
    return ServerFrame("session.ready", epoch=epoch, next_seq=next_seq, **{"incarnation": "a", **more})


def error(code: str, seq: int | None, expected: int | None = None) -> ServerFrame:
    return ServerFrame("error", code=code, detail="Some reason.", seq=seq, expected=expected)


def opened(next_seq: int = 1) -> Producer:
    """A line that the server has answered once."""
    line = Producer("s", "main", None, Options())
    line.open_frame()
    line.on_ready(ready(next_seq=next_seq))
    return line


def add(line: Producer, count: int) -> list[Ack]:
    return [line.take({"type": "asr", "text": "Hi"}) for _ in range(count)]


def sent(line: Producer, max_bytes: int = 10**6) -> list[int]:
    """The seqs of what is sent next."""
    return [ack.seq for ack in line.buffer.take_batch(max_bytes)]


def done(acks: list[Ack]) -> list[int]:
    """The seqs of what is on disk, as far as the line has heard."""
    return [ack.seq for ack in acks if ack.done() and ack.error is None]


def reopen(line: Producer, **answer: Any) -> dict[str, Any]:
    """Another connection; what the line said to open on it."""
    frame = line.open_frame()
    line.on_ready(ready(**answer))
    return frame


async def test_a_first_open_names_no_seq() -> None:
    """Who knows nothing of a session goes on where the server stands."""
    line = Producer("s", "asr", {"name": "Call"}, Options())
    assert {
        "type": "session.open",
        "session_id": "s",
        "producer": "asr",
        "session": {"name": "Call"},
    } == line.open_frame()
    line.on_ready(ready(next_seq=7, next_turn=3))
    assert ([7], 3) == ([ack.seq for ack in add(line, 1)], line.next_turn)


async def test_a_resume_drops_what_is_stored() -> None:
    """After the one open that the client has made, everything below `next_seq` is acknowledged; the rest is resent."""
    line = opened()
    acks = add(line, 5)
    assert [1, 2, 3, 4, 5] == sent(line)
    assert 1 == reopen(line, epoch=2, next_seq=4)["from_seq"]
    assert ([1, 2, 3], [4, 5]) == (done(acks), sent(line))


async def test_from_seq_is_the_lowest_that_can_be_sent() -> None:
    """What was acknowledged cannot be sent again; with nothing held it is the next seq."""
    line = opened()
    add(line, 5)
    line.buffer.take_batch(10**6)
    line.on_ack(3)
    assert 4 == line.open_frame()["from_seq"]
    line.on_ack(5)
    assert 6 == line.open_frame()["from_seq"]


@pytest.mark.parametrize(
    "answer",
    [{"epoch": 3}, {"epoch": 2, "incarnation": "b"}, {"epoch": 2, "next_seq": 9}, {"epoch": None}],
    ids=["another epoch", "another store", "more than was sent", "no epoch"],
)
async def test_a_resume_after_strangers_sends_all_again(answer: dict[str, Any]) -> None:
    """Where others may have stored under the same seqs, `next_seq` acknowledges nothing; new events go behind it."""
    line = opened()
    acks = add(line, 3)
    line.buffer.take_batch(10**6)
    reopen(line, **{"next_seq": 4, **answer})
    assert ([], [1, 2, 3]) == (done(acks), sent(line))
    (late,) = add(line, 1)
    assert max(4, answer.get("next_seq", 4)) == late.seq


async def test_a_lost_answer_to_an_open_is_a_stranger_too() -> None:
    """An open whose answer never came may have raised the epoch, or not: then nothing is concluded from it."""
    line = opened()
    acks = add(line, 3)
    line.open_frame()
    reopen(line, epoch=3, next_seq=4)
    assert ([], [1, 2, 3]) == (done(acks), sent(line))


async def test_a_gap_rewinds() -> None:
    """From the seq that is expected on, everything is sent again."""
    line = opened()
    add(line, 5)
    assert [1, 2, 3, 4, 5] == sent(line)
    assert not line.on_error(error("seq_gap", 4, expected=3))
    assert [3, 4, 5] == sent(line)


@pytest.mark.parametrize("expected", [None, 2, 9])
async def test_a_gap_that_cannot_be_filled_asks_for_an_open(expected: int | None) -> None:
    """What is not held cannot be sent: the line must say from where on it can."""
    line = opened()
    add(line, 5)
    line.buffer.take_batch(10**6)
    line.on_ack(3)
    assert line.on_error(error("seq_gap", 5, expected=expected))


async def test_a_refusal_settles_its_event_alone() -> None:
    """Those before a refused event wait for their own acks, which cover it too."""
    line = opened()
    acks = add(line, 3)
    line.buffer.take_batch(10**6)
    line.on_error(error("unknown_type", 3))
    assert ([], True, 3) == (done(acks), acks[2].done(), len(line.buffer))
    line.on_ack(2)
    assert ([1, 2], 0, 0) == (done(acks), len(line.buffer), line.buffer.size)
    with pytest.raises(EventRefused):
        acks[2].outcome()


async def test_the_end_of_a_session_settles_what_came_too_late() -> None:
    """Only what is at or behind the refused event has failed."""
    line = opened()
    acks = add(line, 4)
    line.buffer.take_batch(10**6)
    line.on_error(error("session_ended", 3))
    assert ([False, False, True, True], False) == ([ack.done() for ack in acks], line.finished)
    line.on_ack(2)
    assert ([1, 2], True) == (done(acks), line.finished)
    with pytest.raises(SessionEnded):
        add(line, 1)[0].outcome()


async def test_superseded_is_final() -> None:
    """Everything that waits fails, and nothing more is taken."""
    line = opened()
    acks = add(line, 2)
    line.on_error(error("superseded", None))
    assert [True, True] == [isinstance(ack.error, Superseded) for ack in acks]
    with pytest.raises(Superseded):
        add(line, 1)[0].outcome()
    with pytest.raises(Superseded):
        await line.flush()


async def test_a_refused_end_ends_nothing() -> None:
    """When a `session.end` is refused, the session goes on."""
    line = opened()
    end = line.take({"type": "session.end", "last_seq": 7})
    line.buffer.take_batch(10**6)
    line.on_error(error("last_seq_mismatch", 1))
    assert (True, "running", False) == (end.done(), line.state, line.finished)
    assert [2] == [ack.seq for ack in add(line, 1)]


async def test_an_event_is_sent_in_the_same_words() -> None:
    """A resend is the same event, byte for byte; frames hold whole events, and at least one."""
    line = opened()
    add(line, 30)
    first = [ack.payload for ack in line.buffer.take_batch(1_000)]
    line.buffer.rewind()
    assert first == [ack.payload for ack in line.buffer.take_batch(1_000)]
    assert 1 < len(first) < 30
    assert len(b",".join(first)) <= 1_000
    assert 1 == len(line.buffer.take_batch(1))
    assert {"type", "text", "session_id", "producer", "seq", "ts"} == json.loads(first[0]).keys()


async def test_an_own_open_that_comes_late_supersedes_nobody_else() -> None:
    """An open that was given up may be taken after the one that followed it: then the line opens once more."""
    line = opened()
    line.open_frame()
    reopen(line, epoch=2)
    assert line.on_error(error("superseded", None))
    reopen(line, epoch=4)
    assert not line.on_error(error("superseded", None))
    with pytest.raises(Superseded):
        add(line, 1)[0].outcome()


async def test_an_own_open_that_was_taken_in_time_excuses_nobody() -> None:
    """When the epochs show that all of the line's own opens were taken, whoever supersedes it is someone else."""
    line = opened()
    line.open_frame()
    reopen(line, epoch=3)
    assert not line.on_error(error("superseded", None))
    with pytest.raises(Superseded):
        add(line, 1)[0].outcome()
