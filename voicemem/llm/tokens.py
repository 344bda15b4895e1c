"""Facts about models: the sizes of their contexts in tokens, and how their tokens are counted."""

from collections.abc import Callable, Mapping
from functools import lru_cache
from typing import NamedTuple

CONTEXT_WINDOWS: Mapping[str, int] = {
    "gpt-3.5-turbo": 16_385,
    "gpt-4": 8_192,
    "gpt-4-32k": 32_768,
    "gpt-4-turbo": 128_000,
    "gpt-4o": 128_000,
    "gpt-4.1": 1_047_576,
    "gpt-5": 400_000,
    "o1": 200_000,
    "o3": 200_000,
    "o4-mini": 200_000,
    "gpt-realtime": 32_000,
    "claude-3": 200_000,
    "claude-opus-4": 200_000,
    "claude-sonnet-4": 200_000,
    "claude-haiku-4": 200_000,
    "gemini-1.5-flash": 1_048_576,
    "gemini-1.5-pro": 2_097_152,
    "gemini-2": 1_048_576,
    "gemini-3": 1_048_576,
    "deepseek": 128_000,
    "qwen": 32_768,
    "llama-3": 8_192,
    "llama-3.1": 131_072,
    "llama-3.2": 131_072,
    "llama-3.3": 131_072,
    "mistral-large": 131_072,
    "mistral-small": 32_768,
}
"""Sizes of contexts in tokens by prefix of a model's name; the longest matching prefix counts. As documented by their
makers in 2025; the setting `model-window` extends or corrects the table."""
ALTERNATING = ("mistral", "ministral", "mixtral", "magistral", "devstral", "gemma")
"""Prefixes of the names of models that refuse two messages of one role in a row."""
UNKNOWN_WINDOW = 16_000
"""For unknown models: small, so that a context of this size works almost everywhere."""
CL100K = ("gpt-3.5", "gpt-4", "text-embedding")
NOT_CL100K = ("gpt-4o", "gpt-4.1", "gpt-4.5")


def bare_model_name(model: str) -> str:
    """Return a model's name in lower case, without its provider: `gpt-4o` for "openai/gpt-4o"."""
    return model.rpartition("/")[2].lower()


def context_window_of(model: str | None, overrides: Mapping[str, int]) -> int | None:
    """Return the size of a model's context in tokens; None if unknown. `overrides` take precedence."""
    if model is None:
        return None
    for table in (overrides, CONTEXT_WINDOWS):
        prefixes = [prefix for prefix in table if bare_model_name(model).startswith(bare_model_name(prefix))]
        if prefixes:
            return table[max(prefixes, key=len)]
    return None


def encoding_of(model: str | None) -> str:
    """Return the encoding of a model's tokens: `cl100k` for OpenAI's older models, `o200k` (near enough) for others."""
    name = bare_model_name(model or "")
    return "cl100k" if name.startswith(CL100K) and not name.startswith(NOT_CL100K) else "o200k"


CHARACTERS_PER_TOKEN = 4


class TokenCounter(NamedTuple):
    """Counts the tokens of a text; `name` is `o200k`, `cl100k` or `estimate`."""

    name: str
    count: Callable[[str], int]


def estimate_tokens(text: str) -> int:
    return -(-len(text) // CHARACTERS_PER_TOKEN)


ESTIMATE = TokenCounter("estimate", estimate_tokens)


@lru_cache
def counter(encoding: str) -> TokenCounter:
    """Return the counter of an encoding, `o200k` or `cl100k`; an estimate if the extra is not installed.

    Its first use loads a table, which takes 50 ms.
    """
    try:
        from rs_bpe.bpe import openai
    except ImportError:
        return ESTIMATE
    tables = {"o200k": openai.o200k_base, "cl100k": openai.cl100k_base}
    return TokenCounter(encoding, tables[encoding]().count)
