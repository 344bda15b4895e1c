"""Runs of digits in a text, in one piece and in several."""

from __future__ import annotations

import unicodedata
from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from tests.support.rows import every_row
from voicemem.protocol.comparison import HIDDEN, HIDDEN_WORD
from voicemem.redaction.digit_runs import START, Limit, RunState, redact_run

CARDS, PHONE, OTP = Limit(6), Limit(4), Limit(2, codes=True)
DIGIT_WORDS = "zero one two three four five six seven eight nine".split()  # noqa: SIM905
SIGNS = st.sampled_from(["", " ", "-", " - ", ", ", ". ", " uh ", " okay, ", "\n", "/", " and then "])


def shown(text: str, limit: Limit = CARDS, run: RunState = START) -> str:
    return redact_run(text, run, limit, complete=True)[0]


def in_pieces(pieces: list[str], limit: Limit = CARDS) -> list[str]:
    """Pieces of one text, as they are kept one after the other."""
    run, found = START, []
    for piece in pieces:
        kept, run = redact_run(piece, run, limit)
        found.append(kept)
    return found


def kept_digits(text: str) -> int:
    """How many digits can still be read in a text of single digits."""
    words = "".join(char if char.isalpha() else " " for char in text.casefold()).split()
    return sum(char.isdecimal() for char in text) + sum(word in DIGIT_WORDS for word in words)


@st.composite
def card_numbers(draw: st.DrawFn) -> str:
    """13 to 19 digits, written or spoken, with whatever stands between them."""
    digits = draw(st.lists(st.integers(0, 9), min_size=13, max_size=19))
    text = ""
    for place, digit in enumerate(digits):
        spoken = draw(st.booleans())
        sign = draw(SIGNS) if place else ""
        text += sign if sign or not spoken else " "
        text += DIGIT_WORDS[digit] if spoken else str(digit)
        text += " " if spoken else ""
    return text


@st.composite
def cut_texts(draw: st.DrawFn, texts: st.SearchStrategy[str]) -> list[str]:
    """A text, cut anywhere."""
    text = draw(texts)
    places = sorted(draw(st.sets(st.integers(0, len(text)), max_size=12)))
    return [text[start:end] for start, end in pairwise([0, *places, len(text)])]


