"""One step of an extraction: messages not sent yet go to an LLM, and the memories that it makes are kept."""

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import groupby
from typing import Literal, NamedTuple

from msgspec import Struct, structs

from voicemem.config.context import DEFAULT_STRATEGY, ExtractConfig
from voicemem.context.policy_registry import Policies
from voicemem.errors import LlmFailed, Refused, StoreUnavailable
from voicemem.llm.background import BackgroundLlm, LlmText
from voicemem.memory.extraction import prompts
from voicemem.memory.extraction.analysis import CheckedAnalysis, DraftedValue, check_analysis, read_analysis
from voicemem.memory.extraction.checks import Checked, ExtractedMemory, Refusal, check_answer, read_answer
from voicemem.memory.long_term.memories import LongTermMemory
from voicemem.memory.long_term.memory_changes import filter_of
from voicemem.memory.long_term.records import Memory, MemoryDraft
from voicemem.protocol.events import MemoriesExtracted
from voicemem.protocol.memories import MAX_EVIDENCE, Analysis, Evidence
from voicemem.protocol.types import JsonObject
from voicemem.redaction.texts import Rules
from voicemem.runtime import Clock
from voicemem.search.passages import DAY_MS
from voicemem.sessions.derived import MAX_APPEND_ATTEMPTS
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.sessions.schema_worker import SCHEMA_WORKER
from voicemem.store.memory_filters import AnyOf, NoneOf
from voicemem.store.port import Store
from voicemem.store.scopes import scope_of
from voicemem.store.streams import Stream
from voicemem.telemetry.metrics import Metrics
from voicemem.transcript.messages import Extracted

StateName = Literal["current", "waiting", "running", "failing", "out_of_budget", "finished"]
METRIC_USE = "extraction"
MAX_CALLS = 8
ANSWER_TOKENS = 800
"""The assumed cost of an answer until it comes."""
MAX_NAME = 128
CHANGED = "changed"
"""The error code for lines that changed while the LLM was asked."""


class ExtractionState(Struct, frozen=True):
    """The progress of extraction in a session. `finished` means that it has used all its LLM requests.

    `through` is the journal position up to which its messages were sent, in `calls` requests.
    """

    state: StateName
    through: int
    calls: int
    failures: int = 0
    """Failed attempts since the last success."""
    error: str | None = None


class DailyBudget:
    """The tokens that each project may spend a day, over all nodes; 0 is no limit."""

    def __init__(self, store: Store, clock: Clock, limit: int = 0) -> None:
        self.store = store
        self.clock = clock
        self.limit = limit

    async def spend(self, project: str, tokens: int) -> bool:
        return not self.limit or await self.store.extractions.spend_tokens(project, self.day, tokens, self.limit)

    async def correct(self, project: str, tokens: int) -> None:
        """Count tokens spent beyond an estimate, or give back those that were not spent."""
        if self.limit and tokens:
            await self.store.extractions.spend_tokens(project, self.day, tokens, 0)

    @property
    def day(self) -> int:
        return self.clock() // DAY_MS


class Reading(NamedTuple):
    """The part of a session to send, as of a position of its journal."""

    position: int
    extracted: Extracted
    section: prompts.Section | None
    summary: str | None
    analysis: Analysis


class Step(NamedTuple):
    result: str
    """`sent`, or why nothing was sent: `nothing`, `calls` or `budget`."""
    position: int
    """The position up to which the session was read."""


