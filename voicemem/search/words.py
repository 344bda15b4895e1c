"""The words of texts for the index, and of queries; engines stem them as in English.

Scripts without spaces have no word boundaries, so each pair of neighbouring characters is a word. So is the last
character of a run, so that a single character is found as the beginning of a word.

What engines cannot do is done to the query, since an index holds many languages: words of a German query lose their
endings and become prefixes, which finds "Rechnungen" by "Rechnung", "wohnen" by "wohnt", and many compounds; an
English word whose forms share no stem, or that has two spellings, is searched for in all forms.
"""

import re
import unicodedata
from collections.abc import Iterator
from typing import NamedTuple

from voicemem.protocol.types import SPACELESS

WORDS_VERSION = 1
"""Raise it with every change of `words_of`: indexes are then rebuilt."""
MAX_QUERY_WORDS = 64
MAX_WORD = 64
"""The most characters of a word; the rest is left out."""
ASCII_WORDS = re.compile("[a-z0-9]+")
PAIRED = re.compile(f"{SPACELESS.pattern[:-1]}\uac00-\ud7a3]+")
"""A run of characters that are taken in pairs: of scripts without spaces, and of Korean, for its attached particles."""
WORDS = re.compile("(?:[^\\W_]|[\u0e00-\u0eff\u1000-\u109f\u1780-\u17ff])+")
"""The vowel signs of Thai, Lao, Burmese and Khmer are no letters to `\\w`."""
ACCENTS = re.compile("[\u0300-\u036f]")
ENGLISH = """
a about am an and any are as at be because been being but by can could d did do does doing don for from had has have
having he her here hers him his how i if in into is it its just ll m me mine my no not of on or our out over re s she
should so some such t than that the their them then there these they this those to too up us ve very was we were what
when where which who whom whose why will with would you your yours
"""
GERMAN = """
aber als am an auch auf aus bei bin bis da das dass dein deine dem den denn der des die dies diese dieser dieses doch du
ein eine einem einen einer eines er es euch euer fur hab habe haben hat hatte hatten ich ihm ihn ihr ihre im in ins ist
ja kann kein keine konnen konnte man mein meine mich mir mit muss nach nicht noch nun nur ob oder sein seine sich sie
sind so soll uber um und uns unser vom von vor wann war waren warum was weil welche welchen welcher welches wem wen wenn
wer werden wie wieder wir wird wo wurde wurden zu zum zur
"""
CHINESE = (
    "什么 怎么 哪里 哪儿 哪个 哪些 多少 为什 是不 不是 是否 有没 没有 我们 你们 他们 她们 这个 那个 这些 那些 一个 可以"
)

ALSO_ENGLISH = frozenset(["den", "die", "hat", "man", "war"])
"""German stop words that are meaningful in English."""
STOP_WORDS = frozenset(f"{ENGLISH} {GERMAN} {CHINESE}".split())
"""Stop words, as `words_of` writes them: in lower case and without accents."""
NOT_ONLY_GERMAN = """
als am an bei da das den des die dies du er es fur hat in ins ja kann man mit muss noch nun nur ob sein sind so soll um
uns vor war was wie will wo
"""
"""Frequent German words that do not identify the language, since others have them too."""
GERMAN_MARKS = frozenset(GERMAN.split()) - frozenset(NOT_ONLY_GERMAN.split())
"""Any of these makes a query German."""
GERMAN_ENDINGS = ("ern", "est", "ten", "tet", "em", "en", "er", "es", "et", "st", "te", "e", "n", "s", "t")
SHORTEST = 4
"""The fewest letters of a word without its ending."""
ENGLISH_FORMS = """
arise arose arisen / awake awoke awoken / beat beaten / become became / begin began begun / bend bent / bite bit bitten
bleed bled / blow blew blown / break broke broken / bring brought / build built / burn burnt / buy bought
catch caught / choose chose chosen / come came / deal dealt / dig dug / draw drew drawn / dream dreamt
drink drank drunk / drive drove driven / eat ate eaten / fall fell fallen / feed fed / feel felt / fight fought
find found / flee fled / fly flew flown / forget forgot forgotten / forgive forgave forgiven / freeze froze frozen
get got gotten / give gave given / go goes went gone / grow grew grown / hang hung / hear heard / hide hid hidden
hold held / keep kept / kneel knelt / know knew known / lay laid / lead led / learn learnt / leave left / lend lent
light lit / lose lost / make made / mean meant / meet met / mistake mistook mistaken / overcome overcame / pay paid
ride rode ridden / ring rang rung / rise rose risen / run ran / say said / see saw seen / seek sought / sell sold
send sent / shake shook shaken / shine shone / shoot shot / show shown / sing sang sung / sink sank sunk / sit sat
sleep slept / slide slid / speak spoke spoken / spell spelt / spend spent / spill spilt / stand stood
steal stole stolen / stick stuck / sting stung / strike struck / swear swore sworn / sweep swept / swim swam swum
swing swung / take took taken / teach taught / tear tore torn / tell told / think thought / throw threw thrown
undergo underwent undergone / understand understood / wake woke woken / wear wore worn / weep wept / win won
withdraw withdrew withdrawn / write wrote written
child children / grandchild grandchildren / person people / man men / woman women / foot feet / tooth teeth
mouse mice / goose geese / wife wives / life lives / knife knives / half halves / shelf shelves / wolf wolves
loaf loaves / thief thieves / scarf scarves
center centre / color colour / favorite favourite / flavor flavour / gray grey / harbor harbour / honor honour
humor humour / jewelry jewellery / license licence / mom mum / neighbor neighbour / pajamas pyjamas / theater theatre
tire tyre / traveler traveller
"""
FORMS: dict[str, tuple[str, ...]] = {
    form: tuple(group)
    for line in ENGLISH_FORMS.splitlines()
    for group in map(str.split, line.split("/"))
    for form in group
}
"""All forms of a word, by each of them."""


