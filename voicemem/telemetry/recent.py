"""Metrics of the last seconds: rates and percentiles for people who look now, without a Prometheus."""

import asyncio
import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import pairwise
from typing import NamedTuple

from prometheus_client import Counter, Histogram

from voicemem.telemetry.metrics import Metrics

SAMPLE_EVERY_S = 1.0
SPAN_S = 60.0
Buckets = tuple[float, ...]


class Sample(NamedTuple):
    """The counters at one moment; buckets are cumulative, the last one counts all."""

    at_s: float
    counts: dict[str, float]
    ack: Buckets
    commit: Buckets


class RecentMetrics:
    """Samples of the metrics of the last minute. `clock` is monotonic, in seconds."""

    def __init__(self, metrics: Metrics, clock: Callable[[], float] = time.monotonic) -> None:
        self.metrics = metrics
        self.clock = clock
        self.started_s = clock()
        self.samples: deque[Sample] = deque([self.read()])

    @property
    def uptime_s(self) -> float:
        return self.clock() - self.started_s

    def read(self) -> Sample:
        metrics = self.metrics
        counts = {
            "events": count(metrics.ingest_events, result="stored"),
            "refused": count(metrics.ingest_events, result="refused"),
            "bytes": count(metrics.ingest_bytes),
            "commits": count(metrics.commits, result="committed"),
            "webhooks": count(metrics.webhook_attempts),
            "webhooks_failed": count(metrics.webhook_attempts) - count(metrics.webhook_attempts, result="delivered"),
            "llm_calls": count(metrics.llm_calls),
            "llm_failed": count(metrics.llm_calls, result="failed"),
        }
        return Sample(self.clock(), counts, buckets(metrics.ack_latency_seconds), buckets(metrics.commit_seconds))

    def sample(self) -> Sample:
        """Note the counters as they are now, and forget what is older than a minute."""
        now = self.read()
        self.samples.append(now)
        while len(self.samples) > 1 and self.samples[1].at_s <= now.at_s - SPAN_S:
            self.samples.popleft()
        return now

    def since(self, span_s: float) -> Sample:
        start = self.clock() - span_s
        return next((sample for sample in reversed(self.samples) if sample.at_s <= start), self.samples[0])

    def rates(self, span_s: float) -> dict[str, float]:
        before, now = self.since(span_s), self.read()
        lasted = max(now.at_s - before.at_s, SAMPLE_EVERY_S)
        return {name: (value - before.counts[name]) / lasted for name, value in now.counts.items()}

    def ack_ms(self, share: float) -> float | None:
        """Return the percentile of the last minute's ack latencies, in ms; None when there were none."""
        return percentile_ms(self.metrics.ack_latency_seconds, self.since(SPAN_S).ack, share)

    def commit_ms(self, share: float) -> float | None:
        return percentile_ms(self.metrics.commit_seconds, self.since(SPAN_S).commit, share)


def count(counter: Counter, **labels: str) -> float:
    (family,) = counter.collect()
    return sum(sample.value for sample in family.samples if labels.items() <= sample.labels.items())


def buckets(histogram: Histogram) -> Buckets:
    (family,) = histogram.collect()
    return tuple(sample.value for sample in family.samples if sample.name.endswith("_bucket"))


def percentile_ms(histogram: Histogram, before: Buckets, share: float) -> float | None:
    (family,) = histogram.collect()
    bounds = [float(sample.labels["le"]) for sample in family.samples if sample.name.endswith("_bucket")]
    seconds = percentile(bounds, [now - then for now, then in zip(buckets(histogram), before, strict=True)], share)
    return None if seconds is None else 1000 * seconds


def percentile(bounds: Sequence[float], counts: Sequence[float], share: float) -> float | None:
    """Return a percentile of cumulative buckets, spread evenly within each; beyond them, the last finite bound."""
    if not counts or counts[-1] <= 0:
        return None
    rank = share * counts[-1]
    if rank <= counts[0]:
        return bounds[0] * rank / counts[0]
    for (low, below), (high, upto) in pairwise(zip(bounds, counts, strict=True)):
        if rank <= upto:
            return low if high == float("inf") else low + (high - low) * (rank - below) / (upto - below)
    return bounds[-1]


async def sample_forever(recent: RecentMetrics) -> None:
    while True:
        await asyncio.sleep(SAMPLE_EVERY_S)
        recent.sample()


MEASURE_EVERY_S = 0.25


async def measure_loop_lag_forever(lag_seconds: Histogram) -> None:
    """Background task: sleep for a moment, again and again, and observe how much later than asked it wakes up."""
    while True:
        began = time.monotonic()
        await asyncio.sleep(MEASURE_EVERY_S)
        lag_seconds.observe(max(0.0, time.monotonic() - began - MEASURE_EVERY_S))
