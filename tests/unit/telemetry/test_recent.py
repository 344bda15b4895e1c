"""Rates and percentiles of the last minute."""

# ruff: noqa: SIM300 (asserts read `expected == actual`)
from __future__ import annotations

import pytest

from voicemem.telemetry.metrics import Metrics
from voicemem.telemetry.recent import RecentMetrics, percentile


def test_rates_are_of_their_span() -> None:
    """What came before the span does not count in it; before there is so much to look back at, all counts."""
    metrics, now = Metrics(), [0.0]
    recent = RecentMetrics(metrics, lambda: now[0])
    for second in range(1, 121):
        now[0] = float(second)
        metrics.count_commit({("http", "stored"): 10 if second <= 110 else 30}, 10, 100)
        recent.sample()
    assert (30.0, 1.0) == (recent.rates(10)["events"], recent.rates(10)["commits"])
    assert pytest.approx(800 / 60) == recent.rates(60)["events"]
    assert (120.0, True) == (recent.uptime_s, len(recent.samples) <= 62)


def test_percentiles_are_of_the_last_minute() -> None:
    """They are null when nothing happened, and know nothing of what was before."""
    metrics, now = Metrics(), [0.0]
    recent = RecentMetrics(metrics, lambda: now[0])
    assert recent.ack_ms(0.5) is None
    metrics.ack_latency_seconds.observe(2)
    assert 1000 < (recent.ack_ms(0.5) or 0) <= 2500
    for now[0] in (40.0, 100.0):
        recent.sample()
    metrics.ack_latency_seconds.observe(0.0004)
    assert 0 < (recent.ack_ms(0.99) or 0) <= 0.5


def test_a_percentile_within_a_bucket() -> None:
    """It is as far into the bucket as its share of what is there; beyond the last bound it is that bound."""
    bounds = [1.0, 2.0, float("inf")]
    assert [0.5, 1.5, 2.0] == [percentile(bounds, [10, 20, 40], share) for share in (0.125, 0.375, 0.9)]
    assert percentile(bounds, [0, 0, 0], 0.5) is None
