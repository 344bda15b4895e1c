"""What a PUT changes in the list of messages, and messages as events and back."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from itertools import count

import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.support.profiles import examples
from tests.support.rows import every_row
from voicemem.compat.agent_memory_server.records import GivenMessage, MessageView
from voicemem.compat.agent_memory_server.working_messages import (
    Change,
    ListedMessage,
    change_of,
    check_messages,
    events_of,
)
from voicemem.errors import Refused
from voicemem.transcript.state import State

NOW = 1_790_000_000_000


def stood(*texts: str) -> list[ListedMessage]:
    """A list that stands; the id of each message is its text."""
    return [ListedMessage(MessageView("user", text, text, "2026-05-03T14:30:00Z", None, "f")) for text in texts]


def sent(*texts: str, ids: bool = True) -> list[GivenMessage]:
    return [GivenMessage(role="user", content=text, id=text if ids else None) for text in texts]


def change(before: str, after: str, seen: int | None = None, ids: bool = True) -> tuple[int, str]:
    """How many messages go, and the texts of those that are added; each letter is a message."""
    found = change_of(stood(*before), sent(*after, ids=ids), seen)
    return found.forget, "".join(message.content for message in found.add)


@every_row("ids", [True, False])
@every_row(
    ("before", "after", "expected"),
    [
        ("", "", (0, "")),
        ("", "ab", (0, "ab")),
        ("ab", "ab", (0, "")),
        ("ab", "abc", (0, "c")),
        ("abc", "bc", (1, "")),
        ("abc", "cd", (2, "d")),
        ("ab", "ba", (1, "a")),
        ("abc", "ab", (3, "ab")),
        ("abc", "axc", (3, "axc")),
        ("ab", "", (2, "")),
    ],
)
def test_what_a_list_changes(before: str, after: str, expected: tuple[int, str], ids: bool) -> None:
    """Only what is new is written; what can stay stays."""
    assert expected == change(before, after, ids=ids)


@every_row(
    ("before", "after", "seen", "expected"),
    [
        ("abx", "aby", 2, (0, "y")),
        ("abx", "abxy", 2, (0, "y")),
        ("abx", "by", 2, (2, "by")),
        ("abx", "", 2, (2, "")),
        ("x", "y", 0, (0, "y")),
        ("abx", "aby", 3, (3, "aby")),
    ],
)
def test_what_was_not_read_stays(before: str, after: str, seen: int, expected: tuple[int, str]) -> None:
    """A writer takes away only what it knew."""
    assert expected == change(before, after, seen)


def test_another_text_under_the_same_id_is_another_message() -> None:
    """Unless what stands was redacted, and cannot be compared."""
    edited = [GivenMessage(role="user", content="new", id="a")]
    assert Change(1, edited) == change_of(stood("a"), edited, None)
    assert Change(0, []) == change_of(stood("a"), edited, None, blurred=True)


@examples(1)
@given(st.text("ab", max_size=8), st.text("ab", max_size=8), st.none() | st.integers(0, 8))
def test_the_list_is_what_was_put(before: str, after: str, seen: int | None) -> None:
    """Whatever stood there; with what was not read before it."""
    forget, added = change(before, after, seen, ids=False)
    result = before[forget:] + added
    assert result == after or (seen is not None and result == before[seen:] + after) or result[: len(before)] == before


def test_events_keep_the_order_whatever_the_times() -> None:
    """Each message of the user begins a turn; a message that is older than the one before stands behind it."""
    numbers = count()
    messages = [
        GivenMessage(role="assistant", content="Welcome.", created_at="2026-05-03T14:30:00Z"),
        GivenMessage(role="user", content="Hi.", created_at="2026-05-03T14:30:01.000001Z"),
        GivenMessage(role="tool", content="{}", created_at="2020-01-01T00:00:00Z"),
        GivenMessage(role="user", content="Bye."),
    ]
    events = events_of(State(), messages, NOW, lambda: str(next(numbers)), fresh=False)
    assert [1, 2, 2, 3] == [event.turn_id for event in events]
    assert ["llm", "message", "command", "message"] == [event.source for event in events]
    assert [event.ts for event in events][1] == events[2].ts
    kept = [(event.metadata or {})["agent_memory"] for event in events]
    assert [None, "2026-05-03T14:30:01.000001Z", "2020-01-01T00:00:00Z", None] == [k.get("created_at") for k in kept]
    assert "tool" == kept[2]["role"]
    assert len(events) == len({event.item for event in events})


@every_row(
    "message",
    [
        GivenMessage(role="user", content="  "),
        GivenMessage(role="user", content="Hi.", id=""),
        GivenMessage(role="user", content="Hi.", created_at="yesterday"),
        GivenMessage(role="user", content="Hi.", created_at="2026-02-30"),
        GivenMessage(role="user", content="Hi.", created_at=1e300),
        GivenMessage(role="user", content="Hi.", persisted_at="never"),
        GivenMessage(role="user", content="Hi.", created_at=NOW / 1000 + 301),
    ],
)
def test_messages_that_cannot_be(message: GivenMessage) -> None:
    """They are refused before anything is stored."""
    with pytest.raises(Refused):
        check_messages([message], NOW)
