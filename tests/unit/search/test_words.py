"""Which words a text is found by, and which a query asks for."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from voicemem.search.words import FORMS, MAX_QUERY_WORDS, MAX_WORD, QueryWord, query_words, words_of

TEXTS = [
    ("Don't tell Müller's dog!", "don t tell muller s dog"),
    ("Straße, STRASSE, stra\u00dfe", "strasse strasse strasse"),
    ("e\u0301t\u00e9 \ufb01x \uff21\uff22", "ete fix ab"),
    ("3.14 is near; e-mail me_now", "3 14 is near e mail me now"),
    ("我对核桃过敏", "我对 对核 核桃 桃过 过敏 敏"),
    ("iPhone很好", "iphone 很好 好"),
    ("호두는 싫어", "호두 두는 는 싫어 어"),
    ("ﾊﾝｶｸ", "ハン ンカ カク ク"),
    ("", ""),
    ("… !? \0 🦩", ""),
]


@pytest.mark.parametrize(("text", "expected"), TEXTS, ids=[text for text, _ in TEXTS])
def test_a_text_has_these_words(text: str, expected: str) -> None:
    """In lower case, without accents, whatever they are written with; scripts without spaces in pairs."""
    assert words_of(text) == expected.split()


def test_a_query_leaves_out_what_says_nothing() -> None:
    """Words that every text has, in several languages, unless there are no others; and each word counts once."""
    assert query_words("What was the name of the dog?") == [QueryWord("name"), QueryWord("dog")]
    assert query_words("who are you") == [QueryWord("who"), QueryWord("are"), QueryWord("you")]
    assert query_words("dog dog DOG") == [QueryWord("dog")]


def test_words_that_say_nothing_in_german_alone_are_asked_for_in_english() -> None:
    """A hat is one; in a sentence that is German it is none."""
    assert query_words("Which hat did she lose?")[:2] == [QueryWord("hat"), QueryWord("lose")]
    assert query_words("When did the man die in the war?", False) == list(map(QueryWord, ["man", "die", "war"]))
    assert query_words("Wann hat die Oma den Hut?") == [QueryWord("oma"), QueryWord("hut")]


@pytest.mark.parametrize(
    ("query", "others"),
    [
        ("When did she buy it?", "bought"),
        ("she bought", "buy"),
        ("Buying?", "buy bought"),
        ("driving", "drive drove driven"),
        ("running", "run ran"),
        ("her children", "child"),
        ("Whose wife?", "wives"),
        ("the favourite color", "favorite colour"),
        ("goes", "go went gone"),
        ("walked", ""),
        ("ing s", ""),
        ("Wann kommen die Kinder? Say!", ""),
    ],
)
def test_a_query_asks_for_forms_without_a_common_stem(query: str, others: str) -> None:
    """Of English words, behind those that are asked for; not where all words must be there, nor in German."""
    exact = query_words(query, in_all_forms=False)
    assert [word.text for word in query_words(query)] == [word.text for word in exact] + others.split()


def test_a_query_with_all_forms_is_no_longer_than_others() -> None:
    """What was asked for stands first, so only other forms are left out."""
    forms = list(dict.fromkeys(form for group in FORMS.values() for form in group))
    assert len(query_words(" ".join(forms))) == MAX_QUERY_WORDS
    assert all(words_of(form) == [form] for form in forms)


def test_words_of_a_german_query_lose_their_endings() -> None:
    """They are asked for as beginnings; other languages, and words that are too short, stay as they are."""
    assert query_words("Wann kommen die Rechnungen?") == [QueryWord("komm", True), QueryWord("rechnung", True)]
    assert query_words("Wie heißt der Hund, der Opa und 12345?")[1:] == [
        QueryWord("hund", True),
        QueryWord("opa"),
        QueryWord("12345"),
    ]
    assert query_words("Wie wohnt ihr, und wo wohnen wir?") == [QueryWord("wohn", True)]
    for other in ("When do the parties come?", "¿Cuándo vienen los invitados?", "Quand viennent les invités?"):
        assert not any(word.is_prefix for word in query_words(other))
    assert query_words("dem 核桃") == [QueryWord("核桃")]


def test_a_single_character_asks_for_all_words_that_begin_with_it() -> None:
    """Since texts have pairs, and the last character of a run."""
    assert query_words("核") == [QueryWord("核", is_prefix=True)]
    assert query_words("核桃") == [QueryWord("核桃")]
    assert query_words("x") == [QueryWord("x")]


def test_words_and_queries_are_bounded() -> None:
    """A long word is cut, and a long query has so many words."""
    assert words_of("x" * 1000) == ["x" * MAX_WORD]
    assert words_of("ä" * 1000) == ["a" * MAX_WORD]
    assert len(query_words(" ".join(f"w{number}" for number in range(1000)))) == MAX_QUERY_WORDS


@given(st.text())
def test_words_are_plain_whatever_the_text(text: str) -> None:
    """Nothing that means something to an engine is in a word: no spaces, quotes or signs."""
    for word in [*words_of(text), *(word.text for word in query_words(text))]:
        assert 1 <= len(word) <= MAX_WORD
        assert not set(word) & set(" \t\n\"'*:()&|!<>\\^-+_\0")


@given(st.text(), st.text())
def test_a_query_for_a_part_of_a_text_asks_for_words_of_it(before: str, part: str) -> None:
    """What is asked for with the very words of a text is found in it."""
    found = words_of(f"{before} {part}")
    for word in query_words(part):
        assert word.text in found or (word.is_prefix and any(each.startswith(word.text) for each in found))
