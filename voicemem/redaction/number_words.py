"""Spoken numbers: the number words of several languages, and how many digits each means.

Where languages share a word, the meaning with more digits counts, so that less is kept, not more.
"""

import re
import unicodedata
from collections.abc import Iterator
from functools import cache
from typing import NamedTuple

HUNDRED, THOUSAND = -2, -3
"""Stand-ins for digits: words that multiply the number before them."""
LONGEST = 64
"""The most letters of a number word."""
UMLAUTS = str.maketrans({"ä": "ae", "ö": "oe", "ü": "ue"})


def spellings(word: str) -> set[str]:
    """Return the spellings of a word: with accents, without them, and with ue for ü."""
    apart = unicodedata.normalize("NFD", word)
    bare = "".join(char for char in apart if not unicodedata.combining(char))
    return {word, apart, bare, word.translate(UMLAUTS)}


def in_all_spellings(words: str) -> frozenset[str]:
    """Return all spellings of words separated by spaces."""
    return frozenset(spelling for word in words.split() for spelling in spellings(word))


class Number(NamedTuple):
    """A number word."""

    digits: int
    room: int = 0
    """Trailing zeros that the next words may fill: "twenty" has one."""
    is_nought: bool = False


UNITS = """
    one two three four five six seven eight nine
    ones twos threes fours fives sixes sevens eights nines
    ein eins eine einer zwei zwo drei vier fünf sechs sieben acht neun
    een één twee drie vier vijf zes zeven acht negen
    un une deux trois quatre cinq sept huit neuf
    uno una dos tres cuatro cinco seis siete ocho nueve
    due tre quattro cinque sei sette otto nove
    um uma dois duas três quatro meia sete oito
"""
NOUGHTS = "zero zeros zeroes oh o nought naught null nul zéro cero"
TEENS = """
    ten eleven twelve thirteen fourteen fifteen sixteen seventeen eighteen nineteen
    zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn
    tien elf twaalf dertien veertien vijftien zestien zeventien achttien negentien
    dix onze douze treize quatorze quinze seize
    diez once doce trece catorce quince dieciséis diecisiete dieciocho diecinueve
    veintiuno veintiún veintiuna veintidós veintitrés veinticuatro veinticinco veintiséis veintisiete veintiocho
    veintinueve
    dieci undici dodici tredici quattordici quindici sedici diciassette diciotto diciannove
    dez doze treze catorze dezasseis dezesseis dezassete dezessete dezoito dezanove dezenove
"""
TENS = """
    twenty thirty forty fourty fifty sixty seventy eighty ninety
    zwanzig dreißig vierzig fünfzig sechzig siebzig achtzig neunzig
    twintig dertig veertig vijftig zestig zeventig tachtig negentig
    vingt vingts trente quarante cinquante soixante septante huitante octante nonante
    veinte treinta cuarenta cincuenta sesenta setenta ochenta noventa
    venti trenta quaranta cinquanta sessanta settanta ottanta novanta
    vinte trinta quarenta cinquenta sessenta oitenta
"""
SEVERAL_HUNDREDS = """
    doscientos trescientos cuatrocientos quinientos seiscientos setecientos ochocientos novecientos
    doscientas trescientas cuatrocientas quinientas seiscientas setecientas ochocientas novecientas
    duzentos trezentos quatrocentos quinhentos seiscentos setecentos oitocentos novecentos
    duzentas trezentas quatrocentas quinhentas seiscentas setecentas oitocentas novecentas
"""
HUNDREDS = "hundred hundert honderd cent cents cien ciento cento cem"
THOUSANDS = "thousand tausend duizend mille mil"
REPEATS = {"double": 1, "triple": 2, "treble": 2, "quadruple": 3}
"""Words that repeat the next digit, and how many more times."""
FILLERS = in_all_spellings("""
    and uh um erm hmm hm mm mhm yes yeah yep ok okay right correct then next dash hyphen space dot point slash plus
    comma period ah er
    und äh ähm ja genau richtig dann strich bindestrich punkt leerzeichen komma
    en euh eh dan streepje spatie punt
    et oui puis ensuite tiret espace
    y sí vale luego guión espacio punto
    e ehm sì poi trattino spazio
    sim depois hífen traço espaço ponto
""")
"""Filler words between the digits of one number."""
CHINESE_FILLERS = frozenset("嗯啊呃哦噢喔呢吧嘛吗嗎呀啦哈诶欸哎好的对對是然后後接着再和跟加杠点點空格横橫")
"""Fillers in Chinese: single characters, because Chinese has no spaces."""
GERMAN = ("ein", "zwei", "drei", "vier", "fünf", "sechs", "sieben", "acht", "neun")
DUTCH = ("een", "twee", "drie", "vier", "vijf", "zes", "zeven", "acht", "negen")
ITALIAN = ("uno", "due", "tre", "quattro", "cinque", "sei", "sette", "otto", "nove")
GERMAN_TENS = ("zwanzig", "dreißig", "vierzig", "fünfzig", "sechzig", "siebzig", "achtzig", "neunzig")
DUTCH_TENS = ("twintig", "dertig", "veertig", "vijftig", "zestig", "zeventig", "tachtig", "negentig")
ITALIAN_TENS = ("venti", "trenta", "quaranta", "cinquanta", "sessanta", "settanta", "ottanta", "novanta")


