"""Frames that may be kept only after another."""

from __future__ import annotations

from voicemem.dialects.dialect import Frame
from voicemem.sessions.recording.batches import MAX_OPEN, Openings

OPENING = Frame({}, id="a", opens=True)
PART = Frame({}, within="a")


def test_part_is_kept_after_its_opening() -> None:
    """Before that nobody knows what it is a part of; a frame of the same id that opens nothing does not help."""
    openings = Openings()
    assert openings.admits(Frame({}, id="a"))
    assert not openings.admits(PART)
    assert openings.admits(OPENING)
    assert openings.admits(PART)


def test_opening_that_is_a_part_itself_opens_nothing_when_it_is_not_kept() -> None:
    """A content before any audio is not kept, and neither is its text."""
    openings = Openings()
    assert not openings.admits(Frame({}, id="b", opens=True, within="a"))
    assert not openings.admits(Frame({}, within="b"))


def test_opening_over_another_connection_is_asked_for() -> None:
    """What a session knows of its frames tells of those that came before."""
    asked: list[str] = []

    def is_known(id: str) -> bool:
        asked.append(id)
        return True

    assert Openings().admits(PART, is_known)
    assert asked == ["a"]


def test_very_many_openings_are_bounded() -> None:
    """The oldest are forgotten."""
    openings = Openings()
    openings.admits(OPENING)
    for number in range(MAX_OPEN):
        openings.admits(Frame({}, id=str(number), opens=True))
    assert len(openings.ids) == MAX_OPEN
    assert not openings.admits(PART)
