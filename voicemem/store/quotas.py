"""Quotas and reserved names: what clients may begin and store, decided in one place for every way in (docs/limits.md).

Names of producers are checked when one is opened or restored. Quotas are checked in the transaction that they bound, so
no two clients can both get the last of something, on any node.
"""

from collections.abc import Callable
from typing import Protocol

from voicemem.errors import QuotaExceeded, Refused
from voicemem.store.database import Connection
from voicemem.store.records import Quotas

OWN_PRODUCERS = frozenset({"agora.rest", "api", "gateway"})
OWN_SUFFIXES = (".hooks", ".observer")
"""Suffixes to the names of dialects: producers of inbound webhooks and of observed calls."""


def check_producer(name: str) -> str:
    """Return the name of a client's producer. Raises `Refused` (`invalid_field`) for one of the service's own.

    The service journals events without a seq under those: a client that numbers events would have them refused.
    """
    if name in OWN_PRODUCERS or name.endswith(OWN_SUFFIXES):
        raise Refused("invalid_field", f"The producer name {name} is reserved for the service; use another one.")
    return name


DAY_MS = 86_400_000
COUNT_OPEN = """
    select count(*) from (select 1 from streams where {whose} and state = 'running' limit :most) c
"""
COUNT_BEGUN = """
    select count(*) from (
        select key from (select key from streams where {whose} and started_ms >= :since limit :most) a
        union select key from (select key from streams where {whose} and restored_ms >= :since limit :most) b
    ) c
"""
"""Each reads indexes only, and at most as many entries as the quota. A restored session may have started long ago."""
IS_OWN, IS_OF_KEY = "project = :name and kind = 'session'", "key_id = :name and key_id is not null"
SELECT_QUOTAS_OF_KEY = "select open_sessions, sessions_per_day from keys where id = :id"
SELECT_KEY_ID = "select key_id from streams where key = :key"


class AdmittingRows(Protocol):
    """The rows of a transaction, as far as quotas need them."""

    connection: Connection
    quotas: Quotas
    count_quota_refusal: Callable[[str], None]

    def admit_bytes(self, project: str) -> None: ...


def admit_session(rows: AdmittingRows, project: str, key_id: str | None, now_ms: int) -> None:
    """Raise `QuotaExceeded` if the project, or the key, may not begin another session now; a refusal is counted."""
    rows.admit_bytes(project)
    check_quotas(rows, project, key_id, now_ms)


def may_run_again(rows: AdmittingRows, project: str, key: int) -> bool:
    """Return whether an ended session may run again besides the open ones; a refusal is counted."""
    (key_id,) = rows.connection.one(SELECT_KEY_ID, key=key)
    try:
        check_quotas(rows, project, key_id, None)
    except QuotaExceeded:
        return False
    return True


def check_quotas(rows: AdmittingRows, project: str, key_id: str | None, now_ms: int | None) -> None:
    """Check the quotas of a project and its key; without a time, only those of open sessions. Count a refusal."""
    own = None if key_id is None else rows.connection.row(SELECT_QUOTAS_OF_KEY, id=key_id)
    try:
        for whose, name, quotas in (("project", project, rows.quotas), ("key", key_id or "", Quotas(*(own or ())))):
            bounds = Quotas(open=quotas.open) if now_ms is None else quotas
            check_sessions(rows, bounds, whose, name, now_ms or 0)
    except QuotaExceeded as exceeded:
        rows.count_quota_refusal(exceeded.quota)
        raise


def check_sessions(rows: AdmittingRows, quotas: Quotas, whose: str, name: str, now_ms: int) -> None:
    """Raise `QuotaExceeded` if a project or a key may not have another session now."""
    midnight_ms = now_ms - now_ms % DAY_MS
    is_whose = IS_OWN if whose == "project" else IS_OF_KEY

    def has(query: str, most: int, **values: int) -> bool:
        return bool(rows.connection.one(query.format(whose=is_whose), name=name, most=most, **values)[0] >= most)

    if quotas.open or quotas.per_day:
        rows.connection.lock(f"sessions of {whose} {name}")
    if quotas.open and has(COUNT_OPEN, quotas.open):
        raise QuotaExceeded(
            "open_sessions", f"The {whose} may have {quotas.open} open sessions (open_sessions); end one first."
        )
    if quotas.per_day and has(COUNT_BEGUN, quotas.per_day, since=midnight_ms):
        raise QuotaExceeded(
            "sessions_per_day",
            f"The {whose} may begin {quotas.per_day} sessions a day (sessions_per_day), from midnight UTC on.",
            (midnight_ms + DAY_MS - now_ms) / 1000,
        )