def compounds() -> Iterator[tuple[str, Number]]:
    """Yield numbers below a thousand that are written as one word."""
    below = [*german_below_hundred()]
    yield from ((word, Number(digits)) for word, digits in below)
    for unit in ("", *GERMAN):
        yield f"{unit}hundert", Number(3, 2)
        for word, _ in below:
            yield f"{unit}hundert{word}", Number(3)
            yield f"{unit}hundertund{word}", Number(3)
    for unit in DUTCH:
        link = "ën" if unit.endswith("e") else "en"
        yield from ((f"{unit}{link}{tens}", Number(2)) for tens in DUTCH_TENS)
        yield f"{unit}honderd", Number(3, 2)
    for tens in ITALIAN_TENS:
        for unit in ITALIAN:
            stem = tens[:-1] if unit[0] in "uo" else tens
            yield stem + unit, Number(2)
        yield f"{tens}tré", Number(2)
    yield from ((f"{unit}cento", Number(3, 2)) for unit in ITALIAN)


def german_below_hundred() -> Iterator[tuple[str, int]]:
    """Yield German number words below a hundred, with their digits."""
    for unit in GERMAN:
        yield from ((f"{unit}und{tens}", 2) for tens in GERMAN_TENS)
    yield from ((word, 1) for word in (*GERMAN, "eins"))
    yield from ((word, 2) for word in GERMAN_TENS)
    teens = "zehn elf zwölf dreizehn vierzehn fünfzehn sechzehn siebzehn achtzehn neunzehn"
    yield from ((word, 2) for word in teens.split())


@cache
def numbers() -> dict[str, Number]:
    """Return all number words, in lower case and in every spelling."""
    by_word = {word.casefold(): number for word, number in compounds()}
    by_word |= dict.fromkeys(UNITS.casefold().split(), Number(1))
    by_word |= dict.fromkeys(NOUGHTS.casefold().split(), Number(1, 0, True))
    by_word |= dict.fromkeys(TEENS.casefold().split(), Number(2))
    by_word |= dict.fromkeys(TENS.casefold().split(), Number(2, 1))
    by_word |= dict.fromkeys(SEVERAL_HUNDREDS.split(), Number(3, 2))
    by_word |= dict.fromkeys(HUNDREDS.split(), Number(HUNDRED, 2))
    by_word |= dict.fromkeys(THOUSANDS.split(), Number(THOUSAND, 3))
    by_word |= {word: Number(digits, 0, True) for word, digits in REPEATS.items()}
    return {spelling: number for word, number in by_word.items() for spelling in spellings(word)}


