"""`voicemem.store.port.Directory` on PostgreSQL: keys, apps of Agora's, the operator's endpoint, the identity."""

from __future__ import annotations

from collections.abc import Callable, Collection

from msgspec import structs

from voicemem.store.postgresql.database.connection import Row, Session, Word
from voicemem.store.postgresql.database.pool import Database
from voicemem.store.postgresql.journal.rows import Rows, to_text
from voicemem.store.records import OPERATOR_OVERLAP_MS, AgoraApp, ApiKey, HookSecret, KeyLimits

LIMIT_COLUMNS = ", ".join(KeyLimits._fields)
KEY_COLUMNS = f"id, project, name, hash, scopes, created_ms, revoked_ms, {LIMIT_COLUMNS}"
SELECT_KEYS = f"select {KEY_COLUMNS} from keys order by created_ms, id"
SELECT_KEY = f"select {KEY_COLUMNS} from keys where id = $1"
SELECT_ANY_KEY = "select 1 where exists (select 1 from keys) or exists (select 1 from agora_apps)"
INSERT_KEY = f"insert into keys ({KEY_COLUMNS}) values ($1, $2, $3, $4, $5, $6, $7, $8, $9, $10, $11)"
SET_LIMITS = """
    update keys set events_per_second = $1, bytes_per_second = $2, open_sessions = $3, sessions_per_day = $4
    where id = $5 and revoked_ms is null
"""
REVOKE_KEY = "update keys set revoked_ms = $1 where id = $2 and revoked_ms is null"
SELECT_REVOKED_KEYS = "select id from keys where revoked_ms is not null and id = any($1::bytea[])"
APP_COLUMNS = "app_id, project, certificate, scopes, created_ms, old_certificate"
SELECT_APPS = f"select {APP_COLUMNS} from agora_apps where certificate is not null order by created_ms, app_id"
SELECT_APP = f"select {APP_COLUMNS} from agora_apps where app_id = $1 and certificate is not null"
INSERT_APP = f"""
    insert into agora_apps as a ({APP_COLUMNS}) values ($1, $2, $3, $4, $5, $6)
    on conflict (app_id) do update
    set project = excluded.project, certificate = excluded.certificate, scopes = excluded.scopes,
        created_ms = excluded.created_ms, old_certificate = excluded.old_certificate
    where a.certificate is null
"""
UPDATE_APP = "update agora_apps set certificate = $1, old_certificate = $2 where app_id = $3"
REMOVE_APP = """
    update agora_apps set certificate = null, old_certificate = null where app_id = $1 and certificate is not null
"""
HOOK_COLUMNS = "project, dialect, secret, set_ms, old_secret, old_secret_until_ms"
SELECT_HOOKS = f"select {HOOK_COLUMNS} from hook_secrets where project = $1 order by dialect"
SELECT_HOOK = f"select {HOOK_COLUMNS} from hook_secrets where project = $1 and dialect = $2"
CHANGE_HOOK = """
    update hook_secrets set secret = $3, set_ms = $4, old_secret = $5, old_secret_until_ms = $6
    where project = $1 and dialect = $2
"""
ADD_HOOK = f"insert into hook_secrets ({HOOK_COLUMNS}) values ($1, $2, $3, $4, $5, $6) on conflict do nothing"
REMOVE_HOOK = "delete from hook_secrets where project = $1 and dialect = $2"
IS_OPERATORS = "stream is null and project is null"
SAVE_OPERATOR_ENDPOINT = f"""
    update endpoints set
    old_secret = case when url != $1 then null when secret is not distinct from $2 then old_secret else secret end,
    old_secret_until_ms = case when url != $1 then null when secret is not distinct from $2 then old_secret_until_ms
        else $4 end,
    url = $1, secret = $2, contents = $3, disabled_ms = null, disabled_reason = null where {IS_OPERATORS}
"""
INSERT_OPERATOR_ENDPOINT = """
    insert into endpoints (key, url, secret, contents, public_only) values ($4, $1, $2, $3, false)
"""
TURN_OFF_OPERATOR_ENDPOINT = f"update endpoints set disabled_ms = 0 where {IS_OPERATORS}"
"""Its row stays for its deliveries. The time 0 tells that the command line turned it off."""


