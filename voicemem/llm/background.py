"""Background requests to a session's LLM, each one chat completion without streaming, and their concurrency limit."""

import re
from collections import Counter
from collections.abc import Awaitable, Callable, Sequence
from typing import NamedTuple

from voicemem.config.session import parse_config
from voicemem.errors import LlmFailed
from voicemem.llm.completions import LlmAnswer
from voicemem.llm.endpoints import LlmEndpoint, LlmEndpoints
from voicemem.protocol.types import JsonObject
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Metrics

MAX_MODEL_CHARACTERS = 256
MAX_PLAIN_URLS = 1_000
"""The most LLMs that are remembered as taking no `response_format`."""
REFUSES_FORMAT = (400, 404, 415, 422)
"""Statuses of servers that do not know `response_format`."""
UNFINISHED = {"length": "cut_off", "content_filter": "filtered"}
"""Finish reasons of incomplete answers, with our error codes."""
TAG = r"(?:\w+:)?(?:think|thinking|thoughts?|reason|reasoning|reflection|analysis|scratchpad)"
BEGIN, END = rf"[<\[◁]{TAG}(?:\s[^<>]{{0,100}})?[>\]▷]", rf"[<\[◁]/{TAG}\s?[>\]▷]"
"""Tags around thinking: `<think>`, `[THINK]`, `◁think▷`, `<seed:think>`."""
BEGIN_OF_THINKING, END_OF_THINKING = re.compile(BEGIN, re.IGNORECASE), re.compile(END, re.IGNORECASE)
THINKING = re.compile(rf"\s*{BEGIN}.*?(?:{END}|\Z)", re.IGNORECASE | re.DOTALL)
"""Thinking at the beginning of an answer; an answer may end within it."""
CHANNEL, END_OF_CHANNEL = re.compile(r"<\|channel\|>(\w+)[^<]*<\|message\|>"), re.compile(r"<\|(?:end|return|start)\|>")
"""Marks of gpt-oss that some servers leave in the text; the answer is in the channel `final`."""
Complete = Callable[[LlmEndpoint, JsonObject], Awaitable[bytes]]
"""Sends a body to an LLM, and returns the whole answer unchanged. Raises `LlmFailed`."""


class LlmText(NamedTuple):
    """A text of an LLM, and the tokens that it used, if the LLM reports them."""

    text: str
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


class BackgroundLlm:
    """Asks a session's LLM, or the operator's if it has none."""

    def __init__(self, endpoints: LlmEndpoints, complete: Complete, metrics: Metrics) -> None:
        self.endpoints = endpoints
        self.complete = complete
        self.metrics = metrics
        self.plain_urls: dict[str, None] = {}
        """LLMs that refused a `response_format`, the newest last."""

    async def ask(
        self,
        stream: Stream,
        use: str,
        model: str | None,
        messages: Sequence[JsonObject],
        response_format: JsonObject | None = None,
    ) -> LlmText:
        """Return the LLM's answer. `use` is for the metrics; `model` is configured for it, None for the session's.

        An LLM that refuses the `response_format` is asked without it from then on. Raises `Refused`
        (`llm_not_configured`), `LlmFailed`, `StoreUnavailable`.
        """
        endpoint = await self.endpoints.for_session(stream)
        llm = parse_config(stream.config).llm
        body: JsonObject = {"messages": list(messages)}
        # After the model for this use, the order is that of the chat's model (`builder.model_of`).
        name = model or llm.model or llm.params.get("model") or endpoint.model
        if name:
            body["model"] = name
        if response_format is None or endpoint.url in self.plain_urls:
            return await self.send(endpoint, use, body)
        try:
            return await self.send(endpoint, use, body | {"response_format": response_format})
        except LlmFailed as failed:
            if failed.why not in REFUSES_FORMAT:
                raise
        answer = await self.send(endpoint, use, body)
        self.plain_urls[endpoint.url] = None
        if len(self.plain_urls) > MAX_PLAIN_URLS:
            del self.plain_urls[next(iter(self.plain_urls))]
        return answer

    async def send(self, endpoint: LlmEndpoint, use: str, body: JsonObject) -> LlmText:
        result = "failed"
        try:
            answer = read_completion(await self.complete(endpoint, body))
            result = "answered"
        finally:
            self.metrics.llm_calls.labels(use, result).inc()
        return answer


def read_completion(data: bytes) -> LlmText:
    """Read the LLM's answer, without its thinking. Raises `LlmFailed` if it is not a complete chat completion."""
    answer = LlmAnswer(is_stream=False)
    answer.add_chunk(data)
    if answer.finish_reason in UNFINISHED:
        raise LlmFailed(UNFINISHED[answer.finish_reason])
    model = answer.model[:MAX_MODEL_CHARACTERS] if isinstance(answer.model, str) else None
    counts = (answer.usage.get(name) for name in ("prompt_tokens", "completion_tokens"))
    tokens = [count if type(count) is int and 0 <= count < 2**53 else None for count in counts]
    return LlmText(without_thinking("".join(answer.text)), model or None, *tokens)


def without_thinking(text: str) -> str:
    """Return an answer without the LLM's thinking, which some servers leave in the text."""
    channels = list(CHANNEL.finditer(text))
    if channels and text.lstrip().startswith("<|"):
        answers = (END_OF_CHANNEL.split(text[one.end() :], 1)[0] for one in channels[-1:] if one[1] == "final")
        return next(answers, "").strip()
    begin = 0
    while match := THINKING.match(text, begin):
        begin = match.end()
    closing = END_OF_THINKING.search(text, begin)
    if closing and not BEGIN_OF_THINKING.search(text, begin, closing.start()):
        begin = closing.end()  # some prompts end with the opening tag
    return text[begin:].strip().removeprefix("\ufeff")


MAX_CONCURRENT, MAX_CONCURRENT_PER_LLM = 256, 8
"""The most concurrent background LLM requests: in all, and from one project to one URL."""
LlmKey = tuple[str, str | None]
"""The project and the URL of a session's LLM."""


class ConcurrencyLimiter:
    """Limits concurrent requests, of summaries and extraction together, so that a slow LLM delays no other."""

    def __init__(self) -> None:
        self.running: Counter[LlmKey] = Counter()

    def is_full(self, stream: Stream) -> bool:
        """Return whether this session's LLM, or the service as a whole, is at its limit."""
        return self.running.total() >= MAX_CONCURRENT or self.running[llm_key(stream)] >= MAX_CONCURRENT_PER_LLM

    def acquire(self, stream: Stream) -> LlmKey:
        """Count a request of this session; pass the result to `release` when it is done."""
        key = llm_key(stream)
        self.running[key] += 1
        return key

    def release(self, key: LlmKey) -> None:
        self.running[key] -= 1
        if not self.running[key]:
            del self.running[key]


def llm_key(stream: Stream) -> LlmKey:
    return stream.project, parse_config(stream.config).llm.url
