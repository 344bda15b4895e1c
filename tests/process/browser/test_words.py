"""Every text that the page can show stands in `words.txt`, to be read as a whole.

python -m tests.process.browser.test_words      writes it
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

from tests.support.paths import ROOT

ASSETS = ROOT / "voicemem" / "server" / "page" / "assets"
WORDS = Path(__file__).parent / "words.txt"
REGULAR_EXPRESSION = re.compile(r"/(?![*/])(?:[^\\/\[\n]|\\.|\[(?:[^\]\\\n]|\\.)*\])+/[a-z]*")
COMMENT = re.compile(r"//[^\n]*|/\*.*?\*/", re.DOTALL)
BEFORE_AN_EXPRESSION = "(,=:[!&|?{};>\n"
NO_TEXT = re.compile(
    r"(?:\b[hs]\(|import\(|from|[sS]elector(?:All)?\(|closest\?*\.?\(|matches\(|addEventListener\(|[gs]etAttribute\(|"
    r"\bclassList\.\w+\(|\.get\(|\.has\(|\.includes\(|startsWith\(|replaceAll\(|split\(|join\(|toLocaleString\(|Event\(|"
    r"\b(?:class|type|name|id|href|role|rel|autocomplete|preload|method|lane|look|kind|code|value|policy|style|format|types|"
    r"viewBox|preserveAspectRatio|fields|block|behavior|cache|text-anchor|patternUnits|Accept|\"Content-Type\"|spellcheck|dir|d|scope|datetime|headers|"
    r"\"aria-(?:controls|labelledby|describedby|hidden|current|expanded|keyshortcuts|invalid)\")\??:|[=!]==?|case|\+)\s*$"
)
"""What stands before a string that is no text: the name of an element, an attribute, an event, a comparison."""
NAME = re.compile(r"[a-z0-9_.$/#:;?&=*,\-]*|[A-Za-z]+Error|[A-Z]+|application/.*|[\W\d_]*|[a-z]+[A-Z]\w*|/v1/.*")
"""A word of programs, not of people; single words in lower case are decided by what stands before them."""


def literals(source: str) -> Iterator[tuple[str, str]]:
    """Each string of a module, with what stands before it; an expression inside one is `…`."""
    at = 0
    while at < len(source):
        before = source[max(0, at - 60) : at]
        begins = [COMMENT, REGULAR_EXPRESSION] if before.rstrip(" ")[-1:] in BEFORE_AN_EXPRESSION else [COMMENT]
        if found := next(filter(None, (one.match(source, at) for one in begins)), None):
            at = found.end()
        elif source[at] in "\"'`":
            text, end, inside = literal(source, at)
            yield before, text
            for expression in inside:
                yield from literals(expression)
            at = end
        else:
            at += 1


def literal(source: str, at: int) -> tuple[str, int, list[str]]:
    """The text of a string that begins here, its end, and the expressions inside it."""
    quote, text, inside = source[at], "", []
    at += 1
    while source[at] != quote:
        if source[at] == "\\":
            text, at = text + source[at : at + 2], at + 2
        elif quote == "`" and source.startswith("${", at):
            begin, depth, at = at + 2, 1, at + 2
            while depth:
                if source[at] in "\"'`":
                    _, at, _ = literal(source, at)
                    continue
                depth += {"{": 1, "}": -1}.get(source[at], 0)
                at += 1
            inside.append(source[begin : at - 1])
            text += "…"
        else:
            text, at = text + source[at], at + 1
    return text, at + 1, inside


def is_text(before: str, text: str) -> bool:
    if not re.search(r"[A-Za-z]{2}", text.replace("…", "")) or NO_TEXT.search(before):
        return False
    is_word = bool(re.fullmatch(r"[a-z]+(?: [a-z]+)*", text))
    return " " in text.strip() or text[:1].isupper() or is_word or not NAME.fullmatch(text)


def words_of_the_page() -> str:
    """The texts of each module, in their order, each once."""
    parts = [f"index.html\n  {re.search('<noscript>(.*)</noscript>', (ASSETS / 'index.html').read_text('utf-8'))[1]}"]  # type: ignore[index]
    for path in sorted(ASSETS.rglob("*.js")):
        texts = dict.fromkeys(text for before, text in literals(path.read_text("utf-8")) if is_text(before, text))
        if texts:
            parts.append("\n".join([path.relative_to(ASSETS).as_posix(), *(f"  {text}" for text in texts)]))
    return "\n\n".join(parts) + "\n"


def test_words_are_as_they_were_read() -> None:
    """A text that is new or changed is read aloud, beside all others; then the file is written again."""
    assert WORDS.read_text("utf-8") == words_of_the_page(), f"read the new texts, then: python -m {__name__}"


def test_words_are_those_of_the_docs() -> None:
    """British spelling, plain verbs, and none of the words that the service has for itself."""
    text = words_of_the_page()
    avoided = "color|summarize\\w*|recogniz\\w*|notices?|hook|is told|nobody|somebody|anew|goes on|wanted|is like that"
    assert not re.findall(rf"\b(?:{avoided})\b", text, re.IGNORECASE)


if __name__ == "__main__":
    WORDS.write_text(words_of_the_page(), "utf-8")