class PostgresqlDirectory:
    """Keys and identity; the methods are documented in `voicemem.store.port.Directory`."""

    database: Database

    @property
    def incarnation(self) -> str:
        return self.database.identity["incarnation"].hex()

    @property
    def cursor_secret(self) -> bytes:
        return self.database.identity["cursor_secret"]

    async def list_keys(self) -> list[ApiKey]:
        return await self.database.read(lambda session: [to_key(row) for row in session.rows(SELECT_KEYS)])

    async def find_key(self, key_id: str) -> ApiKey | None:
        row = await self.database.read(lambda session: session.row(SELECT_KEY, (key_id,)))
        return None if row is None else to_key(row)

    async def has_keys(self) -> bool:
        return await self.database.read(lambda session: session.row(SELECT_ANY_KEY)) is not None

    async def add_key(self, key: ApiKey) -> None:
        scopes = Word(",".join(key.scopes))
        values = (key.id, key.project, key.name, key.hash, scopes, key.created_ms, key.revoked_ms, *key.limits)
        await self.database.write(lambda rows: rows.session.change(INSERT_KEY, values))

    async def set_key_limits(self, key_id: str, limits: KeyLimits) -> bool:
        return bool(await self.database.write(lambda rows: rows.session.change(SET_LIMITS, (*limits, key_id))))

    async def revoke_key(self, key_id: str, now_ms: int) -> bool:
        return bool(await self.database.write(lambda rows: rows.session.change(REVOKE_KEY, (now_ms, key_id))))

    async def revoked_keys(self, key_ids: Collection[str]) -> frozenset[str]:
        values = ([key_id.encode() for key_id in key_ids],)
        rows = await self.database.read(lambda session: session.rows(SELECT_REVOKED_KEYS, values))
        return frozenset(key_id.decode() for (key_id,) in rows)

    async def list_agora_apps(self) -> list[AgoraApp]:
        return await self.database.read(lambda session: [to_app(row) for row in session.rows(SELECT_APPS)])

    async def find_agora_app(self, app_id: str) -> AgoraApp | None:
        return await self.database.read(lambda session: load_app(session, app_id))

    async def add_agora_app(self, app: AgoraApp) -> bool:
        scopes = Word(",".join(app.scopes))
        values = (app.app_id, app.project, app.certificate, scopes, app.created_ms, app.old_certificate)
        return bool(await self.database.write(lambda rows: rows.session.change(INSERT_APP, values)))

    async def change_agora_app(self, app_id: str, change: Callable[[AgoraApp], AgoraApp]) -> AgoraApp | None:
        def job(rows: Rows) -> AgoraApp | None:
            app = load_app(rows.session, app_id, " for no key update")
            if app is None:
                return None
            changed = change(app)
            rows.session.execute(UPDATE_APP, (changed.certificate, changed.old_certificate, app_id))
            return changed

        return await self.database.write(job)

    async def remove_agora_app(self, app_id: str) -> bool:
        return bool(await self.database.write(lambda rows: rows.session.change(REMOVE_APP, (app_id,))))

    async def list_hook_secrets(self, project: str) -> list[HookSecret]:
        return await self.database.read(
            lambda session: [to_hook(row) for row in session.rows(SELECT_HOOKS, (project,))]
        )

    async def find_hook_secret(self, project: str, dialect: str) -> HookSecret | None:
        return await self.database.read(lambda session: load_hook(session, project, dialect))

    async def change_hook_secret(
        self, project: str, dialect: str, change: Callable[[HookSecret | None], HookSecret]
    ) -> HookSecret:
        def job(rows: Rows) -> HookSecret:
            while True:  # until no other node adds or removes it in between
                known = load_hook(rows.session, project, dialect, " for no key update")
                changed = change(known)
                values = structs.astuple(changed)
                if rows.session.change(ADD_HOOK if known is None else CHANGE_HOOK, values):
                    return changed

        return await self.database.write(job)

    async def remove_hook_secret(self, project: str, dialect: str) -> bool:
        return bool(await self.database.write(lambda rows: rows.session.change(REMOVE_HOOK, (project, dialect))))

    async def set_operator_endpoint(
        self, url: str, secret: str | None, contents: str = "full", now_ms: int = 0
    ) -> None:
        def job(rows: Rows) -> None:
            values = (url, secret, Word(contents))
            if not rows.session.change(SAVE_OPERATOR_ENDPOINT, (*values, now_ms + OPERATOR_OVERLAP_MS)):
                rows.session.execute(INSERT_OPERATOR_ENDPOINT, (*values, rows.shared.keys.draw()))

        await self.database.write(job)

    async def turn_off_operator_endpoint(self) -> None:
        await self.database.write(lambda rows: rows.session.change(TURN_OFF_OPERATOR_ENDPOINT))


def to_key(row: Row) -> ApiKey:
    key_id, project, name, digest, scopes, created_ms, revoked_ms, *limits = row
    texts = key_id.decode(), project.decode(), name.decode()
    return ApiKey(*texts, digest, to_scopes(scopes), created_ms, revoked_ms, KeyLimits(*limits))


def load_app(session: Session, app_id: str, lock: str = "") -> AgoraApp | None:
    row = session.row(SELECT_APP + lock, (app_id,))
    return None if row is None else to_app(row)


def to_app(row: Row) -> AgoraApp:
    app_id, project, certificate, scopes, created_ms, old_certificate = row
    texts = app_id.decode(), project.decode(), certificate.decode()
    return AgoraApp(*texts, to_scopes(scopes), created_ms, to_text(old_certificate))


def load_hook(session: Session, project: str, dialect: str, lock: str = "") -> HookSecret | None:
    row = session.row(SELECT_HOOK + lock, (project, dialect))
    return None if row is None else to_hook(row)


def to_hook(row: Row) -> HookSecret:
    project, dialect, secret, set_ms, old_secret, old_until_ms = row
    return HookSecret(project.decode(), dialect.decode(), secret.decode(), set_ms, to_text(old_secret), old_until_ms)


def to_scopes(scopes: str) -> tuple[str, ...]:
    return tuple(filter(None, scopes.split(",")))
