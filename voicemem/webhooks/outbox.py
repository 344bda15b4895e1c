"""The outbox: delivers webhook events to their endpoints, at least once (docs/webhook.md).

The payload of a webhook event, with Agora's numbers and fields, is made once, from the journal up to one position, and
frozen; each attempt puts an envelope around it.
"""

import asyncio
import logging
import re
from collections import Counter
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from datetime import UTC
from email.utils import parsedate_to_datetime
from functools import partial
from typing import Any, Literal, NamedTuple
from urllib.parse import urlsplit

import msgspec
import orjson
from msgspec import Raw, Struct
from msgspec.structs import asdict, replace

from voicemem.backoff import spread
from voicemem.config import session as config
from voicemem.config.session import Contents
from voicemem.errors import SessionQuarantined, StoreUnavailable
from voicemem.exports.call import CallFacts, call_of
from voicemem.exports.vcon import vcon_object
from voicemem.protocol.memories import Analysis
from voicemem.protocol.pieces import WHOLE_ENCODER, object_parts
from voicemem.runtime import NodeIdentity, Runtime
from voicemem.sessions.off_loop import next_piece
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel, spoken
from voicemem.store.memories import MemoryRow
from voicemem.store.outbox import Attempt, ClaimedDelivery, Endpoint, FrozenPayload, PayloadPending
from voicemem.store.port import Store
from voicemem.transcript.history import tool_uses
from voicemem.transcript.messages import Message
from voicemem.transcript.state import Latency, State
from voicemem.transcript.turns import compact_number, is_end_to_end, reply_after, turn_report
from voicemem.webhooks.complete_turns import MAX_TURNS, SentTurns, complete_turns_payload

END_MESSAGES = {"idle": "Idle for too long", "max_duration": "Task lifetime limit exceeded"}
"""Agora's sentence for the end of a session, by voicemem's reason."""
LATENCY_ALIASES = {"llm_ttft": "llm_ttfb"}
"""Latencies that have another name at Agora."""
STANDARD_LATENCIES = ("asr_ttlw", "llm_ttfb", "llm_ttfs", "tts_ttfb")
"""The latencies in Agora's webhook events."""
HEALTH_CHECK = orjson.dumps({"channelName": "test_webhook", "uid": 12121212})
HEALTH_CHECK_SID = "test_webhook"
PRODUCT_ID = 17
"""Agora's number for conversational agents, in every envelope."""


def session_fields(
    session_id: str, name: str | None, channel: str | None, labels: dict[str, str], started_ms: int
) -> dict[str, Any]:
    """Return the fields that every payload has about its session; times are Unix seconds."""
    return {
        "agent_id": session_id,
        "name": name or "",
        "channel": channel or "",
        "start_ts": started_ms // 1000,
        "labels": labels,
    }


def left_payload(session: dict[str, Any], stopped_ms: int, reason: str | None) -> bytes:
    message = END_MESSAGES.get(reason or "", "OK")
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "status": "STOPPED", "message": message})


