"""Lines and prompts of an extraction, written in a few words."""

from __future__ import annotations

from collections.abc import Sequence

from voicemem.config.context import ExtractConfig, Strategy
from voicemem.memory.extraction.checks import DraftedMemory
from voicemem.memory.extraction.prompts import CUT_OFF, KnownMemory, Line, Prompt, Section, build_prompt

CALL_MS = 1_777_809_600_000
"""Sunday, 3 May 2026."""


def line(number: int, text: str, *, certain: bool = True, cut: bool = False) -> Line:
    """A line; `agent: …` is the agent's, anything else the caller's."""
    role, text = ("assistant", text[7:]) if text.startswith("agent: ") else ("user", text)
    speaker = "caller" if role == "user" else "agent"
    return Line(number, role, speaker, text, 10 * number, number, CALL_MS + number, CUT_OFF if cut else "", certain)


def section(*texts: str) -> Section:
    """A section of these lines, numbered from 1 on."""
    lines = tuple(line(number, text) for number, text in enumerate(texts, 1))
    return Section(lines, (), 10 * len(lines), is_last=True)


def prompt(*texts: str, strategy: Strategy = "discrete", known: Sequence[str] = ()) -> Prompt:
    """A prompt with these lines; known memories have the ids `mem_1`, `mem_2` …"""
    memories = [KnownMemory(f"mem_{number}", "fact", text, CALL_MS) for number, text in enumerate(known, 1)]
    config = ExtractConfig(strategy=strategy, prompt="{messages}" if strategy == "custom" else None)
    return build_prompt(config, section(*texts), memories, CALL_MS)


def draft(text: str, *lines: int, kind: str = "fact", **more: object) -> DraftedMemory:
    """A memory as an LLM gives it."""
    return DraftedMemory(text, kind, list(lines), **more)  # type: ignore[arg-type]
