"""How many tokens a text has: exactly, for OpenAI's encodings, or by its length.

The exact counters need the extra `tokens` (the package `rs-bpe`, which works offline).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache
from typing import NamedTuple

CHARACTERS_A_TOKEN = 4


class Counter(NamedTuple):
    """Counts the tokens of a text; `name` is `o200k`, `cl100k` or `estimate`."""

    name: str
    count: Callable[[str], int]


def estimated(text: str) -> int:
    """Four characters a token, rounded up."""
    return -(-len(text) // CHARACTERS_A_TOKEN)


ESTIMATE = Counter("estimate", estimated)


@lru_cache
def counter(encoding: str) -> Counter:
    """The counter of an encoding, `o200k` or `cl100k`; the estimate where the extra is not installed.

    The first call of each loads its table, which takes 50 ms.
    """
    try:
        from rs_bpe.bpe import openai
    except ImportError:
        return ESTIMATE
    tables = {"o200k": openai.o200k_base, "cl100k": openai.cl100k_base}
    return Counter(encoding, tables[encoding]().count)