def metrics_payload(session: dict[str, Any], stopped_ms: int, state: State, fields: Contents = "full") -> bytes:
    """Return the latencies of each turn that has any, in ms; with `standard` only those that Agora has."""
    metrics = []
    for turn in state.each_turn():
        latencies = latencies_of(turn.latencies or ())
        if fields == "standard":
            latencies = {name: latencies[name] for name in STANDARD_LATENCIES if name in latencies}
        elif (after := reply_after(state, turn)).ms is not None:
            latencies["reply_after_ms"] = after.ms
        if latencies:
            metrics.append(orjson.Fragment(orjson.dumps({"turn_id": turn.number} | latencies)))
    return orjson.dumps({**session, "stop_ts": stopped_ms // 1000, "metrics": metrics})


def latencies_of(latencies: Sequence[Latency]) -> dict[str, float]:
    """Return the newest latency of each name, in ms, without end-to-end ones."""
    newest = {
        latency.name: compact_number(latency.latency_ms) for latency in latencies if not is_end_to_end(latency.name)
    }
    newest.pop("turn_id", None)
    for ours, theirs in LATENCY_ALIASES.items():
        if ours in newest:
            newest.setdefault(theirs, newest.pop(ours))
    return newest


def turns_payload(session: dict[str, Any], stopped_ms: int, state: State, fields: Contents = "full") -> bytes:
    """Return the first turns, in the shape of `/turns` without false alarms, but with latencies by name, as in Agora's.

    With `standard` they have only what Agora's have.
    """
    first_turns = [turn_report(state, turn) for turn in state.each_turn(state.turn_numbers[:MAX_TURNS])]
    left_out = ("false_alarms", *(("reply_after_ms", "reply_after_by") if fields == "standard" else ()))
    for turn in first_turns:
        for name in left_out:
            del turn[name]
        segments = turn["metrics"]["segmented_latency_ms"]
        turn["metrics"]["segmented_latency_ms"] = {segment["name"]: segment["latency"] for segment in segments}
    return orjson.dumps(
        {
            **session,
            "stop_ts": stopped_ms // 1000,
            "total_turn_count": len(state.turn_numbers),
            "is_truncated": len(state.turn_numbers) > MAX_TURNS,
            "turns": first_turns,
        }
    )


def memories_payload(session: dict[str, Any], ids: Sequence[str], rows: Sequence[MemoryRow]) -> bytes:
    """Return changed memories, as they are now, and the ids of removed ones."""
    there = {row.id: row for row in rows if row.removed_ms is None}
    memories = [
        {name: getattr(row, name) for name in ("id", "kind", "text", "user_id", "session_id")}
        | {"created_at": row.created_ms, "updated_at": row.updated_ms, "superseded_by": row.superseded_by}
        for id in ids
        if (row := there.get(id)) is not None
    ]
    return orjson.dumps({**session, "memories": memories, "removed": [id for id in ids if id not in there]})


def history_payload(
    session: dict[str, Any],
    stopped_ms: int,
    messages: Sequence[Message],
    fields: Contents,
    more: dict[str, Any] | None = None,
) -> dict[str, Any]:
    """Return the memory at the close, and `more`; with `standard` each message has only role and content."""
    # The order of the keys is frozen: `stop_ts` comes before `labels`.
    start = {key: value for key, value in session.items() if key != "labels"}
    contents = iter(messages) if fields == "full" else map(spoken, messages)
    about = {"stop_ts": stopped_ms // 1000, "labels": session["labels"], "contents": contents}
    return {**start, **about, **(more or {})}


def tool_objects(state: State) -> Iterator[dict[str, Any]]:
    """Return the tool calls in their order, with their results; `result` and `ended` are null while there is none."""
    return (
        {
            "turn_id": tool.turn_id,
            "call_id": tool.call_id,
            "name": tool.name,
            "arguments": Raw(tool.arguments_json),
            "result": Raw(tool.result_json),
            "started": tool.timestamp,
            "ended": tool.answered_ms if tool.answered else None,
        }
        for tool in tool_uses(state, with_forgotten=True)
    )


PART_BYTES = 1024 * 1024
"""A large payload is made, kept and sent in parts of this size, so that it takes next to nothing beside its call."""
WHOLE_BYTES = PART_BYTES // 2
"""A payload of at most this size is sent as a whole."""
DAY_S = 86_400
RETRY_DELAYS_S = (0, 5, 300, 1800, 7200, 18_000, 36_000, 50_400, 72_000, DAY_S)
"""Seconds between attempts: the first entry is the pause after the first failed attempt."""
MAX_ATTEMPTS = len(RETRY_DELAYS_S) + 1
JITTER = 0.2
"""A delay is moved by at most this share, either way."""
OVERLOAD_STATUSES = frozenset({429, 502, 503, 504})
"""Statuses that say that the receiver, or a proxy before it, is overloaded."""
LOG = logging.getLogger("voicemem.webhooks")
MAX_IN_FLIGHT = 8
"""Attempts to one URL at a time, over all nodes."""
CLAIM_LIMIT = 8
"""Deliveries claimed at a time, so few that nodes share the work, and that a claim for one URL looks at few rows."""
REFILL_THRESHOLD = 5
"""While this many attempts to a URL are in flight, more are claimed only after a moment: each claim is a commit, so
several are claimed at once."""
REFILL_DELAY_S = 0.02
MAX_TASKS = 2_000
"""Attempts at a time, in all: so many that a few hundred receivers that hang do not hold up the others."""
LEASE_MS = 60_000
"""Longer than an attempt can take. What a node had claimed when it died is retried after this or at its retirement."""
FAILING_MS = 5 * DAY_S * 1000
"""A project's endpoint that has failed for this long without a success is disabled."""
QUARANTINE_DELAY_S = 600.0
"""The delay of a delivery whose session is quarantined; a refold that succeeds makes it due at once."""
PENDING_DELAY_S = 5.0
"""The delay of a delivery that waits for an analysis."""
MAX_WAIT_S = 1.0
"""The longest time between two reads of the store while nothing wakes the outbox."""


class Body(NamedTuple):
    """The body of a large request: its size, and what yields its parts, each time from the first on."""

    size: int
    parts: Callable[[], AsyncGenerator[bytes, None]]


class AttemptRequest(Struct, frozen=True):
    """One attempt to deliver one webhook event: all that a sender needs."""

    url: str
    secret: str | None
    public_only: bool
    """True for a URL that came through the API, False for one that the operator configured."""
    notice_id: str
    """One for all attempts. It must not contain `.`, which separates the parts of the signed text."""
    event_type: int
    session_id: str
    body: bytes | Body
    timestamp_s: int
    """Unix seconds of this attempt."""
    old_secret: str | None = None
    """Signs as well, while a receiver may still use the previous secret."""


class AttemptResult(Struct):
    """The result of one attempt. Either `status` or `error` is set; for a redirect both are."""

    status: int | None = None
    error: str | None = None
    """A stable short word: timeout, refused, reset, unreachable, dns, tls, address_not_allowed, redirect, invalid_url,
    bad_answer (not HTTP), error (anything else)."""
    retry_after: str | None = None
    """The Retry-After header as it came, even if it is invalid."""
    duration_ms: int = 0
    excerpt: str = ""
    """The first 256 bytes of the answer's body as text."""


Send = Callable[[AttemptRequest], Awaitable[AttemptResult]]
"""Makes one attempt; never raises for what the receiver does."""


def verdict(answer: AttemptResult) -> Literal["delivered", "retry", "gone"]:
    """Return the meaning of an answer: 2xx is success, 410 ends it, anything else (also a redirect) may pass."""
    if answer.status is not None and 200 <= answer.status < 300:
        return "delivered"
    return "gone" if answer.status == 410 else "retry"


def next_delay_s(attempts_made: int, answer: AttemptResult, jitter: float, now_s: float | None = None) -> float | None:
    """Seconds until the next attempt, at most a day; None if no attempt is left.

    `jitter` is a random number in [0, 1). `now_s` (Unix seconds) is needed for a Retry-After that is a date.
    """
    if attempts_made < 1:
        return 0.0
    if attempts_made >= MAX_ATTEMPTS:
        return None
    scheduled = spread(RETRY_DELAYS_S[attempts_made - 1], jitter, 1 - JITTER, 1 + JITTER)
    overloaded = answer.status in OVERLOAD_STATUSES or answer.error == "timeout"
    earliest = retry_after_s(answer.retry_after, now_s) or (RETRY_DELAYS_S[1] if overloaded else 0)
    # Never earlier than the receiver asks for; later by chance, so that not all sessions come back at one moment.
    return min(DAY_S, max(scheduled, earliest * (1 + JITTER * jitter)))


def retry_after_s(value: str | None, now_s: float | None) -> float:
    """Return the seconds that a Retry-After header asks for, at most a day; 0 if missing, invalid, or in the past."""
    text = (value or "").strip()
    if re.fullmatch(r"[0-9]+(\.[0-9]*)?", text):
        return min(DAY_S, float(text))
    if now_s is None:
        return 0.0
    try:
        date = parsedate_to_datetime(text)
    except (ValueError, TypeError, OverflowError):
        return 0.0
    if date.tzinfo is None:
        date = date.replace(tzinfo=UTC)
    return min(DAY_S, max(0.0, date.timestamp() - now_s))


@dataclass(eq=False)
class OutboxWorker:
    """Delivers the webhook events of one store with `send`."""

    store: Store
    read_models: ReadModelCache
    send: Send
    runtime: Runtime
    node: NodeIdentity = field(default_factory=NodeIdentity)
    in_flight: Counter[str] = field(default_factory=Counter)
    """Attempts in flight by URL: many sessions may have the same receiver."""
    find_analysis: Callable[[int], Awaitable[Analysis | None]] | None = None
    """The analysis that goes out with the messages of a session, by its key. It raises `PayloadPending`."""
    tasks: set[asyncio.Task[None]] = field(default_factory=set)
    steps: int = 0
    """How many payloads, and parts of large ones, were made: waiting for a receiver is no work."""
    wake: asyncio.Event = field(default_factory=asyncio.Event)
    in_flight_limit: int = REFILL_THRESHOLD
    """The number of attempts at which the next look at the store leaves a URL out."""
    refill_scheduled: bool = False

    async def run(self, wake: asyncio.Event) -> None:
        """Background task: deliver whatever is due. `wake` is set when there is something new."""
        self.wake = wake
        while True:
            in_flight_limit, self.in_flight_limit = self.in_flight_limit, REFILL_THRESHOLD
            with suppress(StoreUnavailable):
                while await self.start_due(in_flight_limit) == CLAIM_LIMIT:
                    in_flight_limit = REFILL_THRESHOLD
            await self.wait_for_work()

    async def finish_running(self, timeout_s: float) -> None:
        """Wait until the attempts in flight are finished, at most `timeout_s`."""
        if self.tasks:
            await asyncio.wait(self.tasks, timeout=timeout_s)

    async def wait_for_work(self) -> None:
        """Wait until something is new or has become due, or an attempt has made room."""
        while True:
            with suppress(TimeoutError):
                async with asyncio.timeout(MAX_WAIT_S):
                    await self.wake.wait()
                self.wake.clear()
                return
            with suppress(StoreUnavailable):
                due = await self.store.outbox.next_delivery_ms()
                if due is not None and due <= self.runtime.clock():
                    self.refill()

    def refill(self) -> None:
        """Look at the store again, and fill every free place."""
        self.in_flight_limit, self.refill_scheduled = MAX_IN_FLIGHT, False
        self.wake.set()

    async def start_due(self, in_flight_limit: int = MAX_IN_FLIGHT) -> int:
        """Claim and start due deliveries to URLs with fewer attempts than `in_flight_limit`; return their number.

        The store gives no URL more than are left of `MAX_IN_FLIGHT`, over all nodes.
        """
        taken = {
            url: count if count < in_flight_limit else MAX_IN_FLIGHT for url, count in self.in_flight.items() if count
        }
        limit = min(MAX_TASKS - len(self.tasks), CLAIM_LIMIT)
        if limit <= 0:
            return 0
        claimed = await self.store.outbox.claim_deliveries(
            self.runtime.clock(), LEASE_MS, taken, limit, self.node.token, places=MAX_IN_FLIGHT
        )
        for delivery in claimed:
            self.in_flight[delivery.endpoint.url] += 1
            task = asyncio.create_task(self.deliver(delivery))
            self.tasks.add(task)
            task.add_done_callback(self.tasks.discard)
        return len(claimed)

    async def deliver(self, delivery: ClaimedDelivery) -> None:
        claimed_ms = self.runtime.clock()
        try:
            payload = await self.frozen_payload(delivery)
            started = self.runtime.clock()
            if payload is None or started - claimed_ms >= LEASE_MS:
                return  # the session has been erased, or another claim continues with the payload
            about = delivery.notice_id, delivery.event_type, delivery.header.session_id
            answer = await self.send(make_attempt_request(delivery.endpoint, *about, payload, started))
            await self.finish(delivery, answer, started)
        except SessionQuarantined:  # it waits for the session's memory; no attempt counts, and its lease is over
            due_ms = self.runtime.clock() + int(1000 * spread(QUARANTINE_DELAY_S, self.runtime.random(), 1.0, 1.2))
            with suppress(StoreUnavailable):
                await self.store.outbox.postpone_delivery(delivery, "session_set_aside", due_ms)
        except PayloadPending as pending:
            with suppress(StoreUnavailable):
                due_ms = self.runtime.clock() + int(1000 * PENDING_DELAY_S)
                await self.store.outbox.postpone_delivery(delivery, str(pending), due_ms)
        except StoreUnavailable:
            return  # the lease runs out, and the webhook event is claimed again
        finally:
            self.release(delivery.endpoint.url)

    def release(self, url: str) -> None:
        """Free the place of an attempt, and see to it that free places are filled.

        Just below the threshold several places are free, and are filled at once; above it, after a moment, when more
        attempts may have ended.
        """
        self.in_flight[url] -= 1
        left = self.in_flight[url]
        if not left:
            del self.in_flight[url]
        if left == REFILL_THRESHOLD - 1:
            self.wake.set()
        elif left >= REFILL_THRESHOLD and not self.refill_scheduled:
            self.refill_scheduled = True
            asyncio.get_running_loop().call_later(REFILL_DELAY_S, self.refill)

    async def frozen_payload(self, delivery: ClaimedDelivery) -> bytes | Body | None:
        """Return the payload of a webhook event, made and stored at its first attempt. Raises as `make_payload`.

        None if the session was erased, or another claim makes it.
        """
        made, frozen = None, delivery.payload
        if frozen is None:
            made = await self.make_payload(delivery)
            self.steps += 1
            if isinstance(made, bytes):
                frozen = await self.store.outbox.freeze_payload(delivery, made)
            else:
                frozen = await self.freeze_parts(delivery, made)
        if frozen is None:
            return None
        parts = partial(self.store.outbox.parts_of, frozen)
        if frozen.size > WHOLE_BYTES:
            return Body(frozen.size, parts)
        return made if frozen.is_new and isinstance(made, bytes) else b"".join([part async for part in parts()])

    async def freeze_parts(self, delivery: ClaimedDelivery, made: Iterator[bytes]) -> FrozenPayload | None:
        freeze = partial(self.store.outbox.freeze_payload, delivery)
        next_part = partial(next_piece, made, PART_BYTES)
        perform = partial(self.read_models.perform, delivery.stream, None, next_part, off_loop=True, background=True)
        part, before = await perform(), 0
        while following := await perform():
            self.steps += 1
            await freeze(part, before=before, is_last=False)
            part, before = following, before + len(part)
        return await freeze(part, before=before)

    async def make_payload(self, delivery: ClaimedDelivery) -> bytes | Iterator[bytes]:
        """Return the payload of a webhook event, from the journal up to the close; later events do not change it.

        A large one comes in parts, made when they are asked for. Raises `SessionQuarantined`, `StoreUnavailable`,
        `PayloadPending`.
        """
        header, contents = delivery.header, delivery.endpoint.contents
        include = delivery.endpoint.include
        session = session_fields(header.session_id, header.name, header.channel, header.labels, header.started_ms)
        if "user_id" in include:
            session["user_id"] = header.user_id
        match delivery.event_type:
            case config.STARTED_EVENT:
                return orjson.dumps(session)
            case config.LEFT_EVENT:
                return left_payload(session, header.stopped_ms, header.reason)
            case config.MEMORIES_EVENT:
                rows = await self.store.memories.find_memories(header.project, header.memories)
                return memories_payload(session | {"user_id": header.user_id}, header.memories, rows)
            case config.COMPLETE_TURNS_EVENT:
                before = await self.store.outbox.payload_before(delivery)
                sent = [] if before is None else [part async for part in self.store.outbox.parts_of(before)]
                after = msgspec.json.decode(b"".join(sent), type=SentTurns).through_turn if sent else -1
                write_turns = partial(complete_turns_payload, session | {"user_id": header.user_id}, after)
                place = delivery.stream, delivery.position
                return await self.read_models.compute_as_of(*place, write_turns, background=True, or_later=True)

        has_analysis = "analysis" in include and delivery.event_type == config.HISTORY_EVENT
        analysis = await self.find_analysis(delivery.stream) if has_analysis and self.find_analysis else None

        def write(read_model: ReadModel) -> bytes | Iterator[bytes]:
            if delivery.event_type == config.HISTORY_EVENT and contents == "vcon":
                about_call = {name: one for name, one in asdict(header).items() if name in CallFacts.__struct_fields__}
                facts = CallFacts(state="ended", ended_ms=header.stopped_ms, **about_call)
                call = call_of(facts, read_model.timed_messages(), read_model.state, read_model.messages())
                vcon = vcon_object(replace(call, analysis=analysis or {}))
                payload = {**session, "stop_ts": header.stopped_ms // 1000, "vcon": vcon}
            elif delivery.event_type == config.HISTORY_EVENT:
                more: dict[str, Any] = {"tools": tool_objects(read_model.state)} if "tools" in include else {}
                if has_analysis:
                    more["analysis"] = analysis
                payload = history_payload(session, header.stopped_ms, read_model.messages(), contents, more)
            elif delivery.event_type == config.METRICS_EVENT:
                return metrics_payload(session, header.stopped_ms, read_model.state, contents)
            else:
                return turns_payload(session, header.stopped_ms, read_model.state, contents)
            return object_parts(payload) if read_model.has_large_answer else WHOLE_ENCODER.encode(payload)

        return await self.read_models.compute_as_of(delivery.stream, delivery.position, write, background=True)

    async def finish(self, delivery: ClaimedDelivery, answer: AttemptResult, started_ms: int) -> None:
        attempt = Attempt(started_ms, answer.duration_ms, answer.status, answer.error, answer.excerpt)
        match verdict(answer):
            case "delivered":
                await self.store.outbox.finish_delivery(delivery, attempt, "delivered", None)
            case "gone":
                which = describe_endpoint(delivery), delivery.notice_id
                LOG.warning("%s is disabled: it answered 410 to event %s", *which)
                await self.store.outbox.finish_delivery(delivery, attempt, "failed", None)
                await self.store.endpoints.disable_endpoint(delivery.endpoint, self.runtime.clock())
            case "retry":
                await self.finish_failed(delivery, attempt, answer)

    async def finish_failed(self, delivery: ClaimedDelivery, attempt: Attempt, answer: AttemptResult) -> None:
        """Record a failed attempt and when the next one is due, if any is left."""
        now = self.runtime.clock()
        attempts_made = delivery.attempts + 1 - delivery.restarted_at
        delay = next_delay_s(attempts_made, answer, self.runtime.random(), now // 1000)
        due = None if delay is None else now + int(delay * 1000)
        outcome = "given up" if delay is None else f"the next in {delay:.0f} s"
        which = describe_endpoint(delivery), delivery.attempts + 1, delivery.notice_id, delivery.header.session_id
        why = answer.error or answer.status
        LOG.warning("%s: attempt %d of event %s of session %s failed (%s), %s", *which, why, outcome)
        await self.store.outbox.finish_delivery(delivery, attempt, "pending" if due else "failed", due)
        if due == now:
            self.wake.set()
        since = delivery.endpoint.failing_since_ms
        if (
            since is not None
            and since <= now - FAILING_MS
            and await self.store.endpoints.disable_failing(delivery.endpoint.key, now - FAILING_MS, now)
        ):
            whose = describe_endpoint(delivery), delivery.notice_id
            LOG.warning("%s is disabled: it failed for days, last for event %s", *whose)


def describe_endpoint(delivery: ClaimedDelivery) -> str:
    """Return the endpoint of a delivery for the log: its owner and host, since a path or query may hold secrets."""
    endpoint = delivery.endpoint
    whose = f"Webhook {endpoint.id}" if endpoint.id else "The operator's webhook"
    if endpoint.stream is not None:
        whose = f"The webhook of session {delivery.header.session_id}"
    return f"{whose} to {url_host(endpoint.url)}"


def url_host(url: str) -> str:
    """Return the host of a URL, without path and query, which may hold a secret."""
    try:
        return urlsplit(url).hostname or ""
    except ValueError:
        return ""


def enclosed(before: bytes, body: Body, after: bytes) -> Body:
    """Return a body with bytes before and after it."""

    async def parts() -> AsyncGenerator[bytes, None]:
        yield before
        async for part in body.parts():
            yield part
        yield after

    return Body(len(before) + body.size + len(after), parts)


def make_attempt_request(
    endpoint: Endpoint, notice_id: str, event_type: int, session_id: str, payload: bytes | Body, now_ms: int
) -> AttemptRequest:
    """Return an attempt with a frozen payload, whose bytes stay unchanged: only `notifyMs` differs between attempts."""
    overlap = now_ms < (endpoint.old_secret_until_ms or 0)
    envelope = {"noticeId": notice_id, "productId": PRODUCT_ID, "eventType": event_type, "notifyMs": now_ms}
    before, after = orjson.dumps(envelope | {"sid": session_id})[:-1] + b',"payload":', b"}"
    return AttemptRequest(
        url=endpoint.url,
        secret=endpoint.secret,
        public_only=endpoint.public_only,
        notice_id=notice_id,
        event_type=event_type,
        session_id=session_id,
        body=before + payload + after if isinstance(payload, bytes) else enclosed(before, payload, after),
        timestamp_s=now_ms // 1000,
        old_secret=endpoint.old_secret if overlap else None,
    )
