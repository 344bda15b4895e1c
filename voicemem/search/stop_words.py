"""Words that say nothing about what is asked for, in English, German and Chinese; queries leave them out."""

from __future__ import annotations

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
"""German words that say nothing, which say something in English."""
STOP_WORDS = frozenset(f"{ENGLISH} {GERMAN} {CHINESE}".split())
"""As `words_of` writes them: in lower case and without accents."""