@every_row(
    ("text", "kept"),
    [
        ("my card is 4111 1111 1111 1111, thanks", "my card is 4111 11██ ████ ████, thanks"),
        ("4111-1111-1111-1111", "4111-11██-████-████"),
        ("four one one one one one one one", "four one one one one one ████ ████"),
        ("double four triple one five six", "double four triple one five ████"),
        ("forty one eleven, eleven eleven", "forty one eleven, eleven ████"),
        ("41, uh, 11. Okay? 11 yes 11", "41, uh, 11. Okay? 11 yes ██"),
        ("vier eins eins eins einundzwanzig eins", "vier eins eins eins einundzwanzig ████"),
        ("quatre un un un un un un", "quatre un un un un un ████"),
        ("cuatro uno uno uno uno uno uno", "cuatro uno uno uno uno uno ████"),
        ("quattro uno uno uno uno uno uno", "quattro uno uno uno uno uno ████"),
        ("quatro um um um um um meia", "quatro um um um um um ████"),
        ("vier een een een een een een", "vier een een een een een ████"),
        ("我的卡号是四一一一一一一一谢谢", "我的卡号是四一一一一一██谢谢"),
        ("٤١١١ ١١١١", "٤١١١ ١١██"),
        ("４１１１ １１１１", "４１１１ １１██"),
        ("room 12 and 1000 people in 2026", "room 12 and 1000 people in 2026"),
        ("in two thousand twenty-six I paid nineteen ninety", "in two thousand twenty-six I paid nineteen ninety"),
        ("zweitausendsechsundzwanzig kamen", "zweitausendsechsundzwanzig kamen"),
        ("vier neun zwei neun zwo\u0308lf fu\u0308nf", "vier neun zwei neun zwo\u0308lf ████"),
        ("fuenfundzwanzig zwoelf dreissig einhundertfuenf", "fuenfundzwanzig zwoelf dreissig ████"),
        ("dieciseis veintitres veintidos cero", "dieciseis veintitres veintidos ████"),
        ("doscientos uno quinientas treinta tres", "doscientos uno quinientas treinta tres"),
        ("doscientos uno quinientas treinta cero", "doscientos uno quinientas treinta ████"),
        ("duzentos e um trezentos e vinte três um", "duzentos e um trezentos e vinte três ████"),
        ("two fours three nines zero one five", "two fours three nines zero one ████"),
        ("四九，嗯，二九，然后一二，三四", "四九，嗯，二九，然后一二，██"),
        ("四十九二十九一十二三十四", "四十九二十九一十二███"),
        ("⑴⑵⑶⑷⑸⑹⑺⑻", "⑴⑵⑶⑷⑸⑹██"),
        ("⒈ ⒉ ⒊ ⒋ ⒌ ⒍ ⒎", "⒈ ⒉ ⒊ ⒋ ⒌ ⒍ █"),
        ("〡〢〣〤〥〦〧", "〡〢〣〤〥〦█"),
        ("壹貳叁肆伍陸柒捌", "壹貳叁肆伍陸██"),
        ("壹拾贰佰叁肆伍陆柒", "壹拾贰佰叁肆伍陆█"),
        ("❶❷❸❹❺❻❼", "❶❷❸❹❺❻█"),
        ("㈠㈡㈢㈣㈤㈥㈦", "㈠㈡㈢㈣㈤㈥█"),
        ("⑫ ⑬ ⑭ ⑮", "⑫ ⑬ ⑭ █"),
        ("1️⃣2️⃣3️⃣4️⃣5️⃣6️⃣7️⃣", "1️⃣2️⃣3️⃣4️⃣5️⃣6️⃣█️⃣"),
        ("Ⅳ Ⅸ Ⅱ Ⅸ Ⅰ Ⅱ Ⅲ", "Ⅳ Ⅸ Ⅱ Ⅸ Ⅰ Ⅱ █"),
        ("4\u0301929 1234", "4\u0301929 12██"),
        ("two hundred thousand four hundred five", "two hundred thousand four hundred five"),
        ("on 2026-11-23 and 23.11.2026 we met", "on 2026-11-23 and ██.██.████ we met"),
        ("on 2026-11-23T10:30:00Z", "on 2026-11-23T10:30:00Z"),
        ("1-800-FLOWERS", "1-800-FLOWERS"),
        ("", ""),
    ],
)
def test_a_run_is_cut_off_after_six_digits(text: str, kept: str) -> None:
    """Written and spoken digits count together, in several languages; only a word that is no number ends a run."""
    assert shown(text) == kept


@every_row(
    ("limit", "text", "kept"),
    [
        (PHONE, "call +49 30 1234567 now", "call +49 30 ███████ now"),
        (PHONE, "born 23.11.1999 in room 12", "born 23.11.1999 in room 12"),
        (OTP, "it is 483921", "it is 48████"),
        (OTP, "the code is four eight three", "the code is ████ ████ ████"),
        (OTP, "Ihr Bestätigungscode: 4839", "Ihr Bestätigungscode: ████"),
        (OTP, "您的验证码是四八三九", "您的验证码是████"),
        (OTP, "the code is 4 8 3 9 for 12 people", "the code is █ █ █ █ for ██ people"),
        (OTP, "验证码是什么？", "验证码是什么？"),
        (OTP, "密码千万别告诉一个人，万一第三方要", "密码千万别告诉一个人，万一第三方要"),
        (OTP, "验证码是六位数，四八三九谢谢", "验证码是六位数，████谢谢"),
        (OTP, "验证码四呢八呢三呢九", "验证码█呢█呢█呢█"),
        (OTP, "验证码是十八二十四", "验证码是█████"),
        (OTP, "验证码是②个", "验证码是█个"),
        (CARDS, "四一一一一一，一谢谢", "四一一一一一，█谢谢"),
    ],
)
def test_other_rules_keep_less(limit: Limit, text: str, kept: str) -> None:
    """Of the number of a phone four digits are kept, of a code two, and none where a word says that it is one."""
    assert shown(text, limit) == kept


