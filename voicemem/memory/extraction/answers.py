"""An LLM's answer, read as memories: whole or not at all; what is wrong with a single one refuses that one."""

from __future__ import annotations

import re
from typing import Any

import msgspec
from msgspec import Struct

from voicemem.errors import LlmFailed
from voicemem.protocol.strict_json import MALFORMED, has_too_many_values

UNUSABLE = "unusable_answer"
"""The word for an answer that is no list of memories."""
FENCE = re.compile(r"\A\s*```(?:json)?\s*\n(.*?)\n?\s*```\s*\Z", re.DOTALL)
MAX_ITEMS = 60
"""Of an answer; one with more is none."""
MAX_ANSWER = 256 * 1024
"""Characters of an answer."""


class DraftedMemory(Struct, frozen=True, rename={"lines": "from"}):
    """One memory, as an LLM wrote it."""

    text: str
    kind: str
    lines: list[int]
    topics: list[str] = []
    entities: list[str] = []
    event_at: str | None = None
    confidence: float | None = None
    supersedes: list[str] = []


class Answer(Struct, frozen=True):
    """The whole of it; each memory is read alone."""

    memories: list[Any]


def read_answer(text: str) -> list[DraftedMemory | None]:
    """The memories of an answer; None for one that is not made as it was asked for. Raises `LlmFailed`.

    Servers without schemas put the JSON into a fence, which is taken off. Anything else around it is prose.
    """
    if len(text) > MAX_ANSWER:
        raise LlmFailed(UNUSABLE)
    fenced = FENCE.match(text)
    body = (fenced[1] if fenced else text).encode(errors="replace")
    if has_too_many_values(body):
        raise LlmFailed(UNUSABLE)
    try:
        answer = msgspec.json.decode(body, type=Answer)
    except (*MALFORMED, RecursionError):
        raise LlmFailed(UNUSABLE) from None
    if len(answer.memories) > MAX_ITEMS:
        raise LlmFailed(UNUSABLE)
    return [read_memory(one) for one in answer.memories]


def read_memory(value: Any) -> DraftedMemory | None:
    try:
        return msgspec.convert(value, DraftedMemory)
    except msgspec.ValidationError:
        return None
