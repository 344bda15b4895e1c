"""An answer is a list of memories, or nothing."""

from __future__ import annotations

import json

import pytest

from tests.support.rows import every_row
from voicemem.errors import LlmFailed
from voicemem.memory.extraction.checks import DraftedMemory, read_answer

GOOD = {"text": "Ann is allergic to walnuts.", "kind": "fact", "from": [1]}


AROUND = [
    "{}",
    "\n {} \n",
    "```json\n{}\n```",
    "```\n{}\n```\n",
    "Here they are:\n```json\n{}\n```\nI left out greetings.",
    'Sure! A draft: {"memories": [{"text": "no"}]}. Better: {}',
    'Not {"memories": [ but {}',
    "A draft:\n```json\n[]\n```\nBetter:\n```JSON\n{}\n```",
]


@every_row(
    "text",
    [
        '{"memories": [ONE,],}',
        '{"memories": [ONE , ] }\n',
        '{"note": "first, [this]", "memories": [ONE]}',
        '```json\n{"note": "first", "memories": [ONE,],}\n```\nThat is all.',
        "Here they are: [ONE, ] Done.",
        "```json\n[ONE]",
        '{"memories": [{"text": "Ann, she said [sic,] so.", "kind": "fact", "from": [1.0], "topics": null}]}',
    ],
)
def test_what_people_would_read_is_read(text: str) -> None:
    """Commas at the end of a list, a list alone, other fields first, null and 1.0: an answer is not lost for them."""
    (memory,) = read_answer(text.replace("ONE", json.dumps(GOOD)))
    assert memory is not None
    assert memory.text in ("Ann is allergic to walnuts.", "Ann, she said [sic,] so.")
    assert memory.lines == [1]


@every_row("around", AROUND)
def test_memories_are_read(around: str) -> None:
    """Also out of a fence or prose; what is left out has its default."""
    answer = json.dumps({"memories": [GOOD], "note": "more"})
    expected = [DraftedMemory("Ann is allergic to walnuts.", "fact", [1])]
    assert read_answer(around.replace("{}", answer)) == expected
    assert read_answer(f"```json\n{json.dumps([GOOD])}\n```") == expected


@every_row(
    "text",
    [
        "",
        "Ann is allergic to walnuts.",
        'Sure! Here it is: {"memories": [}',
        '{"memories": [',
        '{"memories": {}}',
        '{"memory": []}',
        "[]",
        "[1, 2]",
        "As [1] says.",
        "null",
        '{"memories": [{"text": "x", "kind": "fact", "from": [1], "confidence": NaN}]}',
        '{"memories": [' + "[" * 2_000 + "]" * 2_000 + "]}",
        '{"memories": [' + "1," * 300 + "1]}",
        '{"memories": [' + "1," * 140_000 + "1]}",
        "x" * 300_000,
    ],
    ids=range(15),
)
def test_anything_else_is_unusable(text: str) -> None:
    """Prose, broken JSON, other JSON, too much."""
    with pytest.raises(LlmFailed) as failed:
        read_answer(text)
    assert failed.value.why == "unusable_answer"


@every_row(
    "wrong",
    [
        {"text": 1},
        {"from": "1"},
        {"from": [1.5]},
        {"from": None},
        {"confidence": "high"},
        {"topics": "food"},
        {"kind": None},
        {"supersedes": [1]},
    ],
)
def test_one_that_is_wrong_does_not_spoil_the_others(wrong: dict[str, object]) -> None:
    """It is None."""
    answer = json.dumps({"memories": [GOOD | wrong, "text", GOOD]})
    assert [one is not None for one in read_answer(answer)] == [False, False, True]
