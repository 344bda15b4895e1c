"""Summaries, which are written in the background before they are needed, and journaled as the server's own events.

No node owns a session. The first one to notice that a summary is due claims it, asks the LLM, and appends the answer
only if no other summary was journaled meanwhile. So even if two nodes ask, only one answer counts.
"""

import asyncio
import logging
from bisect import bisect_right
from contextlib import suppress
from dataclasses import dataclass, field
from operator import attrgetter

import msgspec
from msgspec import Struct

from voicemem.backoff import exponential_s, spread
from voicemem.config.context import ContextConfig, fill_prompt
from voicemem.config.session import parse_config
from voicemem.context.builder import ContextOptions, ContextSelection, SummaryState, select_context
from voicemem.context.policy_registry import Policies
from voicemem.context.summary_policy import (
    NO_SUMMARY_YET,
    PROMPT,
    DueSummary,
    SummaryPolicy,
    is_same,
    render_messages,
    summary_tokens,
)
from voicemem.errors import Refused, SessionQuarantined, StoreUnavailable, VoicememError
from voicemem.llm.background import BackgroundLlm, ConcurrencyLimiter, LlmText
from voicemem.llm.tokens import UNKNOWN_WINDOW
from voicemem.protocol.events import MemorySummary
from voicemem.protocol.quoting import quoted
from voicemem.protocol.types import MAX_TEXT_BYTES
from voicemem.runtime import NodeIdentity, Runtime, cancel_all, entries_of
from voicemem.sessions.derived import append_derived
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.nodes import SUMMARY as SUMMARY_WORK
from voicemem.store.port import Store
from voicemem.store.streams import Stream

LOG = logging.getLogger("voicemem.summaries")
SUMMARY = METRIC_USE = "summary"
LOOK_INTERVAL_S = 0.5
"""The time between two checks of the sessions that have changed."""
QUIET_INTERVAL_S = 2.0
"""The time between two checks of a session that has used less than half of the tokens that make a summary due."""
PROMPT_SHARE = 0.7
"""The share of the LLM's window for a prompt. The rest is for the answer, and for differences in counting."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
MAX_FAILURES = 12
"""After so many failures in a row, a session is left alone until something new is journaled."""
CLAIM_MS = 300_000
"""How long a node may write one summary, unless it is retired before."""
ELSEWHERE_S = 1.0
"""How soon to look again at a session whose summary another node is writing."""
MAX_SUMMARY_SHARE = 0.5


class SummaryJob(Struct):
    """The work on one session's next summary."""

    stream: Stream
    task: asyncio.Task[None] | None = None
    failures: int = 0
    error: str | None = None
    not_before: float = 0.0
    """When to try again, by the loop's clock, in seconds."""


