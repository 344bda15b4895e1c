"""Summaries: made in the background before they are needed, and journaled as events of the server's own.

Nobody owns a session: whoever notices first that a summary is due asks the LLM, and appends what it wrote only where no
other summary came meanwhile. So two services on one store may both ask, and one of the answers counts.
"""

from __future__ import annotations

import asyncio
import logging
from bisect import bisect_right
from collections.abc import Awaitable, Callable, Iterable
from contextlib import suppress
from operator import attrgetter
from typing import Literal

from msgspec import Struct

from voicemem.config.memory import fill_prompt
from voicemem.config.session import parse_config
from voicemem.context.builder import Chosen, Wishes, choose
from voicemem.context.policies import MemoryConfig, Policies
from voicemem.context.policies.summary import (
    NO_SUMMARY_YET,
    PROMPT,
    DueSummary,
    SummaryPolicy,
    is_same,
    render_messages,
    shown_tokens,
)
from voicemem.context.usage import SummaryState
from voicemem.errors import LlmFailed, Refused, StoreUnavailable, VoicememError
from voicemem.llm.tokens import UNKNOWN_WINDOW
from voicemem.protocol.events import MemorySummary
from voicemem.protocol.types import MAX_TEXT_BYTES
from voicemem.runtime import Runtime
from voicemem.sessions.cache import Memories, append_made
from voicemem.sessions.read_model import Memory
from voicemem.store.port import Journal
from voicemem.store.records import Appended
from voicemem.store.streams import Stream
from voicemem.transcript.messages import Summary

LOG = logging.getLogger("voicemem.context.summaries")
SUMMARY = "summary"
State = Literal["none", "current", "due", "running", "failing"]
LOOK_S = 0.5
"""Between two looks at the sessions in which something was journaled."""
REST_S = 2.0
"""Between two looks at a session that has not used half of what calls for a summary."""
MOST_AT_ONCE, MOST_IN_LANE = 256, 8
"""Calls of LLMs that are under way: all together, and those of one project to one URL."""
PROMPT_SHARE = 0.7
"""Of the LLM's window; the rest is for what it writes, and for what is counted otherwise by it."""
FIRST_RETRY_S, LAST_RETRY_S = 1.0, 60.0
LARGEST_SHARE = 0.5
"""Of the budget: what a summary may take of it."""


class Written(Struct, frozen=True):
    """What an LLM wrote, and what it took, in tokens, where it says so."""

    text: str
    model: str | None = None
    input_tokens: int | None = None
    output_tokens: int | None = None


Write = Callable[[Stream, str | None, str], Awaitable[Written]]
"""Asks the LLM of a session, by its model for summaries if there is one, with a prompt. Raises `Refused`."""


class Work(Struct):
    """How it is with the summaries of one session."""

    stream: Stream
    task: asyncio.Task[None] | None = None
    failures: int = 0
    error: str | None = None
    not_before: float = 0.0
    """By the loop's clock."""