@dataclass(eq=False)
class Extractor:
    """Makes memories of sessions, a section at a time. `worker` runs it."""

    store: Store
    read_models: ReadModelCache
    long_term: LongTermMemory
    llm: BackgroundLlm
    policies: Policies
    metrics: Metrics
    budget: DailyBudget
    rules: Rules | None = None

    async def extract_next(self, stream: Stream, config: ExtractConfig, fewest: int = 1) -> Step:
        """Send the next section of a session, if it has at least the `fewest` lines, and keep the memories made of it.

        Raises `Refused` (`llm_not_configured`, `unknown_session`), `LlmFailed`, `SessionQuarantined`,
        `StoreUnavailable`.
        """
        llm_model = (stream.config.get("llm") or {}).get("model")
        count = self.policies.counter(config.model or llm_model or self.policies.default_model).count
        reading = await self.read_models.read(stream, partial(read_section, count=count))
        section = reading.section
        if section is None:
            return Step("nothing", reading.position)
        # A section that is not the last is always sent, or the next ones would wait.
        says_enough = len(section.lines) >= fewest and any(line.is_callers for line in section.lines)
        if section.is_last and not says_enough:
            return Step("nothing", reading.position)
        if reading.extracted.calls >= MAX_CALLS:
            return Step("calls", reading.position)
        known, before = await self.find_known(stream, config, section)
        summary = before.text if before is not None else reading.summary
        make = partial(
            prompts.build_prompt, config, section, known, stream.started_ms, summary, analysis=reading.analysis
        )
        prompt = await asyncio.to_thread(make)
        estimate = count(prompt.system) + count(prompt.user) + ANSWER_TOKENS
        if not await self.budget.spend(stream.project, estimate):
            return Step("budget", reading.position)
        answer = await self.ask(stream, config, prompt, estimate)
        checked = await asyncio.to_thread(self.check, prompt, answer.text)
        analysis = await self.analyse(prompt, answer.text)
        for reason, number in (checked.refused + analysis.refused).items():
            self.metrics.refused_memories.labels(reason).inc(number)
        drafts = [draft_of(one, stream, config, answer, before) for one in checked.memories]
        mark = MemoriesExtracted(
            through=section.through,
            strategy=config.strategy or DEFAULT_STRATEGY,
            version=prompts.PROMPT_VERSION,
            model=model_of(config, answer),
            input_tokens=answer.input_tokens,
            output_tokens=answer.output_tokens,
            analysis=analysis.values,
        )
        await self.keep(stream, reading, drafts, mark)
        return Step("sent", reading.position)

    def check(self, prompt: prompts.Prompt, answer: str) -> Checked:
        """Return the checked memories of an answer. Raises `LlmFailed`."""
        return check_answer(prompt, read_answer(answer) if prompt.kinds else (), self.rules)

    async def analyse(self, prompt: prompts.Prompt, answer: str) -> CheckedAnalysis:
        """Return the values of an answer that fit the schema and are shown. Raises `LlmFailed`, `StoreUnavailable`."""
        if prompt.schema is None:
            return CheckedAnalysis({}, Counter())
        drafts = await asyncio.to_thread(read_analysis, answer)
        fitting = await fit_to_schema(prompt.schema, drafts)
        return await asyncio.to_thread(check_analysis, prompt, fitting, self.rules)

    async def ask(self, stream: Stream, config: ExtractConfig, prompt: prompts.Prompt, estimate: int) -> LlmText:
        """Return the LLM's answer, and count its real cost."""
        schema = prompts.response_format(prompt)
        answer = await self.llm.ask(stream, METRIC_USE, config.model, prompt.messages, schema)
        if answer.input_tokens is not None and answer.output_tokens is not None:
            spent = answer.input_tokens + answer.output_tokens
            self.metrics.extraction_tokens.inc(spent)
            await self.budget.correct(stream.project, spent - estimate)
        else:
            self.metrics.extraction_tokens.inc(estimate)
        return answer

    async def find_known(
        self, stream: Stream, config: ExtractConfig, section: prompts.Section
    ) -> tuple[list[prompts.KnownMemory], Memory | None]:
        """Return the user's memories that are closest to what they said, and the summary of the session so far."""
        if not prompts.KINDS_OF[config.strategy or DEFAULT_STRATEGY]:
            return [], None
        scope = scope_of(stream)
        mine = structs.replace(filter_of(scope), of_ids_alone=False)
        if config.strategy == "summary":
            filter = structs.replace(mine, session_ids=AnyOf((stream.id,)), kinds=AnyOf(("summary",)), limit=1)
            return [], next(iter(await self.long_term.list_memories(stream.project, filter)), None)
        filter = structs.replace(mine, kinds=NoneOf(("summary",)), limit=prompts.MAX_KNOWN)
        said = " ".join(line.text for line in reversed(section.lines) if line.is_callers)
        near = [one for one, _ in await self.long_term.find_by_words(stream.project, filter, said, prompts.MAX_KNOWN)]
        newest = await self.long_term.list_memories(stream.project, filter) if len(near) < prompts.MAX_KNOWN else []
        known = list({one.id: one for one in (*near, *newest)}.values())[: prompts.MAX_KNOWN]
        days = [one.created_at if one.said_at is None else one.said_at for one in known]
        return [
            prompts.KnownMemory(one.id, one.kind, one.text, day) for one, day in zip(known, days, strict=True)
        ], None

    async def keep(
        self, stream: Stream, reading: Reading, drafts: Sequence[MemoryDraft], mark: MemoriesExtracted
    ) -> None:
        """Journal memories and the mark of the position up to which lines were sent, in one step.

        The lines must be unchanged, and not sent by another node meanwhile: the first one counts.
        """
        assert reading.section is not None
        for _ in range(MAX_APPEND_ATTEMPTS):
            current = await self.store.journal.get_session(stream.project, stream.id)
            extracted, lines = await self.read_models.read(current, partial(said_now, reading=reading))
            if extracted != reading.extracted:
                return
            if lines != content_of(reading.section.lines):
                raise LlmFailed(CHANGED)
            kept = await self.long_term.add_extracted(current, drafts, mark)
            if kept is not None:
                self.metrics.extracted_memories.inc(len(kept))
                return
        raise StoreUnavailable("The session changes faster than its memories can be stored; try again.")


