"""The newest turns that fit into a budget of tokens."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import re

import msgspec
from hypothesis import given
from hypothesis import strategies as st
from msgspec import structs

from tests.support.samples.policies import memories, message_of_tokens, remembered, tool_use_of_tokens, turn_of_tokens
from voicemem.context.policies import (
    LEAST_SHOWN,
    Choice,
    Remembered,
    WindowPolicy,
    cut_result,
    cut_results,
    first_current,
)
from voicemem.transcript.messages import Message, ToolUse

CALL = [*turn_of_tokens(1, 3, 4), *turn_of_tokens(2, 3, 4), *turn_of_tokens(3, 3, 4)]


def chosen(budget: int, messages: list[Message], tools: list[ToolUse] | None = None) -> Choice:
    return WindowPolicy(budget).choose(remembered(messages, tools or []))


def shown_tools(memory: Remembered, choice: Choice) -> list[ToolUse]:
    """Those that go with the chosen messages, and those of the turn under way."""
    first = first_current(memory)
    if not choice.tools or not choice.kept:
        return [*memory.tools[first:]]
    since = memory.messages[choice.kept[0]].turn_id if choice.kept[0] else -1
    return [use for place, use in enumerate(memory.tools) if use.turn_id >= since or place >= first]


@given(memories(), st.integers(1, 60))
def test_a_window_never_exceeds_its_budget(memory: Remembered, budget: int) -> None:
    """By its own counter, tools included; but for a newest message that is larger, or results of the turn under way."""
    choice = WindowPolicy(budget).choose(memory)
    shown, current = shown_tools(memory, choice), memory.tools[first_current(memory) :]
    older = sum(map(memory.tool_tokens, shown[: len(shown) - len(current)]))
    tools = older + min(sum(map(memory.tool_tokens, current)), budget)
    tokens = sum(map(memory.tokens, choice.kept)) + tools
    assert choice.over_budget == (tokens > budget)
    if choice.over_budget and memory.messages:
        assert memory.messages[choice.kept[0]].turn_id == memory.messages[-1].turn_id


@given(memories(), st.integers(1, 60))
def test_a_window_is_the_end_of_the_call(memory: Remembered, budget: int) -> None:
    """Nothing is left out in between, and there is always something."""
    kept = list(WindowPolicy(budget).choose(memory).kept)
    assert list(range(len(memory.messages)))[len(memory.messages) - len(kept) :] == kept
    assert bool(kept) == bool(memory.messages)


@given(memories(), st.integers(1, 60))
def test_answers_stay_with_their_questions(memory: Remembered, budget: int) -> None:
    """A turn is parted only when it is the newest, and larger than the whole budget."""
    kept = list(WindowPolicy(budget).choose(memory).kept)
    if kept and kept[0] and memory.messages[kept[0] - 1].turn_id == memory.messages[kept[0]].turn_id:
        assert memory.messages[kept[0]].turn_id == memory.messages[-1].turn_id


def test_whole_turns_fit() -> None:
    """14 tokens are two turns of 7, and 13 are one."""
    assert [2, 3, 4, 5] == list(chosen(14, CALL).kept)
    assert [4, 5] == list(chosen(13, CALL).kept)
    assert list(range(6)) == list(chosen(21, CALL).kept)


def test_of_a_newest_turn_that_is_too_large_the_newest_messages_are_kept() -> None:
    """The answer without its question, where both do not fit."""
    assert [5] == list(chosen(6, CALL).kept)
    assert not chosen(6, CALL).over_budget


def test_a_newest_message_larger_than_the_budget_is_kept_alone() -> None:
    """An LLM that is sent nothing cannot answer; the flag tells."""
    choice = chosen(3, CALL)
    assert ([5], True) == (list(choice.kept), choice.over_budget)


def test_tool_calls_count_with_their_turn() -> None:
    """A turn whose tool calls do not fit is left out with them."""
    assert [2, 3, 4, 5] == list(chosen(16, CALL, [tool_use_of_tokens(2, 2)]).kept)
    assert [4, 5] == list(chosen(15, CALL, [tool_use_of_tokens(2, 2)]).kept)


def test_tool_calls_of_turns_without_messages_count_with_the_turn_before() -> None:
    """They would be shown between its messages and the next turn's."""
    assert [4, 5] == list(chosen(16, CALL, [tool_use_of_tokens(9, 9)]).kept)


def test_results_of_the_turn_under_way_take_no_words_away() -> None:
    """They are shown whatever they take, and what is left out are earlier turns."""
    choice = chosen(8, [*CALL, message_of_tokens("user", 4, 3)], [tool_use_of_tokens(3, 1), tool_use_of_tokens(4, 9)])
    assert ([6], True) == (list(choice.kept), choice.over_budget)
    choice = chosen(12, [*CALL, message_of_tokens("user", 4, 3)], [tool_use_of_tokens(4, 9)])
    assert ([6], False) == (list(choice.kept), choice.over_budget)


def test_the_turn_under_way_begins_with_the_first_result_that_had_no_reply() -> None:
    """The caller may have spoken meanwhile, and the app too; but not the LLM."""
    question, filler = message_of_tokens("user", 4, 3), message_of_tokens("assistant", 4, 3, source="command")
    uses = [structs.replace(tool_use_of_tokens(turn, 2), answered_ms=9_000) for turn in (4, 5)]
    memory = remembered([*CALL, question, filler, message_of_tokens("user", 6, 3)], [tool_use_of_tokens(3, 2), *uses])
    assert 1 == first_current(memory)
    answer = message_of_tokens("assistant", 7, 3)
    assert 3 == first_current(remembered([*memory.messages, structs.replace(answer, timestamp=9_000)], memory.tools))
    assert [0, 0] == [first_current(remembered([], uses)), first_current(remembered(CALL))]


@given(st.text(alphabet="ab \n{}", max_size=400), st.integers(1, 100))
def test_a_result_is_cut_in_the_middle(result: str, budget: int) -> None:
    """Only where it is larger than the budget; its ends are there, and the mark says how much is not."""
    use = cut_result(structs.replace(tool_use_of_tokens(1, 1), result_json=msgspec.json.encode(result)), budget, len)
    if len(result) <= max(budget, 2 * LEAST_SHOWN):
        assert result == use.result
    else:
        begin, count, end = re.split(r"\n\[… (\d+) characters left out …\]\n", use.result)
        assert (begin, end) == (result[: len(begin)], result[len(begin) + int(count) :])
        assert len(use.result) <= max(budget, 2 * LEAST_SHOWN + 40)


@given(st.lists(st.integers(1, 400), min_size=1, max_size=12), st.integers(1, 2_000))
def test_results_share_the_budget(sizes: list[int], budget: int) -> None:
    """The longest are cut, and only as far as it takes; none is lost."""
    results = [msgspec.json.encode(chr(97 + at) * size) for at, size in enumerate(sizes)]
    uses = [structs.replace(tool_use_of_tokens(1, 1), result_json=result) for result in results]
    shown = [str(use.result) for use in cut_results(uses, budget, len)]
    assert sum(map(len, shown)) <= max(budget, (2 * LEAST_SHOWN + 40) * len(sizes))
    if sum(sizes) <= budget:
        assert shown == [use.result for use in uses]
    assert all(text[0] == text[-1] == chr(97 + at) for at, text in enumerate(shown))
    smallest = min(sizes)
    assert len(shown[sizes.index(smallest)]) == smallest or smallest > budget // len(sizes)


def test_of_nothing_there_is_nothing() -> None:
    """An empty memory fits into any window."""
    assert ([], False) == (list(chosen(1, []).kept), chosen(1, []).over_budget)
