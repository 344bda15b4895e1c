"""What the LLM gets: the memory in the place of Pipecat's own messages."""

from __future__ import annotations

from typing import Any

from voicemem.integrations.pipecat.caller import Remembered
from voicemem.integrations.pipecat.remembering import before_call, context_messages, rebuilt
from voicemem.integrations.runs import UserMessage

SYSTEM = {"role": "system", "content": "Be brief."}
HEARD = {"role": "assistant", "content": "Why did "}


def user(text: str) -> dict[str, Any]:
    return {"role": "user", "content": text}


def called(call_id: str) -> dict[str, Any]:
    function = {"name": "order", "arguments": "{}"}
    return {"role": "assistant", "tool_calls": [{"id": call_id, "type": "function", "function": function}]}


def returned(call_id: str, text: str = '"done"') -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": call_id, "content": text}


def heard(*messages: dict[str, Any]) -> list[dict[str, Any]]:
    """Messages of the memory with their times: those of the caller at 10, 20 …."""
    return [{**one, "timestamp": 10 * at} for at, one in enumerate(messages, 1)]


def user_messages(**messages: dict[str, Any]) -> list[UserMessage]:
    """Messages of the caller by the place of their words in the memory, `at_1` …."""
    places = ((int(name.removeprefix("at_")), one) for name, one in messages.items())
    return [UserMessage(one, 10 * at - 10, 10 * at) for at, one in places]


def test_the_memory_takes_the_place_of_what_was_generated() -> None:
    """Instructions stay in front, and the caller's newest words are those of the context."""
    joke, stop = user("A  joke"), user("****")
    own = [SYSTEM, joke, {"role": "assistant", "content": "Why did the scarecrow win?"}, stop]
    known = heard(user("A joke"), HEARD, user("Stop"))
    found = rebuilt(own, known, [], user_messages(at_1=joke, at_3=stop))
    assert found == [SYSTEM, user("A joke"), HEARD, stop]
    assert found[-1] is stop


def test_a_context_that_was_rewritten() -> None:
    """What the memory put there is not Pipecat's own; the words of the turn before become the memory's."""
    joke, stop = user("A  joke"), user("****")
    known = heard(user("A joke"), HEARD, user("Stop"))
    first = rebuilt([SYSTEM, joke], known[:1], [], user_messages(at_1=joke))
    assert first == [SYSTEM, joke]
    own = [*first, {"role": "assistant", "content": "Why did the scarecrow win?"}, stop]
    second = rebuilt(own, known, [], user_messages(at_1=joke, at_3=stop))
    assert second == [SYSTEM, user("A joke"), HEARD, stop]
    thanks = user("Thanks")
    third = rebuilt(
        [*second, HEARD, thanks], heard(*known, HEARD, thanks), [], user_messages(at_1=joke, at_3=stop, at_5=thanks)
    )
    assert third == [SYSTEM, user("A joke"), HEARD, user("Stop"), HEARD, thanks]


def test_the_memory_instructs_in_the_program_s_system_message() -> None:
    """There is one, also when it is rewritten again; what the program changes of its own stays changed."""
    known = [{"role": "system", "content": "The caller is Ann."}, *heard(user("A joke"))]
    own, joke = {"role": "system", "content": "Be brief."}, user("A joke")
    questions = user_messages(at_1=joke)
    first = rebuilt([own, joke], known, [], questions)
    assert first[0] == {"role": "system", "content": "Be brief.\n\nThe caller is Ann."}
    own["content"] = "Be long."
    second = rebuilt(first, known, [], questions)
    assert [one["content"] for one in second] == ["Be long.\n\nThe caller is Ann.", "A joke"]
    second[0]["content"] = "Be silent."
    assert rebuilt(second, known, [], questions)[0]["content"] == "Be silent.\n\nThe caller is Ann."
    parts = {"role": "system", "content": [{"type": "text", "text": "Be brief."}]}
    texts = [one["text"] for one in rebuilt([parts, joke], known, [], questions)[0]["content"]]
    assert texts == ["Be brief.", "The caller is Ann."]
    assert rebuilt([joke], known, [], questions)[0] == known[0]


def test_tools_that_run_stay() -> None:
    """The memory has no call without a result; a result that it has is not repeated, and the own object stays."""
    pizza, running = user("A pizza"), returned("2", "IN_PROGRESS")
    own = [SYSTEM, pizza, called("1"), returned("1"), called("2"), running]
    found = rebuilt(own, heard(pizza, called("1"), returned("1")), [], user_messages(at_1=pizza))
    assert found == [SYSTEM, pizza, called("1"), returned("1"), called("2"), running]
    assert found[-1] is running


