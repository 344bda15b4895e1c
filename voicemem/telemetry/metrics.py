"""Measurements of the service: Prometheus metrics, in a registry of their own, and the port for traces.

docs/monitoring.md explains each metric. Labels have few values, known beforehand: never an id, a project, a URL or a
text; only a node names itself. Frequent things are counted once a commit, not once an event.
"""

from bisect import bisect_left
from collections import Counter as Counts
from collections import defaultdict
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, nullcontext
from itertools import accumulate, product
from typing import Any, Literal, NamedTuple, cast

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, ProcessCollector, disable_created_metrics
from prometheus_client.exposition import generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, HistogramMetricFamily, Metric
from prometheus_client.registry import Collector

from voicemem.dialects.registry import DIALECTS
from voicemem.errors import CODES
from voicemem.version import __version__

TEXT_FORMAT = "text/plain; version=0.0.4; charset=utf-8"
REFUSED_MEMORIES = (
    *("malformed", "wrong_kind", "no_lines", "unknown_lines", "unknown_memories", "too_long", "said_by_agent"),
    *("question", "greeting", "instruction", "secret", "unsupported", "repeated", "too_many"),
    *("breaks_schema", "not_said", "said_by_caller", "contradicted"),
)
INGESTED, OPENED = ("stored", "repeated", "refused"), ("created", "resumed", "reopened", "refused")
TAKEN = ("taken", "ignored", "unknown", "malformed", "repeated")
QUOTAS = ("open_sessions", "sessions_per_day", "stored_bytes")
BOUNDS = ("segments", "replies", "interruptions", "resumes", "traces", "words", "frames")
LLM_USES = ("gateway", "summary", "extraction", "embedding", "query")
METHODS = frozenset(["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"])
LAG_BUCKETS = (0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 5.0)
COMMIT_BUCKETS = (0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
REQUEST_BUCKETS = (0.001, 0.002, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 10)
ATTEMPT_BUCKETS = (0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5, 10, 15)
TOKEN_BUCKETS = (0.05, 0.1, 0.2, 0.3, 0.5, 0.75, 1, 1.5, 2, 3, 5, 10, 30)
ROW_BUCKETS = (1, 2, 5, 10, 20, 50, 100, 200, 500, 1_000, 2_000, 5_000, 10_000)


REQUESTS, REQUEST_SECONDS = "voicemem_http_requests", "voicemem_http_request_seconds"
REQUEST_LABELS = ("method", "route", "status")


class RequestMetrics(Collector):
    """Counts and times of REST requests, in plain numbers: the library's own objects cost more than some answers.

    They are read on another thread than they are counted on, so each look is at a copy.
    """

    def __init__(self) -> None:
        self.counts: Counts[tuple[str, str, int]] = Counts()
        """By method, route and status."""
        self.seconds: defaultdict[str, float] = defaultdict(float)
        """The sum, by route."""
        self.in_buckets: defaultdict[str, list[int]] = defaultdict(lambda: [0] * (len(REQUEST_BUCKETS) + 1))
        """The number of requests in each bucket, by route; the last one is for more than the largest bucket."""

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Count a request that was answered; `route` is the path with placeholders."""
        self.counts[method, route, status] += 1
        self.seconds[route] += seconds
        self.in_buckets[route][bisect_left(REQUEST_BUCKETS, seconds)] += 1

    def collect(self) -> Iterator[Metric]:
        requests = CounterMetricFamily(REQUESTS, "REST requests by route and status.", labels=REQUEST_LABELS)
        for (method, route, status), count in list(self.counts.items()):
            requests.add_metric((method, route, str(status)), count)
        yield requests
        until_end = "From the head of a REST request to the end of its response."
        times = HistogramMetricFamily(REQUEST_SECONDS, until_end, labels=REQUEST_LABELS[1:2])
        bounds = [*(str(float(bound)) for bound in REQUEST_BUCKETS), "+Inf"]
        for route, counts in list(self.in_buckets.items()):
            times.add_metric((route,), list(zip(bounds, accumulate(list(counts)), strict=True)), self.seconds[route])
        yield times


class Declared(NamedTuple):
    """The declaration of a metric, which is named for its attribute, and the known values of its labels."""

    kind: type[Counter | Gauge | Histogram]
    text: str
    labels: Mapping[str, Sequence[str]]
    more: Mapping[str, Any] = {}


def counter(text: str, **labels: Sequence[str]) -> Counter:
    """Declare a counter with the known values of its labels: these series exist from the start."""
    return cast(Counter, Declared(Counter, text, labels))


def gauge(text: str, *labels: str) -> Gauge:
    return cast(Gauge, Declared(Gauge, text, dict.fromkeys(labels, ())))


def histogram(text: str, buckets: Sequence[float], *labels: str) -> Histogram:
    return cast(Histogram, Declared(Histogram, text, dict.fromkeys(labels, ()), {"buckets": buckets}))


class Metrics:
    """Counters and histograms, which the service updates, and gauges, which are set when the metrics are read."""

    ingest_events = counter("Events, by kind of connection and result.", kind=("websocket", "http"), result=INGESTED)
    ingest_bytes = counter("Bytes of events that were stored.")
    refused_events = counter("Events that were refused, by error code.", code=())
    redacted_events = counter("Events of which something was redacted.")
    frames = counter("Frames of other stacks, by dialect and result.", dialect=tuple(DIALECTS), result=TAKEN)
    quota_refusals = counter("Sessions and events that a quota refused, by quota.", quota=QUOTAS)
    resume = counter("Producers that opened a session, by result.", result=OPENED)
    commits = counter("Commits of events, by result.", result=("committed", "failed"))
    commit_seconds = histogram("From the start of a commit to disk.", COMMIT_BUCKETS)
    commit_batch_rows = histogram("Events offered in one commit.", ROW_BUCKETS)
    ack_latency_seconds = histogram("From the first event that waited for a commit to its acks.", COMMIT_BUCKETS)
    loop_lag_seconds = histogram("How much later than asked the event loop wakes up.", LAG_BUCKETS)
    fold_ignored = counter("Events that changed no memory because of a bound, by bound.", bound=BOUNDS)
    connections_rejected = counter("Websockets that were rejected or closed, by error code.", reason=())
    connections_refused = counter(
        "Connections refused or closed because there were too many, by port.", kind=("websocket", "rest")
    )
    call_starts = counter("Questions of platforms at the start of a call, by what was known.", dialect=(), result=())
    observations = gauge("Calls that this process is observing.")
    observer_connections = counter("Connections to vendors of observed calls, by result.", dialect=(), result=())
    webhook_attempts = counter("Attempts to deliver webhooks, by result.", result=("delivered", "failed", "gone"))
    webhook_attempt_seconds = histogram("Time of an attempt to deliver a webhook.", ATTEMPT_BUCKETS)
    llm_calls = counter("LLM requests, by use and result.", use=LLM_USES, result=("answered", "failed", "cancelled"))
    vector_scans_capped = counter("Searches whose scope has more vectors than were compared.")
    llm_first_token_seconds = histogram("From an LLM request to the first token of its answer.", TOKEN_BUCKETS, "use")
    extracted_memories = counter("Memories that were made of calls.")
    refused_memories = counter("Memories that an LLM wrote and that were refused, by reason.", reason=REFUSED_MEMORIES)
    extraction_tokens = counter("Tokens that memories of calls have cost.")
    last_commit_ok = gauge("Whether the store's last commit succeeded, on each connection.")
    draining = gauge("Whether the service is shutting down.")
    connections = gauge("Open connections, by port.", "kind")
    connections_unauthenticated = gauge("Open connections that have not shown a key, by port.", "kind")
    sessions = gauge("Sessions in the store, by state.", "state")
    sessions_connected = gauge("Sessions with a websocket to this process.")
    memories = gauge("Cached memories, by state.", "state")
    memories_bytes = gauge("Approximate bytes of cached memories, by state.", "state")
    rows_bytes = gauge("Approximate bytes of sessions' rows that are kept at hand.")
    memory_budget_bytes = gauge("What memories and rows may take together.")
    evictions = counter("Memories and rows dropped to stay in the budget, by kind.", kind=("memories", "rows"))
    fold_lag_events = gauge("Events that the memory furthest behind lags by.")
    memories_lagging = gauge("Cached memories that are behind their journals.")
    sessions_set_aside = gauge("Sessions whose memory cannot be made.")
    extractions_failing = gauge("Sessions of which memories fail to be made.")
    outbox_pending = gauge("Webhooks that wait, including those whose next attempt is later.")
    outbox_due = gauge("Webhooks that are due and not being sent.")
    outbox_oldest_seconds = gauge("How long ago the oldest that is not delivered was made.")
    db_bytes = gauge("Size of the database.")
    db_wal_bytes = gauge("Size of the database's log.")
    node_info = gauge("This node of a store that may have several; always 1.", "node", "address")
    build_info = gauge("The running version; always 1.", "version")

    def __init__(self, registry: CollectorRegistry | None = None) -> None:
        disable_created_metrics()  # type: ignore[no-untyped-call]  # a second series for each metric, which only OpenMetrics gives a meaning
        self.registry = registry or CollectorRegistry()
        for name, declared in vars(Metrics).items():
            if isinstance(declared, Declared):
                make, text, labels, more = declared
                metric = make(name, text, tuple(labels), namespace="voicemem", registry=self.registry, **more)
                for values in product(*labels.values()) if labels else ():
                    metric.labels(*values)
                setattr(self, name, metric)
        self.requests = RequestMetrics()
        self.registry.register(self.requests)
        ProcessCollector(registry=self.registry)
        self.build_info.labels(__version__).set(1)

    # Updates

    def count_commit(self, counts: Mapping[tuple[str, str], int], offered: int, stored_bytes: int) -> None:
        """Count a commit that succeeded: its events by kind of connection and result, and how many were offered."""
        for labels, count in counts.items():
            if count:
                self.ingest_events.labels(*labels).inc(count)
        self.commits.labels("committed").inc()
        self.ingest_bytes.inc(stored_bytes)
        self.commit_batch_rows.observe(offered)

    def count_refused(self, code: str) -> None:
        self.refused_events.labels(code if code in CODES else "internal").inc()

    def count_quota_refusal(self, quota: str) -> None:
        self.quota_refusals.labels(quota).inc()

    def count_fold_ignored(self, bound: str, count: int) -> None:
        self.fold_ignored.labels(bound).inc(count)

    def render(self) -> bytes:
        return generate_latest(self.registry)

    def describe(self) -> Iterator[tuple[str, tuple[str, ...], str]]:
        """Yield the name, labels and type of each of the service's own metrics, as Prometheus shows them."""
        for metric in vars(self).values():
            if isinstance(metric, Counter | Gauge | Histogram):
                (family,) = metric.describe()
                name = f"{family.name}_total" if isinstance(metric, Counter) else family.name
                yield name, metric._labelnames, family.type
        yield f"{REQUESTS}_total", REQUEST_LABELS, "counter"
        yield REQUEST_SECONDS, REQUEST_LABELS[1:2], "histogram"


SpanKindName = Literal["server", "client", "internal"]
AttributeValue = str | int | bool
NO_ATTRIBUTES: Mapping[str, AttributeValue] = {}


class Span:
    """One timed operation in a trace; here one that is not recorded."""

    def set_attribute(self, key: str, value: AttributeValue) -> None: ...

    def fail(self, reason: str) -> None:
        """Mark the span as failed; `reason` is a short word, such as an error code."""


class Tracer:
    """Makes spans; here unrecorded ones: without OpenTelemetry, each use of it is an empty function.

    Names and attributes of spans contain no id, text, key, or URL with a path. An origin is where a trace comes from:
    what `origin` returns for a `traceparent` header, or `current` for the span around the caller.

    A span is a child of the span around it, or with `origins` a child of the first of these.
    """

    no_span = nullcontext(Span())

    def span(
        self,
        name: str,
        kind: SpanKindName,
        attributes: Mapping[str, AttributeValue] = NO_ATTRIBUTES,
        origins: Sequence[object] | None = None,
    ) -> AbstractContextManager[Span]:
        return self.no_span

    def request_span(self, method: str, route: str, headers: Mapping[str, str]) -> AbstractContextManager[Span]:
        """Return the span of a request to the service; `route` is the path with placeholders."""
        return self.no_span

    def origin(self, headers: Mapping[str, str]) -> object:
        """Return the origin that a request's headers name; None when they name none."""
        return None

    def current(self) -> object:
        """Return the span around the caller, as an origin; None when there is none."""
        return None

    def ids(self) -> dict[str, str]:
        """Return the `trace_id` and `span_id` of the span around the caller, for logs; empty when there is none."""
        return {}

    def headers(self) -> dict[str, str]:
        """Return the headers with which an outgoing request continues the trace."""
        return {}

    def close(self) -> None:
        """Export the spans that wait."""
