"""The outbox's port on SQLite: leases, frozen bodies, the attempt log."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Literal

import apsw
import msgspec

from voicemem.store.base import Attempt, Closing, Delivery, Endpoint, Export
from voicemem.store.sqlite.database import Database
from voicemem.store.sqlite.rows import one

EXPORT = "x.key, x.stream, x.notice_id, x.event_type, x.position, x.closing, x.payload, x.attempts, x.lease"
ENDPOINT = "e.key, e.stream, e.url, e.secret, e.contents, e.public_only, e.disabled_ms"
NOT_ERASED = "(select s.state from streams s where s.key = x.stream) != 'erased'"
"""What was erased is not sent any more, though its exports (x) may still be there for a little while."""
CLOSING = msgspec.json.Decoder(Closing)


class SqliteOutbox:
    """Exports; the methods are documented in `voicemem.store.base.Outbox`."""

    database: Database

    async def claim_exports(self, now_ms: int, lease_ms: int, busy: Sequence[str], limit: int) -> list[Export]:
        marks = ",".join("?" * len(busy))
        query = (
            f"select {EXPORT}, {ENDPOINT} from exports x join endpoints e on e.key = x.endpoint"
            f" where x.due_ms <= ? and x.leased_until_ms <= ? and e.disabled_ms is null and e.url not in ({marks})"
            f" and {NOT_ERASED}"
            " order by x.due_ms limit ?"
        )

        def job(connection: apsw.Connection) -> list[Export]:
            rows = connection.execute(query, (now_ms, now_ms, *busy, limit)).fetchall()
            exports = [to_export(row) for row in rows]
            connection.executemany(
                "update exports set lease = ?, leased_until_ms = ? where key = ?",
                [(export.lease, now_ms + lease_ms, export.key) for export in exports],
            )
            return exports

        return await self.database.write(job)

    async def release_exports(self, now_ms: int) -> None:
        query = (
            "update exports set leased_until_ms = 0, due_ms = iif(attempts = 0, min(due_ms, ?1), due_ms)"
            " where due_ms is not null and (leased_until_ms > 0 or (attempts = 0 and due_ms > ?1))"
        )
        await self.database.write(lambda connection: connection.execute(query, (now_ms,)).fetchall())

    async def freeze(self, export: Export, payload: bytes) -> bytes | None:
        def job(connection: apsw.Connection) -> bytes | None:
            connection.execute(
                f"update exports as x set payload = ? where key = ? and payload is null and {NOT_ERASED}",
                (payload, export.key),
            )
            query = f"select payload from exports x where key = ? and {NOT_ERASED}"
            row = connection.execute(query, (export.key,)).fetchone()
            return None if row is None else row[0]

        return await self.database.write(job)

    async def finish_export(
        self, export: Export, attempt: Attempt, state: Literal["pending", "delivered", "failed"], due_ms: int | None
    ) -> bool:
        def job(connection: apsw.Connection) -> bool:
            # What was given up meanwhile (its endpoint was disabled) is not tried again, but a success counts.
            connection.execute(
                "update exports as x set state = iif(state = 'failed' and ?1 = 'pending', 'failed', ?1),"
                " due_ms = iif(state = 'failed', null, ?2), attempts = attempts + 1, lease = lease + 1,"
                f" leased_until_ms = 0 where key = ?3 and lease = ?4 and {NOT_ERASED}",
                (state, due_ms, export.key, export.lease),
            )
            if not connection.changes():
                return False
            connection.execute(
                "insert into attempts values (?, ?, ?, ?, ?, ?, ?)", (export.key, export.attempts + 1, *attempt)
            )
            return True

        return await self.database.write(job)

    async def disable_endpoint(self, key: int, now_ms: int) -> None:
        def job(connection: apsw.Connection) -> None:
            connection.execute("update endpoints set disabled_ms = ? where key = ?", (now_ms, key))
            connection.execute(
                "update exports set state = 'failed', due_ms = null where endpoint = ? and state = 'pending'", (key,)
            )

        await self.database.write(job)

    async def next_export_ms(self) -> int | None:
        query = (
            "select min(max(x.due_ms, x.leased_until_ms)) from exports x join endpoints e on e.key = x.endpoint"
            f" where x.due_ms is not null and e.disabled_ms is null and {NOT_ERASED}"
        )
        (earliest,) = await self.database.read(lambda connection: one(connection, query))
        return None if earliest is None else int(earliest)

    async def deliveries(self, stream: int) -> list[Delivery]:
        def job(connection: apsw.Connection) -> list[Delivery]:
            rows: list[tuple[Any, ...]] = connection.execute(
                "select x.key, x.notice_id, e.url, x.event_type, x.state from exports x"
                f" join endpoints e on e.key = x.endpoint where x.stream = ? and {NOT_ERASED} order by x.key",
                (stream,),
            ).fetchall()
            return [
                Delivery(notice_id, url, event_type, state, attempts_of(connection, key))
                for key, notice_id, url, event_type, state in rows
            ]

        return await self.database.read(job)


def attempts_of(connection: apsw.Connection, export: int) -> list[Attempt]:
    query = "select started_ms, duration_ms, status, error, excerpt from attempts where export = ? order by number"
    return [Attempt(*row) for row in connection.execute(query, (export,))]


def to_export(row: tuple[Any, ...]) -> Export:
    key, stream, notice_id, event_type, position, closing, payload, attempts, lease, *endpoint = row
    return Export(
        key=key,
        stream=stream,
        endpoint=to_endpoint(endpoint),
        notice_id=notice_id,
        event_type=event_type,
        position=position,
        closing=CLOSING.decode(closing),
        payload=payload,
        attempts=attempts,
        lease=lease + 1,
    )


def to_endpoint(values: Sequence[Any]) -> Endpoint:
    key, stream, url, secret, contents, public_only, disabled_ms = values
    return Endpoint(key, stream, url, secret, contents, bool(public_only), disabled_ms)
