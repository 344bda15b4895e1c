"""Very many records, most of them packed."""

from __future__ import annotations

import random

import pytest

from tests.support.profiles import seeds
from voicemem.transcript import packing
from voicemem.transcript.packing import BLOCK, FEW, KEPT_BLOCKS, Items, Records
from voicemem.transcript.state import Reply, State, TypedMessage

MANY = FEW + 10 * BLOCK


def a_reply(number: int) -> Reply:
    return Reply(number, number % 7, f"item{number}")


def records_of(numbers: range) -> Records[Reply]:
    return Records(Reply, 100, {number: a_reply(number) for number in numbers}, {}, lambda numbers: None)


def never(reply: Reply) -> bool:
    return False


def test_records_that_are_packed_are_found_as_they_were() -> None:
    """Each is there by its number, and what was never there is not."""
    records = records_of(range(0, 3 * MANY, 3))
    packed = records.pack(never)
    assert MANY - FEW <= len(packed) == MANY - len(records)
    assert [a_reply(number) for number in range(0, 3 * MANY, 3)] == [
        records[number] for number in range(0, 3 * MANY, 3)
    ]
    assert (records.get(1), 1 in records, 0 in records) == (None, False, True)
    with pytest.raises(KeyError):
        records[1]


def test_a_change_of_what_was_unpacked_is_packed() -> None:
    """What has changed is the same later; a new record among packed ones is not lost, and neither are they."""
    records = records_of(range(0, 1_000, 2))
    records.pack(never, few=0)
    records[500].item = "changed"
    records[501] = a_reply(501)
    records.pack(never, few=0)
    assert not len(records)
    assert ("changed", a_reply(501), a_reply(502)) == (records[500].item, records[501], records[502])


def test_what_stays_is_not_packed_nor_let_go() -> None:
    """A record that stays is the same object, whatever is read around it."""
    records = records_of(range(2_000))
    staying = records[777]
    records.pack(lambda reply: reply.id == 777, few=0)
    for number in range(2_000):
        assert a_reply(number) == records[number]
        records.release()
    assert staying is records[777]
    assert len(records) <= (KEPT_BLOCKS + 1) * 100


@pytest.mark.parametrize("seed", seeds(5))
def test_heavy_records_are_packed_alone(seed: int) -> None:
    """Whether records are heavy may change: each is found as it was, and of heavy ones only a few are unpacked."""
    luck, expected = random.Random(seed), {number: a_reply(number) for number in range(300)}
    records = Records(Reply, 100, dict(expected), {}, lambda numbers: None, lambda reply: reply.changes, heavy=10)
    for _ in range(20):
        for number in luck.sample(range(300), 9):
            records[number].changes = expected[number].changes = luck.choice((0, 5, 11))
        records.pack(never, few=luck.choice((0, 30)))
        for number in luck.sample(range(300), 40):
            assert expected[number] == records[number]
            records.release()
        assert sum(block < 0 for block in records.unpacked) <= 3
    assert expected == {number: records[number] for number in range(300)}


def test_two_heavy_records_that_grow_in_turn_stay_unpacked() -> None:
    """They are packed once in as many calls as each holds, so that their events cost no more than their size."""
    records = Records(Reply, 100, {}, {}, lambda numbers: None, lambda reply: reply.changes, heavy=10)
    records.update((number, a_reply(number)) for number in range(3))
    packed = 0
    for _ in range(200):
        for number in range(2):
            records[number].changes = 100
        packed += len(records.pack(never, few=1))
    assert packed <= 2 * 200 / 10 + 3
    assert [records[number].changes for number in range(3)] == [100, 100, 0]


@pytest.mark.parametrize("seed", seeds(5))
def test_items_are_those_of_a_list(seed: int) -> None:
    """Whatever is added, cut, copied and read, packed items are what a list would have."""
    luck, found, expected = random.Random(seed), Items[int](int), list[int]()
    for _ in range(30):
        if luck.random() < 0.3:
            count = luck.randint(0, len(expected))
            found.cut(count)
            del expected[count:]
        more = range(luck.randint(0, FEW))
        found.extend(more)
        expected.extend(more)
        copied, first, stop = found[len(expected) // 2 :], luck.randint(0, MANY), luck.randint(0, MANY)
        assert len(expected) == len(found)
        assert expected[first:stop] == list(found[first:stop])
        assert all(
            expected[place] == found[place] for place in luck.sample(range(len(expected)), min(9, len(expected)))
        )
        assert expected[-1:] == list(found[-1:])
        found.append(-1)
        expected.append(-1)
        assert expected[(len(expected) - 1) // 2 : -1] == list(copied)
    assert expected == list(found)
    assert expected[::-1] == list(reversed(found))
    assert len(expected) > FEW


def test_a_heavy_call_that_is_over_keeps_one_turn_unpacked() -> None:
    """While it runs, two turns that were unpacked stay so; once it is over they do not, nor after a reading."""
    state = State()
    for number in range(packing.MANY + 1):
        turn = state.turn(number % 3)
        turn.typed = state.append(turn.typed, TypedMessage(number, number, "Hi", {}))
    state.pack()
    assert state.turns[0] is not state.turns[1]
    state.pack()
    assert len(state.turns) == 2
    state.closed_ts = packing.MANY
    state.pack()
    assert len(state.turns) == 1
    assert sum(len(turn.typed or ()) for turn in state.each_turn()) == packing.MANY + 1
    state.release(is_over=True)
    assert len(state.turns) == 1