def find_number(word: str) -> Number | None:
    """Return the number that a lower-case word means, if any."""
    number = numbers().get(word)
    if number is not None or len(word) > LONGEST or "tausend" not in word:
        return number
    before, _, after = word.partition("tausend")
    first, last = numbers().get(before or "ein"), numbers().get(after.removeprefix("und") or "null")
    if first is None or last is None:
        return None
    return Number(max(1, first.digits) + 3, 0 if after else 3)


# Numeric characters


NUMERIC = "\ud800"
"""Stands for each numeric character while a text is parsed; no text contains it."""
MULTIPLIERS = frozenset([10, 100, 1_000, 10_000, 10**8, 10**12])
"""The values of Chinese characters that multiply the number before them."""


class NumericCharacters(dict[int, int | str]):
    """A table for `str.translate` that replaces each numeric character that is not a digit by `NUMERIC`.

    Examples are ②, ⑵, ⒉, Ⅱ, 〢, 贰, ½: characters with a numeric value, or with one in their decomposition.
    """

    def __missing__(self, code: int) -> int | str:
        char = chr(code)
        is_numeric = not char.isdecimal() and any(map(str.isnumeric, (char, *unicodedata.normalize("NFKC", char))))
        self[code] = NUMERIC if is_numeric else code
        return self[code]


NUMERIC_CHARACTERS = NumericCharacters()


@cache
def number_of_character(char: str) -> Number | None:
    """Return the digits that a numeric character means; None for one that multiplies."""
    plain = unicodedata.normalize("NFKC", char)
    if digits := sum(map(str.isdecimal, plain)):
        return Number(digits)
    values = (unicodedata.numeric(one, None) for one in (*plain, char))
    value = next((value for value in values if value is not None), 0)
    if value in MULTIPLIERS and any(unicodedata.category(one) == "Lo" for one in plain):
        return None
    return Number(len(str(int(abs(value)))), int(value in range(20, 100, 10)))


MOST_IN_WORD = 4
"""The most numerals in a row that can be a part of a word."""


def end_in_word(text: str, start: int) -> int:
    """Return the end of numerals that are only a part of a word, as in 什么, 一个, 千万别; else `start`.

    Such numerals mean one digit at most, and the word continues after them.
    """
    end, digits = start, 0
    while end < min(len(text), start + MOST_IN_WORD) and NUMERIC_CHARACTERS[ord(text[end])] == NUMERIC:
        digits += number_of_character(text[end]) is not None
        end += 1
    word = text[start : end + 1]
    continues = len(word) > end - start and not (word[-1].isnumeric() or is_filler(word[-1]))
    is_part = continues and digits <= 1 and all(unicodedata.category(char) == "Lo" for char in word)
    return end if is_part else start


def is_filler(word: str) -> bool:
    return word in FILLERS or (bool(word) and CHINESE_FILLERS.issuperset(word))


@cache
def beginnings() -> frozenset[str]:
    """Return all beginnings of number words."""
    return frozenset(word[:length] for word in numbers() for length in range(1, len(word) + 1))


def may_become_number(word: str) -> bool:
    """Return whether more letters could make a number word of a lower-case word."""
    if word in beginnings():
        return True
    before, thousand, after = word.partition("tausend")
    return bool(thousand) and before in numbers() and (not after or after.removeprefix("und") in beginnings())


# Words after which a one-time code or a PIN may follow


CODES = in_all_spellings("""
    code codes pin pins otp otps passcode passcodes password passwords passwort kennwort tan tans geheimzahl
    verification cvv cvc código códigos clave claves contraseña contraseñas codice codici mot wachtwoord senha senhas
""")
ENDINGS = ("code", "codes", "passwort", "kennwort")
"""Endings of such words in German."""
CHINESE = re.compile("验证码|驗證碼|密码|密碼|口令")
CODE_WORDS = 8
"""How many words may come between such a word and the code."""


def announces_code(word: str) -> bool:
    """Return whether a code may follow a lower-case word."""
    return word in CODES or word.endswith(ENDINGS) or CHINESE.search(word) is not None
