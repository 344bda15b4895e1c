"""`voicemem.store.port.Directory` on SQLite: keys, the operator's endpoint, the store's identity."""

from __future__ import annotations

from collections.abc import Collection
from typing import Any

import apsw
import msgspec

from voicemem.store.records import ApiKey
from voicemem.store.sqlite.database import Database

KEY_COLUMNS = "id, project, name, hash, scopes, created_ms, revoked_ms"
SELECT_KEYS = f"select {KEY_COLUMNS} from keys order by created_ms, id"
SELECT_KEY = f"select {KEY_COLUMNS} from keys where id = ?"
SELECT_ANY_KEY = "select 1 from keys limit 1"
INSERT_KEY = "insert into keys values (?, ?, ?, ?, ?, ?, ?)"
REVOKE_KEY = "update keys set revoked_ms = ? where id = ? and revoked_ms is null"
SELECT_REVOKED_KEYS = """
    select id from keys where revoked_ms is not null and id in (select value from json_each(?))
"""
IS_OPERATORS = "stream is null and project is null"
SELECT_OPERATOR_ENDPOINT_KEY = f"select key from endpoints where {IS_OPERATORS}"
INSERT_OPERATOR_ENDPOINT = "insert into endpoints (url, secret, contents, public_only) values (?, ?, ?, 0)"
UPDATE_OPERATOR_ENDPOINT = """
    update endpoints set url = ?, secret = ?, contents = ?, disabled_ms = null, disabled_reason = null where key = ?
"""
REMOVE_OPERATOR_ENDPOINT = f"update endpoints set disabled_ms = 0 where {IS_OPERATORS}"
"""Its row stays for its deliveries. The time 0 tells that the command line took it away."""


def has_any_key(connection: apsw.Connection) -> bool:
    return connection.execute(SELECT_ANY_KEY).fetchone() is not None


class SqliteDirectory:
    """Keys and identity; the methods are documented in `voicemem.store.port.Directory`."""

    database: Database
    identity: dict[str, bytes]

    @property
    def incarnation(self) -> str:
        return self.identity["incarnation"].hex()

    @property
    def cursor_secret(self) -> bytes:
        return self.identity["cursor_secret"]

    async def list_keys(self) -> list[ApiKey]:
        return await self.database.read(lambda connection: [to_key(row) for row in connection.execute(SELECT_KEYS)])

    async def find_key(self, key_id: str) -> ApiKey | None:
        row = await self.database.read_inline(lambda connection: connection.execute(SELECT_KEY, (key_id,)).fetchone())
        return None if row is None else to_key(row)

    async def has_keys(self) -> bool:
        return await self.database.read_inline(has_any_key)

    async def add_key(self, key: ApiKey) -> None:
        values = (key.id, key.project, key.name, key.hash, ",".join(key.scopes), key.created_ms, key.revoked_ms)
        await self.database.write(lambda connection: connection.execute(INSERT_KEY, values).fetchall())

    async def revoke_key(self, key_id: str, now_ms: int) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(REVOKE_KEY, (now_ms, key_id))
            return bool(connection.changes())

        return await self.database.write(job)

    async def revoked_keys(self, key_ids: Collection[str]) -> frozenset[str]:
        values = (msgspec.json.encode(list(key_ids)).decode(),)
        return await self.database.read_inline(
            lambda connection: frozenset(key_id for (key_id,) in connection.execute(SELECT_REVOKED_KEYS, values))
        )

    async def set_operator_endpoint(self, url: str | None, secret: str | None, contents: str = "full") -> None:
        def job(connection: apsw.Connection) -> None:
            row = connection.execute(SELECT_OPERATOR_ENDPOINT_KEY).fetchone()
            if url is None:
                connection.execute(REMOVE_OPERATOR_ENDPOINT)
            elif row is None:
                connection.execute(INSERT_OPERATOR_ENDPOINT, (url, secret, contents))
            else:
                connection.execute(UPDATE_OPERATOR_ENDPOINT, (url, secret, contents, row[0]))

        await self.database.write(job)


def to_key(row: tuple[Any, ...]) -> ApiKey:
    key_id, project, name, digest, scopes, created_ms, revoked_ms = row
    return ApiKey(key_id, project, name, digest, tuple(filter(None, scopes.split(","))), created_ms, revoked_ms)
