"""Summaries as a session's LLM writes them: one chat completion, not streamed."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from typing import Any

import msgspec

from voicemem.config.session import parse_config
from voicemem.context.summaries import SummaryResult
from voicemem.llm.completions import LlmAnswer
from voicemem.llm.targets import LlmEndpoint, LlmEndpoints
from voicemem.protocol.types import JsonObject
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Metrics

METRIC_USE = "summary"
MAX_MODEL_CHARACTERS = 256
Complete = Callable[[LlmEndpoint, JsonObject], Awaitable[bytes]]
"""The whole answer to a body, as it came. Raises `LlmFailed`."""


class CompletionInfo(msgspec.Struct, frozen=True):
    """What a completion says of itself; whatever else it may be counts as nothing."""

    model: Any = None
    usage: Any = None


class SummaryWriter:
    """Asks the LLM of a session, else the operator's."""

    def __init__(self, endpoints: LlmEndpoints, complete: Complete, metrics: Metrics) -> None:
        self.endpoints = endpoints
        self.complete = complete
        self.metrics = metrics

    async def write(self, stream: Stream, model: str | None, prompt: str) -> SummaryResult:
        """Raises `Refused` (`llm_not_configured`), `LlmFailed`, `StoreUnavailable`."""
        endpoint = await self.endpoints.for_session(stream)
        llm = parse_config(stream.config).llm
        body: JsonObject = {"messages": [{"role": "user", "content": prompt}]}
        name = model or llm.model or endpoint.model or llm.params.get("model")
        if name:
            body["model"] = name
        result = "failed"
        try:
            answer = await self.complete(endpoint, body)
            summary_result = parse_summary(answer)
            result = "answered"
        finally:
            self.metrics.llm_calls.labels(METRIC_USE, result).inc()
        return summary_result


def parse_summary(data: bytes) -> SummaryResult:
    """What an LLM wrote. Raises `LlmFailed` for what is no chat completion."""
    answer = LlmAnswer()
    answer.add_chunk(data)
    info = msgspec.json.decode(data, type=CompletionInfo)
    usage = info.usage if isinstance(info.usage, dict) else {}
    model = info.model if isinstance(info.model, str) else None
    return SummaryResult(
        "".join(answer.text),
        model[:MAX_MODEL_CHARACTERS] if model else None,
        token_count(usage, "prompt_tokens"),
        token_count(usage, "completion_tokens"),
    )


def token_count(usage: JsonObject, name: str) -> int | None:
    value = usage.get(name)
    return value if type(value) is int and 0 <= value < 2**53 else None
