"""Write summaries with a session's LLM: one chat completion each, not streamed."""

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
"""Sends a body to an LLM and gives the whole answer, unchanged. Raises `LlmFailed`."""


class CompletionInfo(msgspec.Struct, frozen=True):
    """What a completion says about itself; values of an unexpected type are ignored."""

    model: Any = None
    usage: Any = None


class SummaryWriter:
    """Asks the session's LLM, or the operator's if it has none."""

    def __init__(self, endpoints: LlmEndpoints, complete: Complete, metrics: Metrics) -> None:
        self.endpoints = endpoints
        self.complete = complete
        self.metrics = metrics

    async def write(self, stream: Stream, model: str | None, prompt: str) -> SummaryResult:
        """The LLM's answer to a prompt; `model` is the one configured for summaries, None for the session's.

        Raises `Refused` (`llm_not_configured`), `LlmFailed`, `StoreUnavailable`.
        """
        endpoint = await self.endpoints.for_session(stream)
        llm = parse_config(stream.config).llm
        body: JsonObject = {"messages": [{"role": "user", "content": prompt}]}
        # After the model for summaries, in the order in which the chat chooses its model (`builder.model_of`).
        name = model or llm.model or llm.params.get("model") or endpoint.model
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
    """Read the LLM's answer. Raises `LlmFailed` if it is not a chat completion."""
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
