"""The caller's words in the turn under way: in the places of the memory's, known by time."""

from __future__ import annotations

from typing import Any

import pytest

from voicemem.integrations.runs import MOST, UserMessage, as_passed_on, typed
from voicemem.protocol.types import JsonObject

FIRST, SECOND = UserMessage("(first)", 0, 100), UserMessage("(second)", 100, 300)


def known(*messages: str) -> list[JsonObject]:
    """Messages of a memory, as `user 10 text` or `assistant 10 text`."""
    return [
        {"role": role, "content": text, "timestamp": int(at)}
        for role, at, text in (message.split(" ", 2) for message in messages)
    ]


def placed(memory: list[JsonObject], user_messages: list[UserMessage], first: int = 0) -> tuple[list[Any], list[Any]]:
    made, left = as_passed_on(memory, user_messages, first)
    return [one if isinstance(one, str) else one["content"] for one in made], left


def test_a_message_takes_the_place_of_its_words() -> None:
    """Whatever either of them says, and however many messages of the memory have them."""
    memory = known("user 10 Call", "user 20 me at four one one one", "assistant 110 Yes", "user 120 Good")
    assert placed(memory, [FIRST, SECOND]) == (["(first)", "Yes", "(second)"], [])
    assert placed(memory, [FIRST, SECOND], 1) == (["Call", "me at four one one one", "Yes", "(second)"], [])


def test_tools_stay_behind_the_words() -> None:
    """What the memory has of the turn besides stays where it is."""
    memory = known("user 10 A pizza", "assistant 50 ", "tool 50 done")
    assert placed(memory, [FIRST]) == (["(first)", "", "done"], [])


def test_words_that_are_not_there_yet_have_no_place() -> None:
    """Behind a reply that was heard, they are the caller's to come."""
    assert placed(known("user 10 A joke", "assistant 50 Why"), [FIRST, SECOND], 1) == (["A joke", "Why"], ["(second)"])
    assert placed([], [FIRST]) == ([], ["(first)"])


def test_words_of_two_messages_in_one_of_the_memory() -> None:
    """A reply between them that was not heard leaves one turn in the memory, and both messages take its place."""
    memory = known("user 10 A joke No a story", "tool 200 done")
    assert placed(memory, [FIRST, SECOND]) == (["(first)", "(second)", "done"], [])
    assert placed(memory, [FIRST, SECOND], 1) == (["(first)", "(second)", "done"], [])


def test_words_that_began_before_the_message_before_was_complete() -> None:
    """They are those of the newest message if a reply was heard before them."""
    memory = known("user 10 A joke", "assistant 60 Why", "user 90 No a story")
    assert placed(memory, [FIRST, SECOND], 1) == (["A joke", "Why", "(second)"], [])


def test_a_message_that_was_typed_while_the_caller_spoke() -> None:
    """Each takes the place of its own."""
    memory = known("user 10 My number is", "user 50 12", "assistant 60 Yes", "user 70 eleven")
    user_messages = [typed("(typed)", 50), FIRST]
    assert placed(memory, user_messages) == (["(typed)", "Yes", "(first)"], [])
    assert placed(memory[:2], user_messages[:1]) == (["My number is", "(typed)"], [])


@pytest.mark.parametrize("message", [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "Hi"}])
def test_messages_without_a_time_stay(message: JsonObject) -> None:
    """Instructions are no words of the caller's."""
    assert placed([message], [FIRST]) == ([message["content"]], ["(first)"])


def test_only_the_newest_are_looked_at() -> None:
    """Those before them are the memory's."""
    user_messages = [UserMessage(str(at), at, at + 1) for at in range(2 * MOST)]
    memory = known(*(f"user {at + 1} said" for at in range(2 * MOST)))
    assert placed(memory, user_messages)[0] == ["said"] * MOST + [str(at) for at in range(MOST, 2 * MOST)]
