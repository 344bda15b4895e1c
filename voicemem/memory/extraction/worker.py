"""Extraction in the background: of calls that end or pause, and on request.

No node owns a session. The node that notices that one is due claims it, and its result counts only if no other node
was first (`extractor`). If a process ends before its work, the next check finds it by position: the store knows up to
which position each session was read.
"""

import asyncio
import logging
from collections.abc import Awaitable, Callable
from contextlib import suppress
from typing import NamedTuple

from msgspec import Struct

from voicemem.backoff import exponential_s, spread
from voicemem.config.context import ExtractConfig
from voicemem.config.session import parse_config
from voicemem.context.policy_registry import Policies
from voicemem.errors import Refused, SessionQuarantined, StoreUnavailable, VoicememError
from voicemem.llm.background import ConcurrencyLimiter
from voicemem.memory.extraction.extractor import MAX_CALLS, ExtractionState, Extractor, StateName
from voicemem.memory.extraction.prompts import said_between
from voicemem.protocol.memories import Analysis
from voicemem.runtime import NodeIdentity, Runtime, cancel_all
from voicemem.search.passages import DAY_MS
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.nodes import EXTRACTION
from voicemem.store.outbox import PayloadPending
from voicemem.store.streams import SESSION_KIND, Stream
from voicemem.transcript.messages import Extracted

LOG = logging.getLogger("voicemem.extraction")
LOOK_INTERVAL_S = 0.5
IDLE_MS, FEWEST_AT_IDLE = 60_000, 6
"""A call pauses when nothing was journaled for so long; it must have so many new lines."""
CHECK_INTERVAL_S = 300.0
"""The time between two checks of all sessions on a store with several nodes, one of which may have died."""
CHECKED_AT_ONCE = 200
MAX_LATE_MS = 2 * 86_400_000
"""Sessions that became due longer ago are left out, unless requested: who turns extraction on, or changes labels of
old calls, does not want to pay for all calls that there ever were."""
MAX_PAUSE_S = 1.0
"""The longest pause after a step of that check; a pause is as long as the step."""
MAX_AWAITED_MS = 120_000
"""How long a webhook event waits for an analysis."""
CLAIM_MS = 900_000
"""How long a node may take for one section, unless it is retired before."""
ELSEWHERE_MS = 1_000
"""How soon to look again at a session that another node has claimed."""
MIN_RETRY_S, MAX_RETRY_S = 1.0, 60.0
FAILING_AFTER, MAX_FAILURES = 6, 12
"""Failures in a row after which a session is failing, and after which it is left alone until it gets new events."""
FAILING_RETRY_MS = 3_600_000
"""The time between two attempts for a failing session."""


class Waiting(NamedTuple):
    """A session that has changed, and when it is due, Unix ms."""

    project: str
    session_id: str
    changed_ms: int
    due_ms: int
    is_requested: bool = False


class Job(Struct):
    """The work on one session, or its last result."""

    task: asyncio.Task[None] | None = None
    failures: int = 0
    error: str | None = None
    is_out_of_budget: bool = False


