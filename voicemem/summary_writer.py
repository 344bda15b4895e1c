"""Summaries as a session's LLM writes them: one chat completion, not streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from voicemem import config
from voicemem.admission import Stream
from voicemem.completions import Answer
from voicemem.events import Fields
from voicemem.metrics import Metrics
from voicemem.summaries import Written
from voicemem.targets import Target, Targets

USE = "summary"
MAX_MODEL = 256
Complete = Callable[[Target, Fields], Awaitable[bytes]]
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
        llm = config.read(stream.config).llm
        body: Fields = {"messages": [{"role": "user", "content": prompt}]}
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


def tokens_of(usage: Fields, name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value < 2**53 else None