@dataclass(eq=False)
class Summaries:
    """Writes the summaries that are due."""

    store: Store
    read_models: ReadModelCache
    policies: Policies
    llm: BackgroundLlm
    runtime: Runtime
    node: NodeIdentity = field(default_factory=NodeIdentity)
    limiter: ConcurrencyLimiter = field(default_factory=ConcurrencyLimiter)
    changed: dict[int, Stream] = field(default_factory=dict)
    """Sessions that have changed since the last check, by key. It is the only queue: a session that must wait is put
    back."""
    jobs: dict[int, SummaryJob] = field(default_factory=dict)
    """The summaries that are being written or have failed, by session key."""
    quiet_until: dict[int, float] = field(default_factory=dict)
    """By session key, the loop's time until which it need not be checked, since each check counts tokens."""

    def check_again(self, stream: Stream) -> None:
        """Let a session be checked again, which may start a summary."""
        job = self.jobs.get(stream.key)
        if job is None or job.failures < MAX_FAILURES:
            self.changed.setdefault(stream.key, stream)

    def summary_state(self, stream: Stream, selection: ContextSelection) -> SummaryState | None:
        """Return the state of a session's summaries; None if its policy writes none. This may take long."""
        policy, settled = selection.policy, settled_state(selection)
        if not isinstance(policy, SummaryPolicy) or settled is None:
            return None
        if self.policies.resolve(parse_config(stream.config).memory).policy != SUMMARY:  # only in this context
            return settled
        job, due = self.jobs.get(stream.key), policy.find_due(selection.summary_source)
        state = settled.state
        if job is not None and job.task is not None:
            state = "running"
        elif due is not None:
            state = "failing" if job is not None and job.failures else "due"
        failures, error = (job.failures, job.error) if job else (0, None)
        return msgspec.structs.replace(settled, state=state, failures=failures, error=error)

    async def check_changed(self) -> None:
        """Start the summaries that are due in the sessions that have changed."""
        everywhere = self.policies.default.policy == SUMMARY
        changed = {**self.changed}
        self.changed.clear()
        self.quiet_until = {key: until for key, until in self.quiet_until.items() if until > now_s()}
        async for key, stream in entries_of(changed):
            if not everywhere and "memory" not in stream.config:
                continue
            job = self.jobs.get(key)
            must_wait = job is not None and (job.task is not None or job.not_before > now_s())
            if must_wait or key in self.quiet_until or self.limiter.is_full(stream):
                self.changed.setdefault(key, stream)
                continue
            # It is checked again when something else is journaled.
            with suppress(StoreUnavailable, SessionQuarantined, Refused):
                await self.check_session(stream)
            await asyncio.sleep(0)

    def max_prompt_tokens(self, selection: ContextSelection) -> float:
        """Return the tokens of messages that fit in one prompt, with the previous summary."""
        policy, remembered = selection.policy, selection.remembered
        assert isinstance(policy, SummaryPolicy)
        writer = selection.memory_config.model
        window = self.policies.window(ContextConfig(), writer) if writer else remembered.window
        window = window or max(policy.budget(remembered), UNKNOWN_WINDOW)
        prompt = selection.memory_config.prompt or PROMPT
        return PROMPT_SHARE * window - remembered.text_tokens(prompt) - summary_tokens(remembered)

    async def check_session(self, stream: Stream) -> None:
        is_summarised = self.policies.resolve(parse_config(stream.config).memory).policy == SUMMARY
        now = await self.store.journal.find_session(stream.project, stream.id) if is_summarised else None
        if now is None:  # or it was erased
            self.jobs.pop(stream.key, None)
            return
        selection, due, is_quiet = await select_context(
            self.read_models, self.policies, now, ContextOptions(), self.find_due, reads_all=True
        )
        if due is not None:
            job = self.jobs.setdefault(stream.key, SummaryJob(stream))
            job.task = asyncio.create_task(self.run_job(job, selection, due))
            slot = self.limiter.acquire(stream)
            job.task.add_done_callback(lambda _: self.limiter.release(slot))
            return
        self.jobs.pop(stream.key, None)
        if is_quiet:
            self.quiet_until[stream.key] = now_s() + QUIET_INTERVAL_S

    def find_due(self, selection: ContextSelection) -> tuple[ContextSelection, DueSummary | None, bool]:
        """Return the summary that is due, and whether none will be soon. This may take long."""
        policy, remembered = selection.policy, selection.summary_source
        assert isinstance(policy, SummaryPolicy)
        due = policy.find_due(remembered, self.max_prompt_tokens(selection))
        half = policy.threshold * policy.budget(remembered) / 2
        return selection, due, due is None and policy.used_tokens(remembered) < half

    async def run_job(self, job: SummaryJob, selection: ContextSelection, due: DueSummary) -> None:
        """Write one summary, unless another node does, and note success or failure."""
        node = self.node.token
        try:
            if not await self.store.claims.claim(SUMMARY_WORK, job.stream.key, node, self.runtime.clock(), CLAIM_MS):
                job.not_before = now_s() + ELSEWHERE_S
                return
            previous = NO_SUMMARY_YET if due.previous is None else quoted(due.previous.text)
            said = render_messages(due.messages, due.tools)
            prompt = fill_prompt(selection.memory_config.prompt or PROMPT, previous, said)
            messages = [{"role": "user", "content": prompt}]
            summary_result = await self.llm.ask(job.stream, METRIC_USE, selection.memory_config.model, messages)
            check_summary(summary_result.text, selection)
            await self.append_summary(job.stream, due, summary_result)
            job.failures, job.error = 0, None
        except VoicememError as error:
            self.schedule_retry(job, error.word)
        except Exception as error:  # the edge of a background task: any failure is retried
            LOG.error("The summary for session %s failed", job.stream.id, exc_info=error)
            self.schedule_retry(job, "internal")
        finally:
            job.task = None
            if job.failures < MAX_FAILURES:
                self.changed.setdefault(job.stream.key, job.stream)
            with suppress(StoreUnavailable):  # then the claim runs out
                await self.store.claims.release(SUMMARY_WORK, job.stream.key, node)

    def schedule_retry(self, job: SummaryJob, code: str) -> None:
        job.failures, job.error = job.failures + 1, code
        wait_s = spread(exponential_s(job.failures - 1, MIN_RETRY_S, MAX_RETRY_S), self.runtime.random(), 0.5, 1.5)
        job.not_before = now_s() + wait_s
        LOG.warning("No summary for session %s: %s; trying again in %.1f s", job.stream.id, code, wait_s)

    async def append_summary(self, stream: Stream, due: DueSummary, summary_result: LlmText) -> None:
        """Journal a summary, unless another one was journaled meanwhile or its messages have changed.

        Another process may have asked an LLM for the same summary: the first append wins.
        """
        event = MemorySummary(
            through_turn=due.through_turn,
            text=summary_result.text.strip(),
            messages=due.message_count,
            model=summary_result.model,
            input_tokens=summary_result.input_tokens,
            output_tokens=summary_result.output_tokens,
        )

        def event_if_valid(read_model: ReadModel) -> MemorySummary | None:
            return event if read_model.state.summary == due.previous and is_still_valid(due, read_model) else None

        await append_derived(self.read_models, stream, event_if_valid, self.runtime.clock)

    async def stop(self) -> None:
        """Cancel the requests in progress; the next process repeats them."""
        await cancel_all(job.task for job in self.jobs.values() if job.task is not None)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def check_summary(text: str, selection: ContextSelection) -> None:
    """Raise `Refused` for a summary that is empty or leaves no room for the conversation."""
    policy = selection.policy
    assert isinstance(policy, SummaryPolicy)
    if not text.strip() or len(text.encode()) > MAX_TEXT_BYTES:
        raise Refused("llm_failed", "The LLM wrote no usable summary.")
    if selection.counter.count(text) > policy.budget(selection.remembered) * MAX_SUMMARY_SHARE:
        raise Refused("llm_failed", "The LLM wrote a summary that is too long.")


def is_still_valid(due: DueSummary, read_model: ReadModel) -> bool:
    """Return whether the memory still has the messages and tool uses that were summarised."""
    before = -1 if due.previous is None else due.previous.through_turn
    messages = read_model.remembered_messages()
    since, until = (bisect_right(messages, turn, key=attrgetter("turn_id")) for turn in (before, due.through_turn))
    tools = [use for use in read_model.tool_uses() if use.answered and before < use.turn_id <= due.through_turn]
    return is_same(due.messages, messages[since:until]) and is_same(due.tools, tools)


def settled_state(selection: ContextSelection) -> SummaryState | None:
    """Return the state of the summary in a context, if no further one is due; None if its policy writes none."""
    summary = selection.remembered.summary
    if not isinstance(selection.policy, SummaryPolicy):
        return None
    return SummaryState("none") if summary is None else SummaryState("current", summary.through_turn, summary.messages)
