"""Columns and conditions of streams on SQLite, for classes that are not written over the seam."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import msgspec

from voicemem.store.records import CLIENT_ID_LABEL, SessionFilter
from voicemem.store.streams import Stream

STORED_COLUMNS = ", ".join(Stream.__struct_fields__)
"""The columns of `streams`; `position` is that of the last time the row was saved."""
POSITION = (
    "max(position, ifnull((select j.position + j.count - 1 from journal j where j.stream = streams.key"
    " order by j.position desc limit 1), 0))"
)
"""Where the journal ends."""
STREAM_COLUMNS = STORED_COLUMNS.replace("position", POSITION)
"""The same, but with the position at which the journal ends."""
IN_PROJECT = "project = ? and kind = ?"
IS_LISTED = f"{IN_PROJECT} and state != 'erased'"
"""The condition of the index by start. Where a state is asked for, the index by state leads to fewer sessions."""
SESSION_FILTERS = {
    "state": "state = ?",
    "user_id": "streams.user_id = ?",
    "label": "exists (select 1 from json_each(config, '$.labels') where key = ? and value = ?)",
    "channel": "json_extract(config, '$.channel') = ?",
    "started_after": "started_ms > ?",
    "started_before": "started_ms < ?",
    "interrupted": "(ifnull(interruptions, 0) > 0) = ?",
    "slow_ms": "slowest_ms >= ?",
    "webhook": "exists (select 1 from deliveries x where x.stream = streams.key and x.state = ?)",
    "keys": "streams.key in (select value from json_each(?))",
    "after": "(started_ms, key) < (?, ?)",
}
"""The condition of each field of a `StreamFilter` that is set; a field with two marks is a pair."""
HAS_CLIENT_ID = f"""case when json_valid(cast(config as text))
    then json_extract(cast(config as text), '$.labels."{CLIENT_ID_LABEL}"') end = ?"""
"""The same for the label that has an index."""


def clauses_of(wanted: SessionFilter, fields: Iterable[str]) -> tuple[list[str], list[Any]]:
    """The conditions of those of these fields that are set, and their values."""
    clauses: list[str] = []
    values: list[Any] = []
    for field in fields:
        clause, value = SESSION_FILTERS[field], getattr(wanted, field)
        if field == "label" and value is not None and value[0] == CLIENT_ID_LABEL:
            clause, value = HAS_CLIENT_ID, value[1]
        elif field == "keys" and value is not None:
            value = msgspec.json.encode(value).decode()
        if value is not None:
            clauses.append(clause)
            values.extend(value if isinstance(value, tuple) else (value,))
    return clauses, values
