"""Where tool calls stand, and how sides take turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given

from tests.support.samples.formats import memories, message_of, tool_use_of, tool_uses
from voicemem.context.formats import Part, RoleRun, alternate_roles, interleave, runs, words_before_calls
from voicemem.transcript.messages import Message, ToolUse


def test_tool_use_stands_after_the_user_and_before_later_replies() -> None:
    """In its turn a call follows all user messages and the replies that began by its time."""
    user, late_user = message_of("user", "Weather?", 1, 10), message_of("user", "Please.", 1, 90)
    filler, answer = message_of("assistant", "One moment.", 1, 20), message_of("assistant", "Sunny.", 1, 40)
    use = tool_use_of(turn_id=1, timestamp=20)
    assert interleave([user, late_user, filler, answer], [use]) == [user, late_user, filler, use, answer]


def test_tool_use_of_a_turn_without_messages() -> None:
    """A call in a turn where nothing was said stands between its neighbours, or at the end."""
    before, after = message_of("user", "Hi.", 1), message_of("user", "Bye.", 3)
    between, last = tool_use_of(turn_id=2, timestamp=99), tool_use_of(turn_id=4)
    assert interleave([before, after], [last, between]) == [before, between, after, last]


def test_tool_uses_stand_in_the_order_of_their_times() -> None:
    """Calls are sorted by turn and time; those of one time stay as they came."""
    uses = [
        tool_use_of(timestamp=5, call_id="c"),
        tool_use_of(timestamp=1, call_id="a"),
        tool_use_of(timestamp=1, call_id="b"),
    ]
    assert [part.call_id for part in interleave([], uses) if isinstance(part, ToolUse)] == ["a", "b", "c"]


def test_unanswered_tool_uses_are_left_out() -> None:
    """A call whose result has not come is not shown."""
    assert interleave([], [tool_use_of(answered=False)]) == []


def test_nothing_is_invented_where_nothing_was_said() -> None:
    """An empty memory stays empty."""
    assert alternate_roles([]) == []


def test_assistant_is_framed_by_the_user() -> None:
    """A call that the agent began and that it spoke last in still starts and ends with the user."""
    texts = [run.text for run in alternate_roles([RoleRun("assistant", "Hello?")])]
    assert texts == ["(call started)", "Hello?", "(silence)"]


def test_neighbours_are_joined_by_a_newline() -> None:
    """What one side said in several goes becomes one text."""
    assert alternate_roles([RoleRun("user", "Hi."), RoleRun("user", ""), RoleRun("user", "Hello?")]) == [
        RoleRun("user", "Hi.\n\nHello?")
    ]


def test_tool_use_joins_with_the_words_around_it() -> None:
    """A call ends what the assistant said; its result begins what the user says."""
    use = tool_use_of()
    parts: list[Part] = [message_of("assistant", "Let me see."), use, message_of("user", "Thanks.")]
    assert alternate_roles(runs(parts, None, keeps_blank=True))[1:] == [
        RoleRun("assistant", "Let me see.", calls=(use,)),
        RoleRun("user", "Thanks.", results=(use,)),
    ]


def test_blank_messages_may_be_left_out() -> None:
    """A message of nothing but white space makes no run unless it is asked for."""
    parts = [message_of("user", "Hi."), message_of("assistant", ""), message_of("user", " \n")]
    assert runs(parts, None, keeps_blank=False) == [RoleRun("user", "Hi.")]
    assert [run.text for run in runs(parts, None, keeps_blank=True)] == ["Hi.", "", " \n"]


def test_adjacent_tool_uses_alternate_by_themselves() -> None:
    """Two calls in a row are call, result, call, result."""
    roles = [run.role for run in alternate_roles(runs([tool_use_of(), tool_use_of()], None, keeps_blank=True))]
    assert roles == ["user", "assistant", "user", "assistant", "user"]


@given(memories, tool_uses)
def test_alternation(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """Sides strictly take turns, the user is first and last, and each call's result comes directly after it."""
    found = alternate_roles(runs(interleave(memory, tools), None, keeps_blank=True))
    assert [run.role for run in found] == (["user", "assistant"] * len(found))[: len(found)]
    assert len(found) % 2 or not found
    assert all(after.results == run.calls for run, after in pairwise(found))


@given(memories, tool_uses)
def test_joins_lose_no_text(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """All that either side said is there in its order, and every answered call."""
    found = alternate_roles(runs(interleave(memory, tools), None, keeps_blank=True))
    for role, frame in (("user", {"(call started)", "(silence)"}), ("assistant", set())):
        texts = [run.text for run in found if run.role == role and run.text is not None and run.text not in frame]
        assert "\n".join(texts) == "\n".join(message.content for message in memory if message.role == role)
    assert sum(len(run.calls) for run in found) == sum(use.answered for use in tools)


def test_calls_that_an_llm_made_at_once_are_of_one_message() -> None:
    """With their results behind it; calls without a group, and of another, are messages of their own."""
    together = [tool_use_of(call_id=id, wanted_back={"group": "a"}) for id in "ab"]
    others = [tool_use_of(call_id="c", wanted_back={"group": "c"}), tool_use_of(call_id="d"), tool_use_of(call_id="e")]
    found = runs([*together, *others], None, keeps_blank=True)
    assert [[use.call_id for use in run.calls or run.results] for run in found[::2]] == [
        ["a", "b"],
        ["c"],
        ["d"],
        ["e"],
    ]
    assert all(call.calls == result.results for call, result in zip(found[::2], found[1::2], strict=True))


@given(memories, tool_uses)
def test_words_behind_a_result_are_joined_to_those_before_the_call(
    memory: Sequence[Message], tools: Sequence[ToolUse]
) -> None:
    """Nothing else changes."""
    found = alternate_roles(runs(interleave(memory, tools), None, keeps_blank=True))
    moved = words_before_calls(found)
    assert not [run for run in moved if run.results and run.text is not None]
    assert [(run.role, run.calls, run.results) for run in moved] == [
        (run.role, run.calls, run.results) for run in found
    ]
    said = [[run.text for run in one if run.role == "user" and run.text is not None] for one in (found, moved)]
    assert "\n".join(said[0]) == "\n".join(said[1])
