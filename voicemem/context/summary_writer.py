"""Summaries as a session's LLM writes them: one chat completion, not streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from voicemem.config.session import parse_config
from voicemem.context.summaries import Written
from voicemem.llm.completions import Answer
from voicemem.llm.targets import Target, Targets
from voicemem.protocol.types import JsonObject
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Metrics

USE = "summary"
MAX_MODEL = 256
Complete = Callable[[Target, JsonObject], Awaitable[bytes]]
"""The whole answer to a body, as it came. Raises `LlmFailed`."""


class Account(msgspec.Struct, frozen=True):
    """What a completion says of itself; whatever else it may be counts as nothing."""

    model: Any = None
    usage: Any = None


class SummaryWriter:
    """Asks the LLM of a session, else the operator's."""

    def __init__(self, targets: Targets, complete: Complete, metrics: Metrics) -> None:
        self.targets = targets
        self.complete = complete
        self.metrics = metrics

    async def write(self, stream: Stream, model: str | None, prompt: str) -> Written:
        """Raises `Refused` (`llm_not_configured`), `LlmFailed`, `StoreUnavailable`."""
        target = await self.targets.of(stream)
        llm = parse_config(stream.config).llm
        body: JsonObject = {"messages": [{"role": "user", "content": prompt}]}
        name = model or llm.model or target.model or llm.params.get("model")
        if name:
            body["model"] = name
        result = "failed"
        try:
            answer = await self.complete(target, body)
            written = read_summary(answer)
            result = "answered"
        finally:
            self.metrics.llm_calls.labels(USE, result).inc()
        return written


def read_summary(data: bytes) -> Written:
    """What an LLM wrote. Raises `LlmFailed` for what is no chat completion."""
    answer = Answer()
    answer.take(data)
    account = msgspec.json.decode(data, type=Account)
    usage = account.usage if isinstance(account.usage, dict) else {}
    model = account.model if isinstance(account.model, str) else None
    return Written(
        "".join(answer.text),
        model[:MAX_MODEL] if model else None,
        tokens_of(usage, "prompt_tokens"),
        tokens_of(usage, "completion_tokens"),
    )


def tokens_of(usage: JsonObject, name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value < 2**53 else None
