"""Where tool calls stand, and how sides take turns."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from hypothesis import given

from tests.support.samples.formats import memories, message_of, tool_use_of, tool_uses
from voicemem.context.formats import Part, RoleRun, alternate_roles, interleave, runs
from voicemem.transcript.messages import Message, ToolUse


def test_tool_use_stands_after_the_user_and_before_later_replies() -> None:
    """In its turn a call follows all user messages and the replies that began by its time."""
    user, late_user = message_of("user", "Weather?", 1, 10), message_of("user", "Please.", 1, 90)
    filler, answer = message_of("assistant", "One moment.", 1, 20), message_of("assistant", "Sunny.", 1, 40)
    use = tool_use_of(turn_id=1, timestamp=20)
    assert interleave([user, late_user, filler, answer], [use], cut=False) == [user, late_user, filler, use, answer]


def test_tool_use_of_a_turn_without_messages() -> None:
    """A call in a turn where nothing was said stands between its neighbours, or at the end."""
    before, after = message_of("user", "Hi.", 1), message_of("user", "Bye.", 3)
    between, last = tool_use_of(turn_id=2, timestamp=99), tool_use_of(turn_id=4)
    assert interleave([before, after], [last, between], cut=False) == [before, between, after, last]


def test_tool_uses_stand_in_the_order_of_their_times() -> None:
    """Calls are sorted by turn and time; those of one time stay as they came."""
    uses = [
        tool_use_of(timestamp=5, call_id="c"),
        tool_use_of(timestamp=1, call_id="a"),
        tool_use_of(timestamp=1, call_id="b"),
    ]
    assert [part.call_id for part in interleave([], uses, cut=False) if isinstance(part, ToolUse)] == ["a", "b", "c"]


def test_unanswered_tool_uses_are_left_out() -> None:
    """A call whose result has not come is not shown."""
    assert interleave([], [tool_use_of(answered=False)], cut=False) == []


def test_tool_uses_before_the_first_kept_message_go_with_those_left_out() -> None:
    """Where the history was cut, a call before its first message goes too; where it was not, the call stays."""
    early, reply = tool_use_of(turn_id=1, timestamp=5), message_of("assistant", "Sunny.", 1, 10)
    assert interleave([reply], [early], cut=True) == [reply]
    assert interleave([reply], [early], cut=False) == [early, reply]


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
        RoleRun("assistant", "Let me see.", call=use),
        RoleRun("user", "Thanks.", result=use),
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
    found = alternate_roles(runs(interleave(memory, tools, cut=False), None, keeps_blank=True))
    assert [run.role for run in found] == (["user", "assistant"] * len(found))[: len(found)]
    assert len(found) % 2 or not found
    assert all(after.result is run.call for run, after in pairwise(found))


@given(memories, tool_uses)
def test_joins_lose_no_text(memory: Sequence[Message], tools: Sequence[ToolUse]) -> None:
    """All that either side said is there in its order, and every answered call."""
    found = alternate_roles(runs(interleave(memory, tools, cut=False), None, keeps_blank=True))
    for role, frame in (("user", {"(call started)", "(silence)"}), ("assistant", set())):
        texts = [run.text for run in found if run.role == role and run.text is not None and run.text not in frame]
        assert "\n".join(texts) == "\n".join(message.content for message in memory if message.role == role)
    assert sum(run.call is not None for run in found) == sum(use.answered for use in tools)
