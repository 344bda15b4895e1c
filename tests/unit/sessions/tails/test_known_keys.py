"""The keys that a tail of several sessions knows: in any order of arrival, and in bounded memory."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from voicemem.sessions.tails.several import LOOK_BACK, MAX_NAMED, MOST_SEEN, SETTLED_AFTER, KnownKeys


@given(st.lists(st.lists(st.integers(1, 2_000), max_size=40), max_size=20))
def test_keys_are_known_once_they_were_added(looks: list[list[int]]) -> None:
    """Whatever the order, what was added is known, and what a place names tells the same of keys above its floor."""
    known, added = KnownKeys(), set[int]()
    for look in looks:
        for key in look:
            known.add(key)
        added |= set(look)
        assert all(key in known for key in added)
        assert sorted(known.seen) == known.seen
        assert len(known.recent) <= MAX_NAMED
        assert {key for key in added if key > known.settled_floor} == set(known.recent)
        unknown = set(range(known.floor + 1, 2_001)) - added
        assert not any(key in known for key in unknown)
        known.finish_look()
        assert len(known.seen) <= MOST_SEEN
        assert len(known.first_looks) == len(known.seen)


def test_a_key_settles_after_some_looks() -> None:
    """A place names new keys for a while; a late one holds the floor of places back below itself."""
    known = KnownKeys(5, [7, 9])
    for _ in range(SETTLED_AFTER):
        assert (5, [7, 9]) == (known.settled_floor, known.recent)
        known.finish_look()
    assert (9, []) == (known.settled_floor, known.recent)
    known.add(8)
    assert (7, [8, 9]) == (known.settled_floor, known.recent)


def test_what_was_not_looked_at_is_not_forgotten() -> None:
    """Only keys up to the one that was examined last give way, so none is taken for known that waits for room."""
    known = KnownKeys()
    for key in range(1_000, 1_000 + 2 * LOOK_BACK):
        known.add(key)
    known.looks = SETTLED_AFTER
    known.forget(500)
    assert 0 == known.floor
    known.forget(1_009)
    assert 1_009 == known.floor
    known.finish_look()
    assert LOOK_BACK == len(known.seen)


def test_a_late_key_is_found_among_many_that_came_meanwhile() -> None:
    """However many sessions began while one was slow to become visible, within a bound."""
    known = KnownKeys()
    for key in range(1_000, 1_000 + 4 * LOOK_BACK):
        known.add(key)
    known.finish_look()
    assert 999 not in known
    for _ in range(SETTLED_AFTER):
        known.finish_look()
    assert (999 in known, LOOK_BACK) == (True, len(known.seen))
    for key in range(10_000, 10_000 + 2 * MOST_SEEN):
        known.add(key)
    known.finish_look()
    assert MOST_SEEN == len(known.seen)
