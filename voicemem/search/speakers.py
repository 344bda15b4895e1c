"""The speaker that a question is about, recognised by a pronoun or by a name that the other one calls them."""

import re
from collections import Counter
from collections.abc import Iterable, Iterator

from voicemem.search.words import PAIRED, STOP_WORDS, plain, words_of
from voicemem.transcript.messages import Role

CALLER = """
i me my mine myself he him his she her hers caller callers customer client
ich mich mir mein meine meinem meinen meiner meines er ihn ihm sie ihr ihre ihrem ihren anrufer anruferin kunde kundin
"""
AGENT = "you your yours agent assistant du dich dir dein deine deinem deinen deiner"
OF_CALLER, OF_AGENT = frozenset(CALLER.split()), frozenset(AGENT.split())
"""Pronouns and nouns for the caller and the agent, without accents and in lower case."""
SPACELESS_OF_CALLER = re.compile("[我他她俺]|来电|彼女|私[はがのをに]|저는|제가|내가|그녀")
SPACELESS_OF_AGENT = re.compile("[你您]|あなた")
GREETINGS = "hey|hi|hello|hallo|servus|thanks|thank you|danke|oh|wow|dear|liebe|lieber|bye"
NAME = r"([^\W\d_][^\W\d_'’-]{1,31})"
ADDRESSED = re.compile(rf"(?:^|[.!?…,;:]\s+|(?i:\b(?:{GREETINGS}),?\s+)){NAME}(?=\s*(?:[,.!?…]|$))", re.MULTILINE)
"""A name between marks, as in `Thanks, Ann!`."""
INTRODUCED = re.compile(rf"(?i:\b(?:my name is|this is|i am|i'm|ich bin|mein name ist|hier ist|hier spricht))\s+{NAME}")
SPACELESS = PAIRED.pattern[:-1]
NAME_SPACELESS = rf"((?:(?![了吗呢吧的是不去来有我你您他她它在这那什么怎很真好啊，。！？、；]){SPACELESS}){{2,4}}?)"
"""A name without characters of sentences, so that a short sentence is not taken for a name."""
SPACELESS_ADDRESSED = re.compile(
    rf"(?:^|[\s，。！？、；,.!?])(?:嗨|喂|谢谢|你好|您好)?[，\s]?{NAME_SPACELESS}(?=[，。！？、,.!?]|你好|您好|さん|ちゃん|씨|님|$)",
    re.MULTILINE,
)
SPACELESS_INTRODUCED = re.compile(
    rf"(?:我叫|我是|名字是|私は){NAME_SPACELESS}(?=[，。！？、,.!?]|です|$)", re.MULTILINE
)
SHORTEST_SHORT = 3
MAX_LOOKED_AT = 400
"""The first characters of a message, which are searched for names."""
OFTEN, MOSTLY = 2, 0.75
"""A name is a speaker's if it was used for them at least so many times, and for them in so large a share of all."""


def speaker_by_pronoun(question: str) -> Role | None:
    """Return the caller if a question has words for them and none for the agent; None otherwise."""
    words = frozenset(words_of(question))
    of_caller = not words.isdisjoint(OF_CALLER) or SPACELESS_OF_CALLER.search(question)
    of_agent = not words.isdisjoint(OF_AGENT) or SPACELESS_OF_AGENT.search(question)
    return "user" if of_caller and not of_agent else None


def speakers_by_name(question: str, messages: Iterable[tuple[Role, str]]) -> dict[str, Role]:
    """Return the names in a question that are a speaker's, as the index writes them, each with the speaker.

    A name in an address is the other speaker's; in an introduction, the speaker's own.
    """
    words = frozenset(words_of(question)) - STOP_WORDS
    beginnings = {word[:SHORTEST_SHORT] for word in words}
    counts: Counter[tuple[str, Role]] = Counter()
    for role, text in messages:
        looked_at = text[:MAX_LOOKED_AT]
        lowered = plain(looked_at)
        if not any(beginning in lowered for beginning in beginnings):
            continue
        other: Role = "assistant" if role == "user" else "user"
        patterns = (SPACELESS_ADDRESSED, SPACELESS_INTRODUCED) if PAIRED.search(looked_at) else (ADDRESSED, INTRODUCED)
        for pattern, owner in zip(patterns, (other, role), strict=True):
            counts.update({(name, owner) for name in names_in(question, words, looked_at, pattern)})
    speakers: dict[str, Role] = {}
    for (name, role), count in counts.items():
        if count >= OFTEN and count >= MOSTLY * (counts[name, "user"] + counts[name, "assistant"]):
            speakers[name] = role
    return speakers


def names_in(question: str, words: frozenset[str], text: str, pattern: re.Pattern[str]) -> Iterator[str]:
    """Yield the names that a pattern finds in a text, if the question has them too."""
    for match in pattern.finditer(text):
        if PAIRED.match(match[1]):
            if match[1] in question and STOP_WORDS.isdisjoint(words_of(match[1])):
                yield match[1]
        elif match[1][0].isupper():
            name = "".join(words_of(match[1]))
            is_short = len(name) >= SHORTEST_SHORT  # as `Mel` for `Melanie`
            yield from (word for word in words if word == name or (is_short and word.startswith(name)))