class ExtractionWorker:
    """Starts extractions when they are due."""

    def __init__(
        self,
        extractor: Extractor,
        policies: Policies,
        limiter: ConcurrencyLimiter,
        runtime: Runtime,
        save_figures: Callable[[Stream], Awaitable[None]],
        node: NodeIdentity | None = None,
    ) -> None:
        """`save_figures` saves the figures of a session in lists, which include its outcome."""
        self.extractor = extractor
        self.save_figures = save_figures
        self.store = extractor.store
        self.policies = policies
        self.limiter = limiter
        self.clock = runtime.clock
        self.random = runtime.random
        self.node = node or NodeIdentity()
        self.changed: dict[int, Stream] = {}
        """Sessions that have changed since the last check, by key."""
        self.waiting: dict[int, Waiting] = {}
        """Sessions that are to be checked, by key."""
        self.jobs: dict[int, Job] = {}

    # Scheduling

    def config_of(self, stream: Stream) -> ExtractConfig | None:
        """Return the settings for extraction of a session; None if nothing is extracted."""
        if not self.is_everywhere and "memory" not in stream.config:
            return None
        config = parse_config(stream.config)
        extract = self.policies.resolve(config.memory).extract
        if extract is None or extract.strategy == "none":
            return None
        return extract if config.llm.url is not None or self.extractor.llm.endpoints.default is not None else None

    @property
    def is_everywhere(self) -> bool:
        return self.policies.default.extract is not None

    def note(self, stream: Stream) -> None:
        """Let a session be checked that was restored, reconfigured or missed, unless it is too old."""
        now = self.clock()
        due_ms = first_moment(stream, now)
        if stream.kind == SESSION_KIND and due_ms > now - MAX_LATE_MS and self.config_of(stream) is not None:
            self.waiting[stream.key] = Waiting(stream.project, stream.id, now, due_ms)

    def schedule_changed(self) -> None:
        """Let the sessions that have changed wait until they are due; a requested one is not delayed."""
        now = self.clock()
        while self.changed:
            key, stream = self.changed.popitem()
            if self.is_everywhere or "memory" in stream.config:
                new = Waiting(stream.project, stream.id, now, first_moment(stream, now))
                known = self.waiting.get(key, new)
                if not known.is_requested:
                    self.waiting[key] = new
                elif stream.state != "running":
                    self.waiting[key] = known._replace(due_ms=min(known.due_ms, new.due_ms))

    def ask(self, stream: Stream) -> None:
        """Let a session be checked as soon as possible. Raises `Refused` (`no_extraction`, `llm_not_configured`)."""
        memory = self.policies.resolve(parse_config(stream.config).memory)
        if memory.extract is None or memory.extract.strategy == "none":
            raise Refused("no_extraction")
        if self.config_of(stream) is None:
            raise Refused("llm_not_configured")
        job = self.jobs.get(stream.key)
        if job is not None and job.task is None:
            del self.jobs[stream.key]
        self.waiting[stream.key] = Waiting(stream.project, stream.id, self.clock(), 0, is_requested=True)

    def state_of(self, stream: Stream, extracted: Extracted | None) -> ExtractionState | None:
        """Return the progress of a session; None if nothing is extracted from it."""
        if self.config_of(stream) is None:
            return None
        self.schedule_changed()
        job, done = self.jobs.get(stream.key) or Job(), extracted or Extracted()
        state: StateName = "waiting" if stream.key in self.waiting else "current"
        if job.task is not None:
            state = "running"
        elif job.failures >= FAILING_AFTER:
            state = "failing"
        elif job.is_out_of_budget:
            state = "out_of_budget"
        elif done.calls >= MAX_CALLS:
            state = "finished"
        return ExtractionState(state, done.through, done.calls, job.failures, job.error)

    async def find_analysis(self, key: int) -> Analysis | None:
        """Return the analysis for the webhook event with the messages of a session; None if none is made.

        Raises `PayloadPending` while it is awaited, `SessionQuarantined`, `StoreUnavailable`.
        """
        stream = await self.store.journal.find_stream(key)
        config = None if stream is None or stream.kind != SESSION_KIND else self.config_of(stream)
        if stream is None or config is None or config.schema is None:
            return None
        analysis, is_read = await self.extractor.read_models.read(stream, analysis_so_far)
        if stream.state == "ended" and not is_read and self.clock() < first_moment(stream, 0) + MAX_AWAITED_MS:
            raise PayloadPending("analysis")
        return analysis

    # Running

    async def check_due(self) -> None:
        failing = sum(job.failures >= FAILING_AFTER for job in self.jobs.values())
        self.extractor.metrics.extractions_failing.set(failing)
        self.schedule_changed()
        now = self.clock()
        for key, waiting in [(key, one) for key, one in self.waiting.items() if one.due_ms <= now]:
            if key in self.jobs and self.jobs[key].task is not None:
                continue
            with suppress(StoreUnavailable):  # the session still waits
                await self.check_session(key, waiting)
            await asyncio.sleep(0)

    async def check_session(self, key: int, waiting: Waiting) -> None:
        stream = await self.store.journal.find_session(waiting.project, waiting.session_id)
        config = None if stream is None or stream.key != key else self.config_of(stream)
        if stream is None or config is None:
            if self.waiting.get(key) is waiting:
                del self.waiting[key]
            self.jobs.pop(key, None)
            return
        due_ms = 0 if waiting.is_requested else max(waiting.due_ms, first_moment(stream, waiting.changed_ms))
        if due_ms > self.clock():
            self.put_off(key, waiting, due_ms)
        elif not self.limiter.is_full(stream) and self.waiting.get(key) is waiting:
            del self.waiting[key]
            job = self.jobs.setdefault(key, Job())
            slot = self.limiter.acquire(stream)
            job.task = asyncio.create_task(self.run_job(job, stream, config, waiting))
            job.task.add_done_callback(lambda _: self.limiter.release(slot))

    def put_off(self, key: int, waiting: Waiting, due_ms: int) -> None:
        """Check a session again later, unless it already waits for a newer change; a request is kept."""
        newest = self.waiting.get(key)
        if newest is None or newest is waiting:
            self.waiting[key] = waiting._replace(due_ms=due_ms)
        elif waiting.is_requested and not newest.is_requested:
            self.waiting[key] = newest._replace(due_ms=due_ms, is_requested=True)

    async def run_job(self, job: Job, stream: Stream, config: ExtractConfig, waiting: Waiting) -> None:
        """Extract what is new in a session, unless another node does, and note success or failure."""
        node, claimed = self.node.token, False
        try:
            claimed = await self.store.claims.claim(EXTRACTION, stream.key, node, self.clock(), CLAIM_MS)
            if not claimed:
                self.put_off(stream.key, waiting, self.clock() + ELSEWHERE_MS)
            elif await self.extract(job, stream, config, waiting):
                self.jobs.pop(stream.key, None)
        except SessionQuarantined:
            self.jobs.pop(stream.key, None)  # it is checked again when something new is journaled
        except VoicememError as error:
            if error.code == "unknown_session":
                self.jobs.pop(stream.key, None)  # it was erased meanwhile
            else:
                self.schedule_retry(job, stream, waiting, error.word)
        except Exception as error:  # the edge of a background task: any failure is retried
            LOG.error("The memories of session %s failed", stream.id, exc_info=error)
            self.schedule_retry(job, stream, waiting, "internal")
        finally:
            job.task = None
            if claimed:
                with suppress(StoreUnavailable):  # then the claim runs out
                    await self.store.claims.release(EXTRACTION, stream.key, node)

    async def extract(self, job: Job, stream: Stream, config: ExtractConfig, waiting: Waiting) -> bool:
        """Send one section after another. Return False if the rest must wait for tokens."""
        job.is_out_of_budget = False
        for _ in range(MAX_CALLS + 1):
            current = await self.store.journal.find_session(stream.project, stream.id)
            if current is None:
                return True
            pauses = current.state == "running" and not waiting.is_requested
            if pauses and config.strategy == "analysis":  # an analysis is of the whole call
                return True
            step = await self.extractor.extract_next(current, config, FEWEST_AT_IDLE if pauses else 1)
            if step.result == "budget":
                job.is_out_of_budget = True
                self.put_off(stream.key, waiting, (self.extractor.budget.day + 1) * DAY_MS)  # there are tokens again
                LOG.warning("No memories of session %s: the tokens of today are spent", stream.id)
                return False
            job.failures, job.error = 0, None
            if step.result != "sent":
                if config.schema is not None:
                    await self.save_figures(current)
                await self.store.extractions.note_extracted(stream.key, step.position)
                return True
        return True

    def schedule_retry(self, job: Job, stream: Stream, waiting: Waiting, code: str) -> None:
        job.failures, job.error = job.failures + 1, code
        if job.failures >= MAX_FAILURES:
            LOG.error("No memories of session %s: %s; not trying again", stream.id, code)
            return
        wait_s = spread(exponential_s(job.failures - 1, MIN_RETRY_S, MAX_RETRY_S), self.random(), 0.5, 1.5)
        wait_ms = FAILING_RETRY_MS if job.failures >= FAILING_AFTER else int(wait_s * 1000)
        self.put_off(stream.key, waiting, self.clock() + wait_ms)
        LOG.warning("No memories of session %s: %s; trying again in %.1f s", stream.id, code, wait_ms / 1000)

    # Sessions that were missed

    async def catch_up(self) -> None:
        """Note the sessions that have grown since they were read. Raises `StoreUnavailable`."""
        time = asyncio.get_running_loop().time
        after: int | None = 0
        left = 0
        while after is not None:
            begun = time()
            check = await self.store.extractions.check_extractions(self.is_everywhere, after, CHECKED_AT_ONCE)
            self.schedule_changed()
            for stream in check.behind:
                if stream.key not in self.waiting and stream.key not in self.jobs:
                    self.note(stream)
                    left += stream.state == "ended" and stream.key in self.waiting
            after = check.through_key
            await asyncio.sleep(min(MAX_PAUSE_S, time() - begun))
        if left:
            LOG.info("Calls that ended in the last two days and are sent to the LLM for memories now: %d", left)

    async def stop(self) -> None:
        """Cancel the requests in progress; the next process repeats them."""
        await cancel_all(job.task for job in self.jobs.values() if job.task is not None)


def analysis_so_far(read_model: ReadModel) -> tuple[Analysis, bool]:
    """Return the analysis of a call, and whether everything that its callers said was read for it."""
    state = read_model.state
    done = state.extracted or Extracted()
    left = said_between(state, done.through, state.position)
    return state.analysis, done.calls >= MAX_CALLS or not any(line.is_callers for line in left)


def first_moment(stream: Stream, changed_ms: int) -> int:
    """Return when a session is due after its last change: after a pause, or once it can no longer be reopened."""
    if stream.state == "running" or stream.ended_ms is None:
        return changed_ms + IDLE_MS
    if stream.provisional:
        return stream.ended_ms + int(parse_config(stream.config).reopen_window * 1000)
    return stream.ended_ms


async def extract_forever(worker: ExtractionWorker) -> None:
    """Background task: note the sessions that were missed, then start those that are due."""
    next_check, time = 0.0, asyncio.get_running_loop().time
    while True:
        with suppress(StoreUnavailable):
            if next_check <= time():
                await worker.catch_up()
                next_check = float("inf") if worker.store.is_exclusive else time() + CHECK_INTERVAL_S
            await worker.check_due()
        await asyncio.sleep(LOOK_INTERVAL_S)