class Summaries:
    """Makes summaries where they are due."""

    def __init__(
        self,
        journal: Journal,
        memories: Memories,
        policies: Policies,
        write: Write,
        runtime: Runtime,
    ) -> None:
        self.journal = journal
        self.memories = memories
        self.policies = policies
        self.write = write
        self.clock = runtime.clock
        self.random = runtime.random
        self.changed: dict[int, Stream] = {}
        """Sessions in which something was journaled since the last look, by key."""
        self.works: dict[int, Work] = {}
        """Where a summary is made, or could not be made, by key."""
        self.resting: dict[int, float] = {}
        """Until when a session that is far from its next summary is not looked at, by key and the loop's clock."""

    def note(self, appended: Iterable[Appended]) -> None:
        """Something was journaled in these sessions."""
        everywhere = self.policies.default.policy == SUMMARY
        for result in appended:
            if everywhere or "memory" in result.stream.config:
                self.changed[result.stream.key] = result.stream

    def state_of(self, stream: Stream, chosen: Chosen) -> SummaryState | None:
        """How it is with a session's summaries; None when its policy makes none. Whoever asks for it sets it going."""
        policy, remembered = chosen.policy, chosen.everything
        if not isinstance(policy, SummaryPolicy):
            return None
        if self.policies.resolve(parse_config(stream.config).memory).policy != SUMMARY:  # wished for this call alone
            return SummaryState("none" if remembered.summary is None else "current", *stands_for(remembered.summary))
        work, due = self.works.get(stream.key), policy.due(remembered)
        self.changed.setdefault(stream.key, stream)
        state: State = "none" if remembered.summary is None else "current"
        if work is not None and work.task is not None:
            state = "running"
        elif due is not None:
            state = "failing" if work is not None and work.failures else "due"
        failures, error = (work.failures, work.error) if work else (0, None)
        return SummaryState(state, *stands_for(remembered.summary), failures, error)

    async def look(self) -> None:
        """Start what is due in the sessions that have changed."""
        changed, self.changed = self.changed, {}
        self.resting = {key: until for key, until in self.resting.items() if until > now_s()}
        for key, stream in changed.items():
            if self.must_wait(key) or self.is_busy(stream):
                self.changed.setdefault(key, stream)
                continue
            with suppress(StoreUnavailable, Refused):  # it is looked at again when something comes
                await self.look_at(stream)
            await asyncio.sleep(0)

    def must_wait(self, key: int) -> bool:
        work = self.works.get(key)
        if work is not None and (work.task is not None or work.not_before > now_s()):
            return True
        return key in self.resting

    def is_busy(self, stream: Stream) -> bool:
        """Whether its LLM, or all together, have enough to do: one that hangs holds up nobody else."""
        running, lane = self.running(), lane_of(stream)
        return len(running) >= MOST_AT_ONCE or sum(lane_of(one.stream) == lane for one in running) >= MOST_IN_LANE

    def most(self, chosen: Chosen) -> float:
        """How many tokens of messages fit into one prompt, beside the summary before."""
        policy, remembered = chosen.policy, chosen.remembered
        assert isinstance(policy, SummaryPolicy)
        writer = chosen.memory.model
        window = self.policies.window(MemoryConfig(), writer) if writer else remembered.window
        window = window or max(policy.budget(remembered), UNKNOWN_WINDOW)
        prompt = chosen.memory.prompt or PROMPT
        return PROMPT_SHARE * window - remembered.text_tokens(prompt) - shown_tokens(remembered)

    async def look_at(self, stream: Stream) -> None:
        chosen = await self.chosen(stream)
        if chosen is None:
            self.works.pop(stream.key, None)
            return
        policy, remembered = chosen.policy, chosen.everything
        assert isinstance(policy, SummaryPolicy)
        due = policy.due(remembered, self.most(chosen))
        if due is not None:
            self.start(stream, chosen, due)
            return
        self.works.pop(stream.key, None)
        if policy.used(remembered) < policy.threshold * policy.budget(remembered) / 2:
            self.resting[stream.key] = now_s() + REST_S

    def running(self) -> list[Work]:
        return [work for work in self.works.values() if work.task is not None]

    async def chosen(self, stream: Stream) -> Chosen | None:
        """What the policy of a session chooses now; None where it is none that makes summaries."""
        settings = parse_config(stream.config)
        if self.policies.resolve(settings.memory).policy != SUMMARY:
            return None
        now = await self.journal.stream(stream.project, stream.id)
        if now is None:
            return None
        return await choose(self.memories, self.policies, now, Wishes())

    def start(self, stream: Stream, chosen: Chosen, due: DueSummary) -> None:
        work = self.works.setdefault(stream.key, Work(stream))
        work.task = asyncio.create_task(self.work(work, chosen, due))

    async def work(self, work: Work, chosen: Chosen, due: DueSummary) -> None:
        """Make one summary, and note what became of it."""
        try:
            written = await self.write(work.stream, chosen.memory.model, prompt_of(chosen, due))
            check_text(written.text, chosen)
            await self.append(work.stream, due, written)
            work.failures, work.error = 0, None
        except VoicememError as error:
            self.put_off(work, str(error.why) if isinstance(error, LlmFailed) else error.code)
        except Exception as error:
            LOG.error("A summary failed", exc_info=error)
            self.put_off(work, "internal")
        finally:
            work.task = None
            self.changed.setdefault(work.stream.key, work.stream)

    def put_off(self, work: Work, code: str) -> None:
        work.failures, work.error = work.failures + 1, code
        wait_s = min(LAST_RETRY_S, FIRST_RETRY_S * 2 ** (work.failures - 1)) * (0.5 + self.random())
        work.not_before = now_s() + wait_s
        LOG.warning("No summary for session %s: %s; it is tried again in %.1f s.", work.stream.id, code, wait_s)

    async def append(self, stream: Stream, due: DueSummary, written: Written) -> None:
        """Journal the summary, unless another one came, or what it was made of has changed meanwhile."""
        event = event_of(due, written)

        def made(memory: Memory) -> MemorySummary | None:
            return event if memory.state.summary == due.previous and still_stands(due, memory) else None

        await append_made(self.memories, stream, made, self.clock)

    async def stop(self) -> None:
        """Nothing that is under way is waited for: the next process begins anew."""
        tasks = [work.task for work in self.works.values() if work.task is not None]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)


def now_s() -> float:
    return asyncio.get_running_loop().time()


def prompt_of(chosen: Chosen, due: DueSummary) -> str:
    previous = NO_SUMMARY_YET if due.previous is None else due.previous.text
    return fill_prompt(chosen.memory.prompt or PROMPT, previous, render_messages(due.messages, due.tools))


def check_text(text: str, chosen: Chosen) -> None:
    """A summary that leaves no room for the call is none. Raises `Refused`."""
    policy = chosen.policy
    assert isinstance(policy, SummaryPolicy)
    if not text.strip() or len(text.encode()) > MAX_TEXT_BYTES:
        raise Refused("llm_failed", "The LLM wrote no summary.")
    if chosen.counter.count(text) > policy.budget(chosen.remembered) * LARGEST_SHARE:
        raise Refused("llm_failed", "The LLM wrote a summary that is too long.")


def still_stands(due: DueSummary, memory: Memory) -> bool:
    """Whether what was summarised is still what is remembered of these turns."""
    before = -1 if due.previous is None else due.previous.through_turn
    messages = memory.remembered_messages()
    since, until = (bisect_right(messages, turn, key=attrgetter("turn_id")) for turn in (before, due.through_turn))
    tools = [use for use in memory.tool_uses() if use.answered and before < use.turn_id <= due.through_turn]
    return is_same(due.messages, messages[since:until]) and is_same(due.tools, tools)


def stands_for(summary: Summary | None) -> tuple[int | None, int]:
    """Through which turn, and for how many messages."""
    return (None, 0) if summary is None else (summary.through_turn, summary.messages)


def lane_of(stream: Stream) -> tuple[str, str | None]:
    return stream.project, parse_config(stream.config).llm.url


def event_of(due: DueSummary, written: Written) -> MemorySummary:
    return MemorySummary(
        through_turn=due.through_turn,
        text=written.text.strip(),
        messages=due.stands_for,
        model=written.model,
        input_tokens=written.input_tokens,
        output_tokens=written.output_tokens,
    )


async def summarise_forever(summaries: Summaries) -> None:
    """Look at what has changed, a few times a second."""
    while True:
        await summaries.look()
        await asyncio.sleep(LOOK_S)
