"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

LONGEST = 40
"""Longer texts are not names."""
SEPARATORS = str.maketrans("-/: .", "_____")
CAMEL_CASE = re.compile(r"(?<=[a-z0-9])(?=[A-Z])")


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that is nearest, else None; the cost does not depend on how many names are known.

    It differs by one letter or two neighbours that changed places; or else it is the only one that has one word more
    or less at an end, as `final` for `is_final`. Letter case and signs between words do not count.
    """
    if len(name) > LONGEST:
        return None
    form, forms = plain(name), forms_of(known)
    misspelt = next((forms[other] for other in with_deletions(form) if other in forms), None)
    if misspelt is not None:
        return misspelt
    shorter = {forms[other] for other in without_a_word(form) if other and plain(forms.get(other, "")) == other}
    found = shorter | longer_names(known).get(form, set())
    return found.pop() if len(found) == 1 else None


@lru_cache(maxsize=256)
def forms_of(known: tuple[str, ...]) -> Mapping[str, str]:
    """Each form in which a name is recognised: its own first, then those that lack a letter."""
    forms = {plain(name): name for name in known}
    for name in known:
        for form in with_deletions(plain(name)):
            forms.setdefault(form, name)
    return forms


@lru_cache(maxsize=256)
def longer_names(known: tuple[str, ...]) -> Mapping[str, set[str]]:
    """The names that have one word more than a form, at either end."""
    names: dict[str, set[str]] = {}
    for name in known:
        for form in without_a_word(plain(name)):
            names.setdefault(form, set()).add(name)
    return names


def plain(name: str) -> str:
    return CAMEL_CASE.sub("_", name).lower().translate(SEPARATORS)


def with_deletions(name: str) -> Iterator[str]:
    """A name, and all that it becomes without one of its letters."""
    yield name
    for index in range(len(name)):
        yield name[:index] + name[index + 1 :]


def without_a_word(name: str) -> Iterator[str]:
    """What a name of several words becomes without its first word, and without its last."""
    if "_" in name:
        yield name.partition("_")[2]
        yield name.rpartition("_")[0]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest known name, in brackets; empty if none is near."""
    found = nearest(name, tuple(known))
    return f" (did you mean `{found}`?)" if found else ""