def read_section(read_model: ReadModel, count: prompts.CountTokens) -> Reading:
    state = read_model.state
    extracted = state.extracted or Extracted()
    summary = None if state.summary is None else state.summary.text
    section = prompts.next_section(state, extracted.through, count)
    return Reading(read_model.position, extracted, section, summary, state.analysis)


async def fit_to_schema(
    schema: JsonObject, drafts: Mapping[str, DraftedValue | Refusal]
) -> dict[str, DraftedValue | Refusal]:
    """Return the values, with `breaks_schema` for each that breaks the schema by itself. Raises `StoreUnavailable`."""
    fields = schema["properties"]
    part: JsonObject = {name: schema[name] for name in ("$defs", "definitions", "properties") if name in schema}
    values = {name: one.value for name, one in drafts.items() if isinstance(one, DraftedValue) and name in fields}
    if await fits(part, values):
        return dict(drafts)
    broken = {name for name, value in values.items() if not await fits(part, {name: value})}
    return {name: "breaks_schema" if name in broken else one for name, one in drafts.items()}


async def fits(schema: JsonObject, values: JsonObject) -> bool:
    try:
        await SCHEMA_WORKER.check(schema, values)
    except Refused:
        return False
    return True


def said_now(read_model: ReadModel, reading: Reading) -> tuple[Extracted, list[tuple[int, str, str]]]:
    """Return what was extracted by now, and the current content of the lines of a reading."""
    section, state = reading.section, read_model.state
    through = 0 if section is None else section.through
    return state.extracted or Extracted(), content_of(prompts.said_between(state, reading.extracted.through, through))


def content_of(lines: Sequence[prompts.Line]) -> list[tuple[int, str, str]]:
    return sorted((line.position, line.role, line.text) for line in lines)


def draft_of(
    memory: ExtractedMemory, stream: Stream, config: ExtractConfig, answer: LlmText, before: Memory | None
) -> MemoryDraft:
    """Return the draft of a memory; `before` is the summary that it replaces."""
    same = {name: getattr(memory, name) for name in ("text", "kind", "topics", "entities", "event_at", "confidence")}
    return MemoryDraft(
        **same,
        session_id=stream.id,
        said_at=memory.said_ms,
        supersedes=memory.supersedes if before is None else (before.id,),
        source="extracted",
        evidence=evidence_of(stream.id, memory.lines),
        strategy=config.strategy or DEFAULT_STRATEGY,
        model=model_of(config, answer),
        version=prompts.PROMPT_VERSION,
    )


def evidence_of(session_id: str, lines: Sequence[prompts.Line]) -> tuple[Evidence, ...]:
    """Return the journal positions of lines of a session, with neighbouring lines as one range."""
    runs = [[line for _, line in run] for _, run in groupby(enumerate(lines), lambda pair: pair[1].number - pair[0])]
    if len(runs) > MAX_EVIDENCE:
        runs = [list(lines)]
    evidence = []
    for run in runs:
        positions = [line.position for line in run]
        turn_ids = tuple(sorted({line.turn_id for line in run}))
        evidence.append(Evidence(session_id, min(positions), max(positions), turn_ids))
    return tuple(evidence)


def model_of(config: ExtractConfig, answer: LlmText) -> str | None:
    return (answer.model or config.model or "")[:MAX_NAME] or None
