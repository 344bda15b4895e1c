"""The known name that a misspelt one is nearest to."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from functools import lru_cache

LONGEST = 40
"""Longer texts are not names."""
SEPARATORS = str.maketrans("-/: ", "____")


def nearest(name: str, known: tuple[str, ...]) -> str | None:
    """The known name that differs by one letter or two neighbours that changed places, else None.

    Letter case and signs between words do not count. The cost does not depend on how many names are known: anyone can
    send any number of misspelt names.
    """
    if len(name) > LONGEST:
        return None
    forms = forms_of(known)
    return next((forms[form] for form in with_deletions(plain(name)) if form in forms), None)


@lru_cache(maxsize=256)
def forms_of(known: tuple[str, ...]) -> Mapping[str, str]:
    """Each form in which a name is recognised: its own first, then those that lack a letter."""
    forms = {plain(name): name for name in known}
    for name in known:
        for form in with_deletions(plain(name)):
            forms.setdefault(form, name)
    return forms


def plain(name: str) -> str:
    return name.lower().translate(SEPARATORS).replace(".", "_")


def with_deletions(name: str) -> Iterator[str]:
    """A name, and all that it becomes without one of its letters."""
    yield name
    for index in range(len(name)):
        yield name[:index] + name[index + 1 :]


def did_you_mean(name: str, known: Iterable[str]) -> str:
    """A question that names the nearest known name, in brackets; empty if none is near."""
    found = nearest(name, tuple(known))
    return f" (did you mean `{found}`?)" if found else ""
