"""English words whose forms have no stem in common, and those that are spelt in two ways; engines cannot tell them.

So only a query is looked at: a word in it is asked for in its other forms too. What an index holds stays as it is.
"""

from __future__ import annotations

from collections.abc import Iterator

GROUPS = """
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
    form: tuple(group) for line in GROUPS.splitlines() for group in map(str.split, line.split("/")) for form in group
}
"""All forms of a word, by each of them."""


def other_forms(word: str) -> tuple[str, ...]:
    """The other forms of a word, in lower case; none of one whose forms have a stem in common."""
    for base in bases(word):
        if base in FORMS:
            return tuple(form for form in FORMS[base] if form != word)
    return ()


def bases(word: str) -> Iterator[str]:
    """What a word may be a regular form of, as `buying` is of `buy`, and it itself."""
    yield word
    if word.endswith("s"):
        yield word[:-1]
    if word.endswith("ing"):
        stem = word[:-3]
        yield stem
        yield f"{stem}e"
        if stem[-1:] == stem[-2:-1]:
            yield stem[:-1]
