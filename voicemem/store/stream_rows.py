"""Rows of streams: their columns, where their journals end, and the records made of them."""

from __future__ import annotations

from typing import Any

import msgspec

from voicemem.errors import StoreUnavailable
from voicemem.store.database import Row
from voicemem.store.streams import Stream

STORED_COLUMNS = ", ".join(f"s.{name}" for name in Stream.__struct_fields__)
"""The columns of `streams` s; `position` is that of the last time the row was saved."""
POSITION = """greatest(s.position, coalesce((
    select j.position + j.count - 1 from journal j where j.stream = s.key order by j.position desc limit 1
), 0))"""
"""Where the journal ends."""
STREAM_COLUMNS = STORED_COLUMNS.replace("s.position", POSITION)
"""The same, but with the position at which the journal ends."""
CONFIG_INDEX = Stream.__struct_fields__.index("config")


def to_stream(row: Row) -> Stream:
    """The stream of a row of `STREAM_COLUMNS`. Raises `StoreUnavailable` for a damaged one."""
    values: list[Any] = list(row)
    try:
        config = msgspec.json.decode(values[CONFIG_INDEX], type=dict[str, Any])
    except (msgspec.DecodeError, UnicodeDecodeError):
        raise StoreUnavailable("The configuration of the session is damaged in the store.") from None
    values[CONFIG_INDEX], values[-1] = config, bool(values[-1])
    return Stream(*values)
