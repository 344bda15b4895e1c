"""A running summary of the first turns, and the newest ones as they were."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from tests.support.samples.policies import memories, message_of_tokens, remembered, tool_use_of_tokens, turn_of_tokens
from voicemem.context.policies import Remembered
from voicemem.context.summary_policy import SummaryPolicy, render_messages, render_summary, summarised_count
from voicemem.llm.tokens import UNKNOWN_WINDOW
from voicemem.transcript.messages import Message, Summary

POLICY = SummaryPolicy(max_tokens=100, keep_recent=2)
TEN = [message for number in range(1, 11) for message in turn_of_tokens(number, 3, 4)]


def test_what_it_stands_for_is_left_out() -> None:
    """The summary is shown instead."""
    summary = Summary(8, "so", 16)
    choice = POLICY.choose(remembered(TEN, summary=summary))
    assert ([16, 17, 18, 19], summary) == (list(choice.kept), choice.summary)


def test_nothing_is_due_below_the_threshold() -> None:
    """70 tokens are 70 % of 100, and 69 are not."""
    assert None is not POLICY.find_due(remembered(TEN))
    assert None is POLICY.find_due(remembered([*TEN[:-1], message_of_tokens("assistant", 10, 3)]))


def test_the_newest_messages_stay() -> None:
    """Whole turns of at most 30 tokens; the previous summary goes on in the next."""
    due = POLICY.find_due(remembered(TEN))
    assert due is not None
    assert (6, 12, TEN[:12], None) == (due.through_turn, due.message_count, list(due.messages), due.previous)
    summary = Summary(6, "so", 12)
    more = [*TEN, *(message for number in range(11, 15) for message in turn_of_tokens(number, 3, 4))]
    assert None is POLICY.find_due(remembered(TEN, summary=summary))
    again = POLICY.find_due(remembered(more, summary=summary))
    assert again is not None
    assert (10, 20, more[12:20], summary) == (again.through_turn, again.message_count, again.messages, again.previous)


def test_so_many_of_the_newest_messages_are_never_summarised() -> None:
    """Also when they take more than the target."""
    due = SummaryPolicy(max_tokens=100, keep_recent=7).find_due(remembered(TEN))
    assert due is not None
    assert 12 == len(due.messages)


def test_the_newest_turn_is_never_summarised() -> None:
    """However large it is, and though none is to be kept."""
    policy = SummaryPolicy(max_tokens=100, keep_recent=0)
    due = policy.find_due(remembered([*turn_of_tokens(1, 3, 4), *turn_of_tokens(2, 60, 60)]))
    assert due is not None
    assert 1 == due.through_turn
    assert None is policy.find_due(remembered(turn_of_tokens(2, 60, 60)))


def test_the_window_takes_over_until_there_is_a_summary() -> None:
    """What is shown never exceeds the budget, with the summary that there is."""
    assert TEN[-4:] == [TEN[index] for index in SummaryPolicy(max_tokens=20).choose(remembered(TEN)).kept]


def test_the_budget_is_the_models_window() -> None:
    """Unless one is set; of an unknown model, little is expected."""
    assert 5000 == SummaryPolicy().budget(remembered([], window=5000))
    assert UNKNOWN_WINDOW == SummaryPolicy().budget(remembered([]))


def test_late_messages_of_summarised_turns_are_behind_the_summary() -> None:
    """They are in the history; what they change the next summary does not know."""
    assert 2 == summarised_count(remembered(turn_of_tokens(1, 1, 1), summary=Summary(1, "so", 1)))


def test_the_prompt_shows_what_was_heard() -> None:
    """What was cut is not in it, and that it was cut is."""
    metadata = {"interrupted": True, "original": "Why did the scarecrow win?"}
    messages = [
        Message("user", "A joke?", 1, 1, {"user": "ann"}),
        Message("assistant", "Why did ", 1, 2, metadata),
    ]
    assert "user (ann): A joke?\nassistant: Why did  [interrupted here]" == render_messages(messages)


@given(memories(), st.integers(1, 60), st.none() | st.integers(0, 30), st.integers(0, 5))
def test_what_is_due_is_new_and_not_the_newest(memory: Remembered, budget: int, through: int | None, keep: int) -> None:
    """It begins where the summary ends, ends with a turn, and leaves the newest turn and as many messages as wanted."""
    summary = None if through is None else Summary(through, "so", 1)
    memory = remembered(memory.messages, memory.tools, summary)
    due = SummaryPolicy(max_tokens=budget, keep_recent=keep).find_due(memory)
    if due is None:
        return
    since = summarised_count(memory)
    end = since + len(due.messages)
    assert list(memory.messages[since:end]) == list(due.messages)
    assert len(memory.messages) - end >= max(1, keep)
    assert memory.messages[end].turn_id > due.through_turn == due.messages[-1].turn_id


@given(memories(), st.integers(1, 60), st.none() | st.integers(0, 30))
def test_what_is_shown_never_exceeds_the_budget(memory: Remembered, budget: int, through: int | None) -> None:
    """With the summary, and but for a single newest message."""
    summary = None if through is None else Summary(through, "", 1)
    memory = remembered(memory.messages, (), summary)
    choice = SummaryPolicy(max_tokens=budget).choose(memory)
    shown_tokens = len(render_summary(summary)) if summary else 0
    tokens = sum(map(memory.tokens, choice.kept)) + shown_tokens
    assert choice.over_budget or not choice.kept or tokens <= budget


def test_tool_calls_count_and_are_told() -> None:
    """What tools answered goes into the summary with its turn, and calls for it."""
    tools = [tool_use_of_tokens(1, 20), tool_use_of_tokens(9, 5)]
    due = POLICY.find_due(remembered(TEN[:-6], tools))
    assert due is not None
    assert [tools[0]] == list(due.tools)
    assert None is POLICY.find_due(remembered(TEN[:-6]))
    told = render_messages(due.messages[:2], due.tools)
    assert f"user: xxx\nassistant: xxxx\ntool t null: {'x' * 19}" == told


def test_a_prompt_has_a_bound() -> None:
    """A long backlog is told in portions of whole turns, and at least one turn at a time."""
    due = POLICY.find_due(remembered(TEN), limit=20)
    assert due is not None
    assert (2, 4) == (due.through_turn, len(due.messages))
    due = POLICY.find_due(remembered(TEN), limit=0)
    assert due is not None
    assert (1, 2) == (due.through_turn, len(due.messages))
