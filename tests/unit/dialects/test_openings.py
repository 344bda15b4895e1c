"""Frames that may be kept only after another."""

from __future__ import annotations

from voicemem.dialects.dialect import Frame
from voicemem.sessions.recording.batches import MAX_OPEN, SenderState

OPENING = Frame({}, id="a", opens=True)
PART = Frame({}, within="a")


def test_part_is_kept_after_its_opening() -> None:
    """Before that no one knows what it is a part of; a frame of the same id that opens nothing does not help."""
    sender = SenderState()
    assert sender.admits(Frame({}, id="a"))
    assert not sender.admits(PART)
    assert sender.admits(OPENING)
    assert sender.admits(PART)


def test_opening_that_is_a_part_itself_opens_nothing_when_it_is_not_kept() -> None:
    """A content before any audio is not kept, and neither is its text."""
    sender = SenderState()
    assert not sender.admits(Frame({}, id="b", opens=True, within="a"))
    assert not sender.admits(Frame({}, within="b"))


def test_opening_over_another_connection_is_asked_for() -> None:
    """What a session knows of its frames tells of those that came before."""
    asked: list[str] = []

    def is_known(id: str) -> bool:
        asked.append(id)
        return True

    assert SenderState().admits(PART, is_known)
    assert asked == ["a"]


def test_very_many_openings_are_bounded() -> None:
    """The oldest are forgotten."""
    sender = SenderState()
    sender.admits(OPENING)
    for number in range(MAX_OPEN):
        sender.admits(Frame({}, id=str(number), opens=True))
    assert len(sender.openings) == MAX_OPEN
    assert not sender.admits(PART)
