"""Who calls, as the frames of each dialect say it, whatever else stands there."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from typing import Any

import pytest

from tests.support.samples.callers import AGENT, CALLER
from voicemem.dialects.caller_fields import CALLER as CARRIED
from voicemem.dialects.caller_fields import MAX_NUMBERS, Caller, numbers_in
from voicemem.dialects.registry import DIALECTS, split_frame
from voicemem.protocol.events import FrameEvent
from voicemem.protocol.types import JsonObject


def read(dialect: str, frame: Any) -> Caller:
    """What a frame says, or nothing."""
    return DIALECTS[dialect].caller.read(frame) or Caller()


def test_the_person_is_the_other_party() -> None:
    """Where the agent has called, the number is that which it called."""
    parties: JsonObject = {"from_number": AGENT, "to_number": CALLER}
    called = {"event": "call_ended", "call": {"direction": "outbound", **parties}}
    assert (CALLER, AGENT) == (read("retell", called).number, read("retell", {"call": parties}).number)
    relay: JsonObject = {"type": "setup", "from": AGENT, "to": CALLER, "direction": "outbound-api"}
    assert CALLER == read("conversation-relay", relay).number


@pytest.mark.parametrize("value", [None, True, 1.5, [], {}, [[CALLER]], "", " ", "x" * 100_000])
def test_fields_of_other_types(value: Any) -> None:
    """They say nothing, and break nothing, in any dialect."""
    for dialect in DIALECTS.values():
        for path in (*dialect.caller.user, *dialect.caller.number, *dialect.caller.direction):
            frame: Any = value
            for name in reversed(path.split("/")):
                frame = {name: frame}
            said = dialect.caller.read(frame) or Caller()
            assert (None, None) == said[:2]
        assert None is dialect.caller.read(value)
        assert None is dialect.caller.read({CARRIED: value})


def test_very_many_numbers() -> None:
    """The parties' own come first, and what is looked at is bounded."""
    metadata = {f"phone {place}": f"+4930{place:07}" for place in range(1_000)}
    said = read("retell", {"call": {"from_number": CALLER, "metadata": metadata}})
    assert CALLER[1:] == said.numbers[0]
    assert MAX_NUMBERS + 1 >= len(said.numbers)


def test_a_split_message_says_it_once() -> None:
    """The first of its frames carries who calls."""
    message: JsonObject = {
        "type": "end-of-call-report",
        "call": {"id": "c", "customer": {"number": CALLER}},
        "messages": [{"role": "bot", "message": "Hello.", "time": 1}, {"role": "user", "message": "Hi.", "time": 2}],
    }
    parts = split_frame(FrameEvent(dialect="vapi", frame={"message": message}))
    said = [read("vapi", part.frame) for part in parts]
    assert (3, CALLER) == (len(parts), said[0].number)
    assert Caller() == said[1]


def test_a_huge_value_is_not_looked_through() -> None:
    """The first values alone: no one else waits while a sender's are read."""
    assert [CALLER] == list(numbers_in({"to": CALLER, "x": [[]] * 1_000_000}))
    assert [] == list(numbers_in([*["x"] * 1_000_000, CALLER]))
