"""What the patterns of a JSON Schema may cost, to compile and to match, known before the validator sees them.

The validator holds the interpreter's lock while it compiles. Its time grows with the square of the classes in one
pattern (`\\S` 500 times: 0.4 s), and with the memory that the compiled pattern takes.
"""

from __future__ import annotations

import re
from collections.abc import Collection

MAX_PATTERNS = 64
"""Places with a pattern: the validator compiles it again at each of them."""
MAX_PATTERN_LENGTH, MAX_ALL_PATTERNS_LENGTH = 1_000, 8_000
"""Characters of one pattern, and of all together."""
MAX_CLASSES = 64
"""Classes (`\\d`, `\\p{L}`, `[a-z]`) in all patterns together, at most 50 ms."""
MAX_PATTERN_BYTES, MAX_ALL_PATTERNS_BYTES = 512 * 1024, 4 * 1024 * 1024
"""Memory that a compiled pattern, and all together, may take."""
MAX_REPETITIONS = 10**9
"""A larger number in a pattern counts as this one."""
CASELESS_CLASS = 4
"""Classes that one counts as where case is ignored: the other case of all its characters is looked up."""
CLASS = re.compile(r"\\[wWdDsSpP]|\[")
CASELESS = re.compile(r"\(\?[a-zA-Z-]*i")
# Possessive: a brace and a thousand blanks would otherwise be tried in a thousand million ways.
REPETITION = re.compile(r"(.?)\{\s*+(\d*+)\s*+,?+\s*+(\d*+)\s*+\}", re.DOTALL)


def fault_of_patterns(patterns: Collection[str]) -> str | None:
    """Why these patterns of one schema are too many, too long or too complex; None if they are not."""
    if len(patterns) > MAX_PATTERNS:
        return f"it may have at most {MAX_PATTERNS} patterns"
    if any(len(pattern) > MAX_PATTERN_LENGTH for pattern in patterns):
        return f"a pattern may have at most {MAX_PATTERN_LENGTH} characters"
    if sum(map(len, patterns)) > MAX_ALL_PATTERNS_LENGTH:
        return f"its patterns may have at most {MAX_ALL_PATTERNS_LENGTH} characters together"
    if sum(map(count_classes, patterns)) > MAX_CLASSES:
        return f"its patterns may have at most {MAX_CLASSES} classes together, and fewer where they ignore case"
    return None


def count_classes(pattern: str) -> int:
    """The classes of a pattern, weighed by what it takes to compile them."""
    return len(CLASS.findall(pattern)) * (CASELESS_CLASS if CASELESS.search(pattern) else 1)


def bytes_of_each(count: int) -> int:
    """The memory that each of so many patterns may take once it is compiled: they share the bound for all."""
    return min(MAX_PATTERN_BYTES, MAX_ALL_PATTERNS_BYTES // max(1, count))


def pattern_steps(pattern: str) -> float:
    """What a pattern costs for each unit of a text: its states, that is its length with repetitions.

    The engine is linear in the text, but when its cache thrashes every byte visits every state, 12 ns each: 60 KB
    took `[ab]*a[ab]{900}c` 0.7 s. A repetition of a group multiplies what may be in it.
    """
    added, multiplied = len(pattern), 1.0
    for before, low, high in REPETITION.findall(pattern):
        times = max(count_of(high), count_of(low) + 1)
        if before in ")}*+?" or before.isspace():
            multiplied *= times
        else:
            added += times
    return added * multiplied


def count_of(digits: str) -> int:
    return min(int(digits[:10] or 0), MAX_REPETITIONS)
