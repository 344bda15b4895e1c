"""The conditions of lists of sessions on PostgreSQL, for slim rows."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from voicemem.store.records import SessionFilter
from voicemem.store.stream_rows import label_digest

FILTERS = {
    "state": "s.state = ${}",
    "user_id": "s.user_id = ${}",
    "label": "exists (select 1 from labels l where l.stream = s.key and l.digest = ${})",
    "channel": "s.channel = ${}",
    "started_after": "s.started_ms > ${}",
    "started_before": "s.started_ms < ${}",
    "interrupted": "(coalesce(s.interruptions, 0) > 0) = ${}",
    "slow_ms": "s.slowest_ms >= ${}",
    "webhook": "exists (select 1 from deliveries x where x.stream = s.key and x.state = ${})",
    "keys": "s.key = any(${}::bigint[])",
    "after": "(s.started_ms, s.key) < (${}, ${})",
}
"""The condition of each field of a `SessionFilter` that is set; a field with two marks is a pair."""
IS_LISTED = "s.project = $1 and s.kind = $2 and s.state <> 'erased'"


def clauses_of(wanted: SessionFilter, fields: Iterable[str], values: list[Any]) -> list[str]:
    """The conditions of those of these fields that are set; their values are added to those that are given."""
    clauses = []
    for field in fields:
        value: Any = getattr(wanted, field)
        if value is None:
            continue
        if field == "label":
            value = label_digest(*value)
        elif field == "keys":
            value = [*value]
        given = value if isinstance(value, tuple) else (value,)
        clauses.append(FILTERS[field].format(*range(len(values) + 1, len(values) + 1 + len(given))))
        values.extend(given)
    return clauses
