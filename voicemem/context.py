"""What the next LLM call should get: the memory under a session's settings and a caller's wishes."""

from __future__ import annotations

from typing import Any, Literal

from msgspec import Struct

from voicemem import config
from voicemem.admission import Stream
from voicemem.formats import Format, request_body
from voicemem.memories import Memories


class Wishes(Struct, frozen=True, kw_only=True):
    """What a caller of `context` asks for; what is None is as the session has it."""

    enrich: tuple[str, ...] = ()
    style: Literal["openai", "anthropic", "gemini"] | None = None
    alternate: bool = False
    tools: bool = False
    max_history: int | None = None


async def context(memories: Memories, stream: Stream, wishes: Wishes) -> dict[str, Any]:
    """The whole body of the next LLM call. Raises `Refused` for an unknown enricher."""
    memory = await memories.at(stream)
    return request_body(memory.messages(), memory.tool_uses(), wanted_format(stream, wishes))


def wanted_format(stream: Stream, wishes: Wishes) -> Format:
    settings = config.read(stream.config)
    llm = settings.llm
    return Format(
        vendor=llm.vendor,
        model=llm.model,
        style=wishes.style or llm.style,
        params=llm.params,
        system_messages=llm.system_messages,
        interruptable=settings.interruptable,
        max_history=wishes.max_history or llm.max_history,
        enrich=wishes.enrich,
        alternate=wishes.alternate,
        tools=wishes.tools,
    )
