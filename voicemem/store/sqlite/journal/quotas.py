"""The quotas of projects, checked in the transaction that begins a session: two callers cannot both get the last."""

from __future__ import annotations

import apsw

from voicemem.errors import QuotaExceeded
from voicemem.store.records import SessionQuotas

DAY_MS = 86_400_000
IS_OWN = "project = ? and kind = 'session'"
COUNT_OPEN = f"select count(*) from (select 1 from streams where {IS_OWN} and state = 'running' limit ?)"
COUNT_SINCE = f"select count(*) from (select 1 from streams where {IS_OWN} and started_ms >= ? limit ?)"
"""Both read an index only, and no more of it than the quota."""


def check_quotas(connection: apsw.Connection, quotas: SessionQuotas, project: str, now_ms: int) -> None:
    """Raise `QuotaExceeded` if the project may not begin another session now."""
    if quotas.open and count(connection, COUNT_OPEN, project, quotas.open) >= quotas.open:
        raise QuotaExceeded(f"The project may have {quotas.open} open sessions (open_sessions); end one first.")
    midnight_ms = now_ms - now_ms % DAY_MS
    if quotas.per_day and count(connection, COUNT_SINCE, project, midnight_ms, quotas.per_day) >= quotas.per_day:
        raise QuotaExceeded(
            f"The project may begin {quotas.per_day} sessions a day (sessions_per_day), from midnight UTC on.",
            (midnight_ms + DAY_MS - now_ms) / 1000,
        )


def count(connection: apsw.Connection, query: str, *values: str | int) -> int:
    ((number,),) = connection.execute(query, values)
    return int(number)
