"""Markdown, as markdown-it-py reads it."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest
from hypothesis import given
from markdown_it import MarkdownIt
from markdown_it.token import Token

from tests.support.events import event
from tests.support.samples.exported_calls import EVENTS, JOKE, START, TEXTS, call_after, said
from voicemem.exports.call import one_line
from voicemem.exports.markdown import code, escaped, markdown

READER = MarkdownIt("commonmark").enable(["strikethrough", "table"])


def inline_tokens(text: str) -> list[Token]:
    return [child for token in READER.parse(text) for child in token.children or ()]


def shown(text: str) -> str:
    """What a reader sees."""
    return "".join(token.content for token in inline_tokens(text))


def struck(text: str) -> list[str]:
    """What is struck out."""
    found, inside = [""], False
    for token in inline_tokens(text):
        inside = token.type == "s_open" or (inside and token.type != "s_close")
        if inside:
            found[-1] += token.content
        elif found[-1]:
            found.append("")
    return [one for one in found if one]


def test_it_reads_well() -> None:
    """A heading, the facts, then who said what and when; what no one heard is struck out."""
    text = "".join(
        markdown(call_after(*EVENTS, name="Front desk", user_id="ann", reason="hung up", labels={"line": "shop"}))
    )
    assert (
        f"""# Front desk

- **Session** `call-1`
- **User** `ann`
- **Began** 2026-09-21 14:13:20 UTC
- **Lasted** 0:06
- **State** ended (hung up)
- **Labels** `line: shop`

---

**Caller** · 0:00

Tell me a joke.

**Agent** · 0:02 · *interrupted after 3.0 s*

Why did the scarecrow ~~{JOKE[22:]}~~

*Tool* `find({{"nut":"walnut"}})` → `["none"]`

**Caller** · 0:06

Stop.

---

*Struck out: the agent had it, and nobody heard it.*
"""
        == text
    )


def test_a_call_in_which_nothing_was_said_says_so() -> None:
    """And a tool call without a result does."""
    call = call_after(event("tool.call", turn_id=1, ts=START, call_id="c", name="find", arguments={}))
    assert "*Nothing was said.*" in "".join(markdown(call))
    assert "*no result*" in "".join(markdown(call))


@pytest.mark.parametrize(("ms", "words"), [(20, "0.1 s"), (400, "0.4 s"), (940, "0.9 s"), (960, "1 s"), (2300, "2 s")])
def test_an_estimate_says_about_how_long(ms: int, words: str) -> None:
    """To the second, and to the tenth where it is shorter than that."""
    call = call_after(
        event("llm.done", turn_id=1, ts=START, text="One moment, I am looking it up, it may take a while."),
        event("tts", turn_id=1, ts=START, audio_ms=0),
        event("interrupt", turn_id=1, ts=START + ms),
    )
    assert f"*interrupted after about {words}*" in "".join(markdown(call))


@given(TEXTS)
def test_every_text_is_shown_as_it_is(text: str) -> None:
    """On one line, without links, images, HTML, lists, headings or rules."""
    written = escaped(text)
    assert ["paragraph_open", "inline", "paragraph_close"] == [token.type for token in READER.parse(written)] or (
        not one_line(text)
    )
    assert one_line(text) == shown(written)
    assert {"text", "text_special"} >= {token.type for token in inline_tokens(written)}


@given(TEXTS)
def test_code_is_shown_as_it_is(text: str) -> None:
    """However many backticks are in it."""
    (token,) = inline_tokens(code(text))
    assert ("code_inline", one_line(text) or " ") == (token.type, token.content)


@pytest.mark.parametrize(
    ("heard", "unheard"), [("One ", "two."), ("One", ", two."), ("One, ", "*two*"), ("On", "e two."), ("一", "二三。")]
)
def test_what_was_not_heard_is_struck_out(heard: str, unheard: str) -> None:
    """Also where it begins with a mark, or inside a word."""
    assert [unheard.strip()] == struck("".join(markdown(said("Hi.", heard, unheard))))


@given(TEXTS, TEXTS)
def test_no_text_reaches_beyond_its_utterance(heard: str, unheard: str) -> None:
    """There is one heading and no HTML, and the legend is the last paragraph."""
    tokens = READER.parse("".join(markdown(said("Hi.", heard, unheard))))
    assert 1 == sum(token.type == "heading_open" for token in tokens)
    children = [child.type for token in tokens for child in token.children or ()]
    assert not {"html_block", "html_inline", "image", "link_open"} & {*children, *(token.type for token in tokens)}
