"""How much of a model's window a context takes, and what was left out: the answer to `usage=true`."""

from collections.abc import Iterator
from typing import Literal

from msgspec import Struct

from voicemem.context.builder import ContextSelection
from voicemem.context.formats import CUSTOM, system_text
from voicemem.context.policies import SummaryPolicy, render_summary, summarised_count
from voicemem.transcript.messages import Role

DEFAULT_POLICY = "recent"
"""The policy of sessions that configure none: the newest `llm.max_history` messages."""


class LeftOut(Struct, frozen=True):
    """A message that the LLM does not see; `reason` is a word such as `max_tokens` or `summarized`."""

    index: int
    turn_id: int
    role: Role
    timestamp: int
    reason: str


class SummaryState(Struct, frozen=True):
    """The reach of the newest summary, and the state of the next one."""

    state: Literal["none", "current", "due", "running", "failing"]
    through_turn: int | None = None
    messages: int = 0
    failures: int = 0
    """Failed attempts since the last success."""
    error: str | None = None


class Usage(Struct, frozen=True):
    """`tokens` counts the chosen messages, the summary and the tools; percentages run from 0 to 100."""

    policy: str
    counter: str
    tokens: int
    system_tokens: int
    context_window: int | None
    context_percentage_total_used: float | None
    context_percentage_until_summarization: float | None
    over_budget: bool
    summary: SummaryState | None
    left_out: list[LeftOut]
    memories: list[str]


def usage_of(selection: ContextSelection, summary: SummaryState | None) -> Usage:
    remembered, choice, policy = selection.remembered, selection.choice, selection.policy
    tokens = sum(map(remembered.tokens, choice.kept)) + sum(map(remembered.tool_tokens, selection.tools))
    if choice.summary is not None:
        tokens += remembered.text_tokens(render_summary(choice.summary))
    system_tokens = remembered.text_tokens(
        system_text((*selection.session_config.llm.system_messages, *selection.extra_messages))
    )
    system_tokens += sum(map(remembered.text_tokens, selection.carried))
    until = None
    if isinstance(policy, SummaryPolicy):
        until = percent(policy.used_tokens(selection.summary_source), policy.threshold * policy.budget(remembered))
    window = remembered.window
    return Usage(
        policy=selection.memory_config.policy or DEFAULT_POLICY,
        counter=selection.counter.name,
        tokens=tokens,
        system_tokens=system_tokens,
        context_window=window,
        context_percentage_total_used=None if window is None else percent(tokens + system_tokens, window),
        context_percentage_until_summarization=until,
        over_budget=choice.over_budget,
        summary=summary,
        left_out=list(left_out(selection)),
        memories=list(selection.recalled),
    )


def percent(part: float, whole: float) -> float:
    return round(100 * part / whole, 2)


def left_out(selection: ContextSelection) -> Iterator[LeftOut]:
    """Every message that is not shown, and why: it is forgotten, blank, or the policy left it out."""
    choice = selection.choice
    covered = summarised_count(selection.remembered) if choice.summary is not None else 0
    kept = choice.kept if isinstance(choice.kept, range) else frozenset(choice.kept)
    remembered = {position: index for index, position in enumerate(selection.indexes)}
    for position, message in enumerate(selection.history):
        index = remembered.get(position)
        if index is None:
            reason: str | None = "forgotten"
        elif index in kept:
            is_blank = not message.content.strip() and selection.session_config.llm.vendor != CUSTOM
            reason = "blank" if is_blank else None  # in the OpenAI style, without enrichers
        else:
            reason = "summarized" if index < covered else choice.reason
        if reason is not None:
            yield LeftOut(position, message.turn_id, message.role, message.timestamp, reason)