@given(cut_texts(card_numbers()))
def test_no_cut_shows_a_seventh_digit(pieces: list[str]) -> None:
    """A card's number is cut off after six digits however a text is cut, in the middle of words too."""
    assert kept_digits("".join(in_pieces(pieces))) <= CARDS.keep


@given(cut_texts(st.text("0123456789 -./,xé\n四", max_size=60)))
def test_pieces_give_what_the_whole_gives(pieces: list[str]) -> None:
    """Digits and single letters are kept or not whatever the cuts."""
    whole, _ = redact_run("".join(pieces), START, CARDS)
    assert "".join(in_pieces(pieces)) == whole


@given(st.one_of(card_numbers(), st.text("0123456789 -.four", max_size=60)), st.data())
def test_the_beginning_of_a_text_gives_the_beginning(text: str, data: st.DataObject) -> None:
    """What was heard of a reply stays the beginning of it, where it ends between words."""
    end = data.draw(st.sampled_from([place for place in range(len(text) + 1) if text[:place].endswith(" ")] or [0]))
    assert shown(text).startswith(redact_run(text[:end], START, CARDS)[0])


@given(st.one_of(card_numbers(), st.text(max_size=80), st.text("0123456789 .-onetw█", max_size=60)))
def test_words_stay_words_and_nothing_changes_twice(text: str) -> None:
    """As many words as before; and what was redacted gives the same when it is redacted again."""
    kept = shown(text)
    assert len(kept.split()) == len(text.split())
    assert shown(kept) == kept


@given(st.text(max_size=200), st.sampled_from([CARDS, PHONE, OTP]))
def test_texts_of_any_kind_are_taken(text: str, limit: Limit) -> None:
    """No text fails, and nothing else than digits and words of numbers is replaced."""
    kept, _ = redact_run(text, START, limit)
    assert [word for word in kept.split() if HIDDEN not in word] == [
        word for word, after in zip(text.split(), kept.split(), strict=True) if HIDDEN not in after
    ]


def test_a_word_says_nothing_by_its_length() -> None:
    """All words are replaced by the same, and each numeral by one mark."""
    kept = shown("one one one one one one three six 12")
    assert kept == f"one one one one one one {HIDDEN_WORD} {HIDDEN_WORD} {HIDDEN * 2}"


def test_a_numeral_that_may_be_in_a_word_waits_for_the_rest_of_it() -> None:
    """In pieces it is hidden, as letters are that may become a number; the whole text shows it."""
    assert in_pieces(["验证码是什", "么"], OTP) == ["验证码是█", "么"]
    assert in_pieces(["验证码是什么", "四八"], OTP) == ["验证码是什么", "██"]


def test_an_accent_in_the_next_piece_belongs_to_its_letter() -> None:
    """A decomposed word is one word, whatever the cuts."""
    assert in_pieces(["1 2 3 4 5 6 fu", "\u0308n", "f 8"]) == ["1 2 3 4 5 6 ████", "█", "█ █"]
    assert in_pieces(["1 2 3 4 fu", "\u0308nf ", "6 7"]) == ["1 2 3 4 fu", "\u0308nf ", "6 █"]


def test_a_number_cut_into_letters_is_no_number_of_its_own() -> None:
    """Where six digits were kept, letters that may become a number are not; those of other words are."""
    assert in_pieces(["1 2 3 4 5 6 th", "ree", " th", "ank you"]) == ["1 2 3 4 5 6 ████", "█", " ████", "█ you"]
    assert in_pieces(["1 2 fo", "ur ", "thanks 1"]) == ["1 2 fo", "ur ", "thanks 1"]


def test_every_character_that_is_a_number_counts() -> None:
    """Whatever has a numeric value, or a part that has one once it is taken apart, is hidden as a digit is."""
    codes = [code for code in range(0x80, 0x30000) if not 0xD800 <= code < 0xE000]
    numeric = [
        char for char in map(chr, codes) if any(map(str.isnumeric, (char, *unicodedata.normalize("NFKC", char))))
    ]
    assert len(numeric) > 1_500
    assert [char for char in numeric if char in shown(f"the code is {char}", OTP)] == []
    assert [char for char in numeric if char in shown(f"56{char}78", OTP)] == []