POLITE = """
yes yeah yep no nope ok okay hello hi hey thanks thank please bye goodbye sorry sure right well great good fine nice
morning evening afternoon exactly wonderful perfect alright hm hmm uh um
nein danke bitte hallo gut gute guten morgen abend tag tschuss genau prima super klar
你好 您好 谢谢 好的 再见 没有 是的 没事
"""
SMALL_TALK = frozenset(POLITE.split())
"""Words of small talk, which are not worth a search."""


class QueryWord(NamedTuple):
    """A word of a query; with `is_prefix`, it finds all words that begin with it."""

    text: str
    is_prefix: bool = False


def words_of(text: str) -> list[str]:
    """Return the words of a text for the index, in order, without accents and in lower case."""
    return split_words(text, with_last=True)


def query_words(text: str, in_all_forms: bool = True) -> list[QueryWord]:
    """Return the words of a query, each once, without stop words unless it has no others.

    `in_all_forms`: one match is enough, so other forms are included, such as `bought` for `buy`.
    """
    words = list(dict.fromkeys(split_words(text, with_last=False)))
    if not GERMAN_MARKS.isdisjoint(words):
        telling = [word for word in words if word not in STOP_WORDS] or words
        terms = list(map(german_word, telling[:MAX_QUERY_WORDS]))
    else:
        telling = [word for word in words if word not in STOP_WORDS or word in ALSO_ENGLISH] or words
        others = [form for word in telling for form in other_forms(word)] if in_all_forms else []
        terms = list(map(query_word, [*telling, *others][:MAX_QUERY_WORDS]))
    return list(dict.fromkeys(terms))


def says_something(text: str) -> bool:
    """Return whether a text has words that are worth a search, besides stop words and small talk."""
    return any(word not in STOP_WORDS and word not in SMALL_TALK for word in split_words(text, with_last=False))


def query_word(word: str) -> QueryWord:
    return QueryWord(word, len(word) == 1 and PAIRED.match(word) is not None)


def german_word(word: str) -> QueryWord:
    """Return a word of a German query: a prefix without its ending, unless the word is too short."""
    if len(word) < SHORTEST or not word.isalpha() or PAIRED.match(word):
        return query_word(word)
    endings = (one for one in GERMAN_ENDINGS if word.endswith(one) and len(word) - len(one) >= SHORTEST)
    return QueryWord(word.removesuffix(next(endings, "")), is_prefix=True)


def split_words(text: str, with_last: bool) -> list[str]:
    """Return the words of a text; `with_last` adds the last character of each run of pairs."""
    if text.isascii():
        return [word[:MAX_WORD] for word in ASCII_WORDS.findall(text.lower())]
    tokens = WORDS.findall(plain(text))
    if PAIRED.search(text) is None:
        return [word[:MAX_WORD] for word in tokens]
    return [word for token in tokens for word in split_token(token, with_last)]


def split_token(token: str, with_last: bool) -> Iterator[str]:
    """Yield the words of a piece without spaces, which may be of several scripts."""
    end = 0
    for run in PAIRED.finditer(token):
        if run.start() > end:
            yield token[end : run.start()][:MAX_WORD]
        pairs = run[0]
        yield from (pairs[first : first + 2] for first in range(len(pairs) - 1))
        if with_last or len(pairs) == 1:
            yield pairs[-1]
        end = run.end()
    if end < len(token):
        yield token[end:][:MAX_WORD]


def plain(text: str) -> str:
    """Return the text in lower case, without accents, and with equivalent characters unified."""
    unpacked = unicodedata.normalize("NFKD", text.casefold())
    return unicodedata.normalize("NFC", ACCENTS.sub("", unpacked))


def other_forms(word: str) -> tuple[str, ...]:
    """Return the other forms of a word, in lower case; none if its forms share a stem."""
    base = next((base for base in bases(word) if base in FORMS), None)
    return () if base is None else tuple(form for form in FORMS[base] if form != word)


def bases(word: str) -> Iterator[str]:
    """Yield the word, and the words that it may be a regular form of, such as `buy` for `buying`."""
    yield word
    if word.endswith("s"):
        yield word[:-1]
    if word.endswith("ing"):
        stem = word[:-3]
        yield stem
        yield f"{stem}e"
        if stem[-1:] == stem[-2:-1]:
            yield stem[:-1]
