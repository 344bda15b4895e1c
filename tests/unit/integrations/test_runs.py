"""Which of an agent's messages a model gets beside those of the memory."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    pytest.importorskip("langchain", reason="LangChain is not installed")
    from langchain_core.messages import AIMessage, HumanMessage, SystemMessage, ToolMessage

    from voicemem.integrations.langgraph import unrecorded
    from voicemem.integrations.runs import rebuilt

H, A, S = HumanMessage, AIMessage, SystemMessage
CALL = AIMessage("Let me look.", tool_calls=[{"name": "look_up", "args": {}, "id": "c1"}])
RESULT = ToolMessage("rain", tool_call_id="c1")
KNOWN_CALL = AIMessage("", tool_calls=CALL.tool_calls)


def texts(own: list[Any], known: list[Any], user_is_recorded: bool = True) -> list[str]:
    return [str(one.content) for one in rebuilt(own, known, set(), user_is_recorded=user_is_recorded)]


def test_the_users_words_are_in_it_once() -> None:
    """Whether the memory has them already or not."""
    own = [H("Rain?"), A("Yes, it rains."), H("Until when?")]
    heard = [H("Rain?"), A("Yes, ")]
    for known in ([*heard, H("Until when?")], heard):
        assert texts(own, known, user_is_recorded=False) == ["Rain?", "Yes, ", "Until when?"]


def test_the_same_words_may_be_said_again() -> None:
    """Words from before the last answer are not those that are asked now."""
    assert texts([H("Yes."), A("Really?"), H("Yes.")], [H("Yes."), A("Really?")]) == ["Yes.", "Really?", "Yes."]


def test_words_that_are_redacted_in_the_memory_are_there_once() -> None:
    """The model still gets those of now as they were said."""
    own = [H("Hi."), A("Your card?"), H("It is 4111.")]
    assert texts(own, [H("Hi."), A("Your card?"), H("It is [card].")]) == ["Hi.", "Your card?", "It is 4111."]


def test_words_that_another_producer_has_in_another_form() -> None:
    """The newest ones are those that are asked, unless they may be on their way."""
    own = [H("Hi."), A("Your card?"), H("It is ****.")]
    heard = [H("Hi."), A("Your card?"), H("It is 4111.")]
    assert texts(own, heard, user_is_recorded=False) == ["Hi.", "Your card?", "It is ****."]
    own[2:] = [H("My card?"), H("It is ****.")]
    heard[2:] = [H("My card?")]
    assert texts(own, heard, user_is_recorded=False) == ["Hi.", "Your card?", "My card?", "It is ****."]


def test_utterances_without_an_answer_are_one() -> None:
    """The memory has joined them; the run that was cancelled in between is no reason to lose the first."""
    assert texts([H("Rain?"), H("Hello?")], [H("Rain? Hello?")]) == ["Rain? Hello?"]


def test_a_run_keeps_its_own_tool_calls() -> None:
    """What it has said and called so far is as the model made it, and not a second time from the memory."""
    own = [H("Rain?"), CALL, RESULT]
    known = [H("Rain?"), A("Let me look."), KNOWN_CALL, RESULT]
    made = rebuilt(own, known, set(), user_is_recorded=True)
    assert made == own
    assert texts(own, known[1:], user_is_recorded=False) == ["Rain?", "Let me look.", "rain"]


def test_a_run_that_the_program_begins_brings_no_unheard_text() -> None:
    """After an instruction, the answer before it is the memory's."""
    own = [H("Rain?"), A("Yes, it rains."), S("The user is silent: ask.")]
    assert texts(own, [H("Rain?"), A("Yes, ")]) == ["Rain?", "Yes, ", "The user is silent: ask."]


def test_only_what_a_run_has_added_is_recorded() -> None:
    """Also what users said in runs that were cancelled, and never what was answered before."""
    before = [H("One."), A("Two.")]
    assert unrecorded([*before, H("Three."), H("Four.")]) == [H("Three."), H("Four.")]
    assert unrecorded([*before, H("Three."), CALL, RESULT, A("Five.")]) == [H("Three."), CALL, RESULT, A("Five.")]
    assert unrecorded([*before, S("Ask."), A("Five.")]) == [S("Ask."), A("Five.")]
