"""The names of metrics."""

from __future__ import annotations

import re

from tests.support.rows import every_row
from voicemem.telemetry.metrics import Metrics


@every_row("name", sorted(name for name, _, _ in Metrics().describe()))
def test_names_follow_prometheus_rules(name: str) -> None:
    """One prefix, lower case, base units in the plural, and no unit that Prometheus does not use."""
    assert re.fullmatch(r"voicemem_[a-z_]+", name)
    assert not re.search(r"_(ms|millis|kb|mb|kib|mib|minutes)(_|$)", name)


def test_dashboards_find_the_names_that_they_know() -> None:
    """Names and labels of the metrics that dashboards and alerts are made of stay as they are."""
    known = {name: labels for name, labels, _ in Metrics().describe()}
    expected = {
        "ingest_events_total": ("kind", "result"),
        "ingest_bytes_total": (),
        "ack_latency_seconds": (),
        "commit_batch_rows": (),
        "commit_seconds": (),
        "connections": ("kind",),
        "connections_rejected_total": ("reason",),
        "sessions": ("state",),
        "resume_total": ("result",),
        "outbox_pending": (),
        "outbox_oldest_seconds": (),
        "webhook_attempts_total": ("result",),
        "db_wal_bytes": (),
    }
    assert expected == {name: known.get(f"voicemem_{name}") for name in expected}