def test_tools_that_run_stay_before_the_newest_words() -> None:
    """The LLM answers the caller, and not the tool, also where the memory has the caller's words in one."""
    pizza, cab = user("A pizza"), user("A cab")
    own = [SYSTEM, pizza, called("2"), returned("2", "running"), cab]
    known = heard(pizza, HEARD, cab)
    running = [called("2"), returned("2", "running")]
    assert rebuilt(own, known, [], user_messages(at_1=pizza, at_3=cab)) == [SYSTEM, pizza, HEARD, *running, cab]
    joined = heard(user("A pizza A cab"))
    assert rebuilt(own, joined, [], user_messages(at_1=pizza, at_3=cab)) == [SYSTEM, pizza, *running, cab]


def test_the_result_of_a_tool_that_ran_on_is_told_once() -> None:
    """Pipecat tells the LLM of it in an instruction; when the next turn comes, the memory has it."""
    told = {"role": "developer", "content": '{"type": "async_tool", "tool_call_id": "2", "result": "done"}'}
    pizza, good = user("A pizza"), user("Good")
    own = [SYSTEM, pizza, called("2"), returned("2", "running"), told]
    known = [pizza, called("2"), returned("2")]
    assert rebuilt(own, heard(*known), [], user_messages(at_1=pizza)) == [SYSTEM, *known, told]
    later = [*known, HEARD, good]
    assert rebuilt([*own, HEARD, good], heard(*later), [], user_messages(at_1=pizza, at_5=good)) == [SYSTEM, *later]


def test_words_whose_transcript_is_on_its_way_are_asked() -> None:
    """Once, and what the program adds in the user's role behind them."""
    stop, please, added = user("Stop  that"), user("please"), user("(A known caller.)")
    own = [SYSTEM, stop, HEARD, please, added]
    known = heard(user("stop that"), HEARD)
    questions = user_messages(at_1=stop, at_3=please)
    assert rebuilt(own, known, [], questions) == [SYSTEM, user("stop that"), HEARD, please, added]
    assert rebuilt([*own, HEARD], known, [], questions) == [SYSTEM, user("stop that"), HEARD]


def test_what_was_there_before_the_call_stays() -> None:
    """A program may begin with messages of its own, which are no part of the call; a greeting that was spoken is."""
    first, greeting, hi = user("Please introduce yourself."), {"role": "assistant", "content": "I am Ann."}, user("Hi")
    earlier = Remembered(user("Of an earlier part of the call"))
    own = [SYSTEM, earlier, first, greeting, hi]
    questions = user_messages(at_2=hi)
    assert before_call(own, questions, 0) == [first, greeting]
    assert before_call(own, questions, 1) == before_call(own[:3], [], 0) == [first]
    known = heard({"role": "assistant", "content": "I am "}, hi)
    assert rebuilt(own, known, [first], questions) == [SYSTEM, first, {"role": "assistant", "content": "I am "}, hi]


def test_an_instruction_for_this_answer_is_the_last() -> None:
    """Pipecat asks in this way what to do about a turn without words."""
    prompt = {"role": "developer", "content": "The user said nothing."}
    hi, hello = user("Hi"), user("Hello?")
    own, questions = [SYSTEM, hi, prompt], user_messages(at_1=hi, at_2=hello)
    assert rebuilt(own, heard(hi), [], questions[:1]) == [SYSTEM, hi, prompt]
    assert rebuilt([*own, hello], heard(hi, hello), [], questions) == [SYSTEM, prompt, hi, hello]


def test_messages_of_a_vendor_stay() -> None:
    """What is no message of OpenAI's form is handed on as it is."""
    special, hi = object(), user("Hi")
    assert rebuilt([special, hi], heard(hi), [], user_messages(at_1=hi))[0] is special


def test_messages_of_a_context_have_no_empty_fields() -> None:
    """Pipecat's adapters take a missing content, and no null; fields of the memory stay here."""
    given: dict[str, Any] = {
        "role": "assistant",
        "content": None,
        "tool_calls": [],
        "turn_id": 1,
        "timestamp": 2,
        "metadata": {},
    }
    assert context_messages([given]) == [{"role": "assistant", "tool_calls": []}]
