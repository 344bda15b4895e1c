"""What the LLM gets: the memory in the place of Pipecat's own messages."""

from __future__ import annotations

from typing import Any

from voicemem.integrations.pipecat.remembering import context_messages, rebuilt

SYSTEM = {"role": "system", "content": "Be brief."}
HEARD = {"role": "assistant", "content": "Why did "}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(call_id: str) -> dict[str, Any]:
    function = {"name": "order", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def returned(call_id: str, text: str = '"done"') -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def test_the_memory_takes_the_place_of_what_was_generated() -> None:
    """Instructions stay in front."""
    own = [SYSTEM, user("A joke"), {"role": "assistant", "content": "Why did the scarecrow win?"}, user("Stop")]
    known = [user("A joke"), HEARD, user("Stop")]
    assert rebuilt(own, known, []) == [SYSTEM, *known]


def test_tools_that_run_stay() -> None:
    """The memory has no call without a result; a result that it has is not repeated, and the own object stays."""
    running = returned("2", "IN_PROGRESS")
    own = [SYSTEM, user("A pizza"), called("1"), returned("1"), called("2"), running]
    known = [user("A pizza"), called("1"), returned("1")]
    found = rebuilt(own, known, [])
    assert found == [SYSTEM, *known, called("2"), running]
    assert found[-1] is running


def test_tools_that_run_stay_before_the_newest_words() -> None:
    """The LLM answers the caller, and not the tool; where the memory has the caller's words in one, it comes behind."""
    own = [SYSTEM, user("A pizza"), called("2"), returned("2", "running"), user("A cab")]
    known = [user("A pizza"), HEARD, user("A cab")]
    assert rebuilt(own, known, []) == [SYSTEM, *known[:2], called("2"), returned("2", "running"), known[2]]
    joined = [user("A pizza A cab")]
    assert rebuilt(own, joined, []) == [SYSTEM, *joined, called("2"), returned("2", "running")]


def test_the_result_of_a_tool_that_ran_on_is_told_once() -> None:
    """Pipecat tells the LLM of it in an instruction; when the next turn comes, the memory has it."""
    told = {"role": "developer", "content": '{"type": "async_tool", "tool_call_id": "2", "result": "done"}'}
    own = [SYSTEM, user("A pizza"), called("2"), returned("2", "running"), told]
    known = [user("A pizza"), called("2"), returned("2")]
    assert rebuilt(own, known, []) == [SYSTEM, *known, told]
    later = [*known, HEARD, user("Good")]
    assert rebuilt([*own, HEARD, user("Good")], later, []) == [SYSTEM, *later]


def test_words_whose_transcript_is_on_its_way_are_asked() -> None:
    """Once; with other white space and case they are the same words."""
    own = [SYSTEM, user("Stop  that"), user("please")]
    assert rebuilt(own, [user("stop that"), HEARD], [])[-1] == user("please")
    assert rebuilt(own, [user("Stop that PLEASE")], []) == [SYSTEM, user("Stop that PLEASE")]


def test_what_was_there_before_the_call_stays() -> None:
    """A program may begin with messages of its own, which are no part of the call."""
    first = user("Please introduce yourself.")
    own = [SYSTEM, first, {"role": "assistant", "content": "I am Ann."}, user("Hi")]
    known = [{"role": "assistant", "content": "I am "}, user("Hi")]
    assert rebuilt(own, known, [first]) == [SYSTEM, first, *known]


def test_an_instruction_for_this_answer_is_the_last() -> None:
    """Pipecat asks in this way what to do about a turn without words."""
    prompt = {"role": "developer", "content": "The user said nothing."}
    own = [SYSTEM, user("Hi"), prompt]
    assert rebuilt(own, [user("Hi")], []) == [SYSTEM, user("Hi"), prompt]
    assert rebuilt([*own, user("Hello?")], [user("Hi"), user("Hello?")], []) == [
        SYSTEM,
        prompt,
        user("Hi"),
        user("Hello?"),
    ]


def test_messages_of_a_vendor_stay() -> None:
    """What is no message of OpenAI's form is handed on as it is."""
    special = object()
    assert rebuilt([special, user("Hi")], [user("Hi")], [])[0] is special


def test_messages_of_a_context_have_no_empty_fields() -> None:
    """Pipecat's adapters take a missing content, and no null."""
    assert context_messages([{"role": "assistant", "content": None, "tool_calls": []}]) == [
        {"role": "assistant", "tool_calls": []}
    ]
