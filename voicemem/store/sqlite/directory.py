"""`voicemem.store.port.Directory` on SQLite: keys, apps of Agora's, the operator's endpoint, the store's identity."""

from __future__ import annotations

from collections.abc import Callable, Collection
from typing import Any

import apsw
import msgspec
from msgspec import structs

from voicemem.store.records import OPERATOR_OVERLAP_MS, AgoraApp, ApiKey, HookSecret, KeyLimits
from voicemem.store.sqlite.database.connections import Database

LIMIT_COLUMNS = ", ".join(KeyLimits._fields)
KEY_COLUMNS = f"id, project, name, hash, scopes, created_ms, revoked_ms, {LIMIT_COLUMNS}"
SELECT_KEYS = f"select {KEY_COLUMNS} from keys order by created_ms, id"
SELECT_KEY = f"select {KEY_COLUMNS} from keys where id = ?"
SELECT_ANY_KEY = "select 1 where exists (select 1 from keys) or exists (select 1 from agora_apps)"
INSERT_KEY = f"insert into keys ({KEY_COLUMNS}) values (?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)"
SET_LIMITS = f"update keys set ({LIMIT_COLUMNS}) = (?, ?, ?, ?) where id = ? and revoked_ms is null"
REVOKE_KEY = "update keys set revoked_ms = ? where id = ? and revoked_ms is null"
SELECT_REVOKED_KEYS = """
    select id from keys where revoked_ms is not null and id in (select value from json_each(?))
"""
APP_COLUMNS = "app_id, project, certificate, scopes, created_ms, old_certificate"
SELECT_APPS = f"select {APP_COLUMNS} from agora_apps where certificate is not null order by created_ms, app_id"
SELECT_APP = f"select {APP_COLUMNS} from agora_apps where app_id = ? and certificate is not null"
INSERT_APP = f"""
    insert into agora_apps ({APP_COLUMNS}) values (?, ?, ?, ?, ?, ?)
    on conflict (app_id) do update
    set project = excluded.project, certificate = excluded.certificate, scopes = excluded.scopes,
        created_ms = excluded.created_ms, old_certificate = excluded.old_certificate
    where certificate is null
"""
UPDATE_APP = "update agora_apps set certificate = ?, old_certificate = ? where app_id = ?"
REMOVE_APP = """
    update agora_apps set certificate = null, old_certificate = null where app_id = ? and certificate is not null
"""
HOOK_COLUMNS = "project, dialect, secret, set_ms, old_secret, old_secret_until_ms"
SELECT_HOOKS = f"select {HOOK_COLUMNS} from hook_secrets where project = ? order by dialect"
SELECT_HOOK = f"select {HOOK_COLUMNS} from hook_secrets where project = ? and dialect = ?"
SAVE_HOOK = f"insert or replace into hook_secrets ({HOOK_COLUMNS}) values (?, ?, ?, ?, ?, ?)"
REMOVE_HOOK = "delete from hook_secrets where project = ? and dialect = ?"
IS_OPERATORS = "stream is null and project is null"
SELECT_OPERATOR_ENDPOINT_KEY = f"select key from endpoints where {IS_OPERATORS}"
INSERT_OPERATOR_ENDPOINT = "insert into endpoints (url, secret, contents, public_only) values (?, ?, ?, 0)"
UPDATE_OPERATOR_ENDPOINT = """
    update endpoints set
    old_secret = iif(url is not ?1, null, iif(secret is ?2, old_secret, secret)),
    old_secret_until_ms = iif(url is not ?1, null, iif(secret is ?2, old_secret_until_ms, ?4)),
    url = ?1, secret = ?2, contents = ?3, disabled_ms = null, disabled_reason = null where key = ?5
"""
TURN_OFF_OPERATOR_ENDPOINT = f"update endpoints set disabled_ms = 0 where {IS_OPERATORS}"
"""Its row stays for its deliveries. The time 0 tells that the command line turned it off."""


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
        known = (key.id, key.project, key.name, key.hash, ",".join(key.scopes), key.created_ms, key.revoked_ms)
        values = (*known, *key.limits)
        await self.database.write(lambda connection: connection.execute(INSERT_KEY, values).fetchall())

    async def set_key_limits(self, key_id: str, limits: KeyLimits) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(SET_LIMITS, (*limits, key_id))
            return bool(connection.changes())

        return await self.database.write(job)

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

    async def list_agora_apps(self) -> list[AgoraApp]:
        return await self.database.read(lambda connection: [to_app(row) for row in connection.execute(SELECT_APPS)])

    async def find_agora_app(self, app_id: str) -> AgoraApp | None:
        return await self.database.read_inline(lambda connection: load_app(connection, app_id))

    async def add_agora_app(self, app: AgoraApp) -> bool:
        values = (app.app_id, app.project, app.certificate, ",".join(app.scopes), app.created_ms, app.old_certificate)

        def job(connection: apsw.Connection) -> bool:
            connection.execute(INSERT_APP, values)
            return bool(connection.changes())

        return await self.database.write(job)

    async def change_agora_app(self, app_id: str, change: Callable[[AgoraApp], AgoraApp]) -> AgoraApp | None:
        def job(connection: apsw.Connection) -> AgoraApp | None:
            app = load_app(connection, app_id)
            if app is None:
                return None
            changed = change(app)
            connection.execute(UPDATE_APP, (changed.certificate, changed.old_certificate, app_id))
            return changed

        return await self.database.write(job)

    async def remove_agora_app(self, app_id: str) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(REMOVE_APP, (app_id,))
            return bool(connection.changes())

        return await self.database.write(job)

    async def list_hook_secrets(self, project: str) -> list[HookSecret]:
        return await self.database.read(
            lambda connection: [HookSecret(*row) for row in connection.execute(SELECT_HOOKS, (project,))]
        )

    async def find_hook_secret(self, project: str, dialect: str) -> HookSecret | None:
        return await self.database.read_inline(lambda connection: load_hook(connection, project, dialect))

    async def change_hook_secret(
        self, project: str, dialect: str, change: Callable[[HookSecret | None], HookSecret]
    ) -> HookSecret:
        def job(connection: apsw.Connection) -> HookSecret:
            changed = change(load_hook(connection, project, dialect))
            connection.execute(SAVE_HOOK, structs.astuple(changed))
            return changed

        return await self.database.write(job)

    async def remove_hook_secret(self, project: str, dialect: str) -> bool:
        def job(connection: apsw.Connection) -> bool:
            connection.execute(REMOVE_HOOK, (project, dialect))
            return bool(connection.changes())

        return await self.database.write(job)

    async def set_operator_endpoint(
        self, url: str, secret: str | None, contents: str = "full", now_ms: int = 0
    ) -> None:
        def job(connection: apsw.Connection) -> None:
            row = connection.execute(SELECT_OPERATOR_ENDPOINT_KEY).fetchone()
            if row is None:
                connection.execute(INSERT_OPERATOR_ENDPOINT, (url, secret, contents))
            else:
                values = (url, secret, contents, now_ms + OPERATOR_OVERLAP_MS, row[0])
                connection.execute(UPDATE_OPERATOR_ENDPOINT, values)

        await self.database.write(job)

    async def turn_off_operator_endpoint(self) -> None:
        await self.database.write(lambda connection: connection.execute(TURN_OFF_OPERATOR_ENDPOINT).fetchall())


def to_key(row: tuple[Any, ...]) -> ApiKey:
    key_id, project, name, digest, scopes, created_ms, revoked_ms, *limits = row
    return ApiKey(key_id, project, name, digest, to_scopes(scopes), created_ms, revoked_ms, KeyLimits(*limits))


def load_app(connection: apsw.Connection, app_id: str) -> AgoraApp | None:
    row = connection.execute(SELECT_APP, (app_id,)).fetchone()
    return None if row is None else to_app(row)


def to_app(row: tuple[Any, ...]) -> AgoraApp:
    app_id, project, certificate, scopes, created_ms, old_certificate = row
    return AgoraApp(app_id, project, certificate, to_scopes(scopes), created_ms, old_certificate)


def load_hook(connection: apsw.Connection, project: str, dialect: str) -> HookSecret | None:
    row = connection.execute(SELECT_HOOK, (project, dialect)).fetchone()
    return None if row is None else HookSecret(*row)


def to_scopes(scopes: str) -> tuple[str, ...]:
    return tuple(filter(None, scopes.split(",")))
