"""Whose a name in a question is, and whom a pronoun means."""

from __future__ import annotations

from typing import Any

from tests.support.rows import every_row
from voicemem.search.speakers import speaker_by_pronoun, speakers_by_name


@every_row(
    ("question", "speaker"),
    [
        ("What is she allergic to?", "user"),
        ("What did I order?", "user"),
        ("Can you tell me what I ordered?", None),
        ("Where is Rome?", None),
        ("Was hat er bestellt?", "user"),
        ("Was hast du gesagt?", None),
        ("我对什么过敏？", "user"),
        ("你说了什么？", None),
        ("나이아가라", None),
    ],
)
def test_a_pronoun_means_the_caller(question: str, speaker: Any) -> None:
    """Unless the question is about the agent too."""
    assert speaker == speaker_by_pronoun(question)


ADDRESSED: list[tuple[Any, str]] = [
    ("assistant", "Hey Melanie! How are you?"), ("assistant", "Thanks, Melanie."), ("user", "Oh Caroline, really?"),
    ("user", "I see. Right, Caroline?"), ("user", "I met Rex, our dog, and Bob."),
    ("user", "My name is Mel, by the way."),
    ("assistant", "佳怡，你好！"), ("assistant", "谢谢佳怡！"), ("user", "对吧，小雨？"), ("user", "嗨，小雨！"),
    ("user", "Hier spricht Anja."), ("user", "Hier ist Anja Klein."),
]  # fmt: skip


@every_row(
    ("question", "speakers"),
    [
        ("Where did melanie go?", {"melanie": "user"}),
        ("Is Caroline's sister older than Melanie?", {"caroline": "assistant", "melanie": "user"}),
        ("What is Rex?", {}),
        ("佳怡去了哪里？", {"佳怡": "user"}),
        ("小雨和佳怡", {"小雨": "assistant", "佳怡": "user"}),
        ("Wo wohnt Anja?", {"anja": "user"}),
        ("What is it?", {}),
    ],
)
def test_a_name_is_that_of_who_is_addressed(question: str, speakers: dict[str, str]) -> None:
    """Or of who introduces themselves; once is not enough, and others are not speakers."""
    assert speakers == speakers_by_name(question, ADDRESSED)
