"""The directory: API keys, secrets of inbound webhooks and of callers' ids, the operator's endpoint, and the identity
of the store."""

from collections.abc import Callable, Collection, Sequence
from typing import Any, NamedTuple

import msgspec
from msgspec import Struct
from msgspec.structs import asdict

from voicemem.store.database import Connection, Port, assign, columns, insert, reads_inline, upsert, writes

OPERATOR_OVERLAP_MS = 86_400_000
"""How long the operator's previous secret signs alongside a new one: nodes may be restarted with it one by one."""


class KeyLimits(NamedTuple):
    """The limits of one key, below the service's; 0: none of its own."""

    events_per_second: int = 0
    bytes_per_second: int = 0
    """The rate for events."""
    open_sessions: int = 0
    """Sessions begun with the key that run at a time."""
    sessions_per_day: int = 0
    """Sessions begun with the key since midnight, UTC."""


class ApiKey(Struct, frozen=True):
    """An API key as it is stored; `hash` is the SHA-256 of its secret."""

    id: str
    project: str
    name: str
    hash: bytes
    scopes: tuple[str, ...]
    created_ms: int
    revoked_ms: int | None = None
    limits: KeyLimits = KeyLimits()


class AgoraApp(Struct, frozen=True):
    """An app of Agora's: tokens signed with its certificates open a project on Agora's paths."""

    app_id: str
    project: str
    certificate: str
    scopes: tuple[str, ...]
    created_ms: int
    old_certificate: str | None = None
    """Valid alongside the certificate after a rotation."""


class InboundSecret(Struct, frozen=True):
    """The secret that signs another stack's inbound webhooks, for one project and dialect."""

    project: str
    dialect: str
    secret: str
    set_ms: int
    old_secret: str | None = None
    """Accepted too, until `old_secret_until_ms`."""
    old_secret_until_ms: int | None = None
    identify: str | None = None
    """The facts that identify callers, as in the settings; None: those of the settings."""


KEY_FIELDS = (*ApiKey.__struct_fields__[:-1], *KeyLimits._fields)
SELECT_KEYS = f"select {columns(KEY_FIELDS)} from keys order by created_ms, id"
SELECT_KEY = f"select {columns(KEY_FIELDS)} from keys where id = :id"
SELECT_ANY_KEY = "select 1 where exists (select 1 from keys) or exists (select 1 from agora_apps)"
SET_LIMITS = f"update keys set {assign(KeyLimits._fields)} where id = :id and revoked_ms is null"
REVOKE_KEY = "update keys set revoked_ms = :now_ms where id = :id and revoked_ms is null"
SELECT_REVOKED_KEYS = "select id from keys where revoked_ms is not null and id in :ids"
APP_FIELDS = AgoraApp.__struct_fields__
SELECT_APPS = f"select {columns(APP_FIELDS)} from agora_apps where certificate is not null"
SELECT_APP = f"{SELECT_APPS} and app_id = :app_id"
INSERT_APP = f"{upsert('agora_apps', ['app_id'], APP_FIELDS[1:])} where agora_apps.certificate is null"
UPDATE_APP = "update agora_apps set certificate = :certificate, old_certificate = :old where app_id = :app_id"
REMOVE_APP = """
    update agora_apps set certificate = null, old_certificate = null
    where app_id = :app_id and certificate is not null
"""
INBOUND_FIELDS = InboundSecret.__struct_fields__
SELECT_INBOUNDS = f"select {columns(INBOUND_FIELDS)} from inbound_secrets where project = :project"
SELECT_INBOUND = f"{SELECT_INBOUNDS} and dialect = :dialect"
ADD_INBOUND = f"{insert('inbound_secrets', INBOUND_FIELDS)} on conflict do nothing"
CHANGE_INBOUND = f"""
    update inbound_secrets set {assign(INBOUND_FIELDS[2:])} where project = :project and dialect = :dialect
"""
REMOVE_INBOUND = "delete from inbound_secrets where project = :project and dialect = :dialect"
SELECT_CALLER_SECRETS = "select version, secret from caller_secrets where project = :project order by version desc"
ADD_CALLER_SECRET = f"{insert('caller_secrets', ['project', 'version', 'secret', 'made_ms'])} on conflict do nothing"
IS_OPERATORS = "stream is null and project is null"
SAVE_OPERATOR_ENDPOINT = f"""
    update endpoints set
    old_secret = case when url <> :url then null when secret is not distinct from :secret then old_secret
        else secret end,
    old_secret_until_ms = case when url <> :url then null when secret is not distinct from :secret
        then old_secret_until_ms else :until_ms end,
    url = :url, secret = :secret, contents = :contents, include = :include,
    disabled_ms = null, disabled_reason = null
    where {IS_OPERATORS}
"""
INSERT_OPERATOR_ENDPOINT = insert("endpoints", ["key", "url", "secret", "contents", "include", "public_only"])
TURN_OFF_OPERATOR_ENDPOINT = f"update endpoints set disabled_ms = 0 where {IS_OPERATORS}"
"""The endpoint's row stays for its deliveries. The time 0 says that the command line turned it off."""


class Directory(Port):
    """API keys, apps of Agora's, secrets of inbound webhooks, the operator's endpoint, and the store's own identity."""

    @property
    def incarnation(self) -> str:
        """Identifies the store until it is restored from a backup: positions and seqs of another one are not valid."""
        return self.database.identity["incarnation"].hex()

    @property
    def cursor_secret(self) -> bytes:
        """Signs the cursors that clients get."""
        return self.database.identity["cursor_secret"]

    # API keys

    async def list_keys(self) -> list[ApiKey]:
        """Return the keys of all projects, revoked ones included, the oldest first."""
        return [to_key(*row) for row in await self.database.rows(SELECT_KEYS)]

    async def find_key(self, key_id: str) -> ApiKey | None:
        """Return a key, also a revoked one; None when the id is unknown. Called for every request."""
        return await self.database.find(to_key, SELECT_KEY, id=key_id)

    async def has_keys(self) -> bool:
        """Return whether any key or app of Agora's was ever made, revoked and removed ones included.

        Called for every request while there is none.
        """
        return await self.database.row(SELECT_ANY_KEY) is not None

    async def add_key(self, key: ApiKey) -> None:
        values = asdict(key) | key.limits._asdict() | {"scopes": ",".join(key.scopes)}
        await self.database.execute(insert("keys", KEY_FIELDS), **values)

    async def set_key_limits(self, key_id: str, limits: KeyLimits) -> bool:
        """Replace the limits of a key; False when it is unknown or revoked."""
        return bool(await self.database.execute(SET_LIMITS, id=key_id, **limits._asdict()))

    async def revoke_key(self, key_id: str, now_ms: int) -> bool:
        """Revoke a key; False when it is unknown or revoked already."""
        return bool(await self.database.execute(REVOKE_KEY, id=key_id, now_ms=now_ms))

    @reads_inline
    def revoked_keys(self, connection: Connection, key_ids: Collection[str]) -> frozenset[str]:
        """Return those of these keys that are revoked, also by another process."""
        return frozenset(key_id for (key_id,) in connection.rows(SELECT_REVOKED_KEYS, ids=list(key_ids)))

    # Apps of Agora's

    async def list_agora_apps(self) -> list[AgoraApp]:
        """Return the apps of all projects, the oldest first."""
        return [to_app(*row) for row in await self.database.rows(f"{SELECT_APPS} order by created_ms, app_id")]

    async def find_agora_app(self, app_id: str) -> AgoraApp | None:
        """Return an app; None when the id is unknown. Called for every request on Agora's paths."""
        return await self.database.find(to_app, SELECT_APP, app_id=app_id)

    async def add_agora_app(self, app: AgoraApp) -> bool:
        """Store a new app; False if any project has one with its id."""
        return bool(await self.database.execute(INSERT_APP, **asdict(app) | {"scopes": ",".join(app.scopes)}))

    @writes
    def change_agora_app(
        self, connection: Connection, app_id: str, change: Callable[[AgoraApp], AgoraApp]
    ) -> AgoraApp | None:
        """Replace the certificates of an app by those that `change` returns for it; None when the id is unknown.

        `change` is pure, and may run more than once.
        """
        row = connection.row(f"{SELECT_APP} for no key update", app_id=app_id)
        if row is None:
            return None
        app = change(to_app(*row))
        connection.execute(UPDATE_APP, app_id=app_id, certificate=app.certificate, old=app.old_certificate)
        return app

    async def remove_agora_app(self, app_id: str) -> bool:
        """Delete an app and its certificates; False when the id is unknown."""
        return bool(await self.database.execute(REMOVE_APP, app_id=app_id))

    # Secrets of inbound webhooks

    async def list_inbound_secrets(self, project: str) -> list[InboundSecret]:
        """Return the secrets of a project's inbound webhooks, by dialect."""
        rows = await self.database.rows(f"{SELECT_INBOUNDS} order by dialect", project=project)
        return [InboundSecret(*row) for row in rows]

    async def find_inbound_secret(self, project: str, dialect: str) -> InboundSecret | None:
        """Return the secret of a project's inbound webhooks of a dialect. Called for each of these webhooks."""
        return await self.database.find(InboundSecret, SELECT_INBOUND, project=project, dialect=dialect)

    @writes
    def change_inbound_secret(
        self,
        connection: Connection,
        project: str,
        dialect: str,
        change: Callable[[InboundSecret | None], InboundSecret],
    ) -> InboundSecret:
        """Replace a secret by what `change` returns for it, or for None where there is none yet.

        `change` is pure, and may run more than once; it keeps the project and the dialect.
        """
        while True:  # until no other node adds or removes it in between
            row = connection.row(f"{SELECT_INBOUND} for no key update", project=project, dialect=dialect)
            changed = change(None if row is None else InboundSecret(*row))
            if connection.execute(ADD_INBOUND if row is None else CHANGE_INBOUND, **asdict(changed)):
                return changed

    async def remove_inbound_secret(self, project: str, dialect: str) -> bool:
        """Delete a secret, the old one too; False where there is none."""
        return bool(await self.database.execute(REMOVE_INBOUND, project=project, dialect=dialect))

    # Secrets of callers' ids

    async def list_caller_secrets(self, project: str) -> list[bytes]:
        """Return the secrets of a project's caller ids, the newest first. Called for every identified caller."""
        rows = await self.database.rows(SELECT_CALLER_SECRETS, project=project)
        return [secret for _, secret in rows]

    @writes
    def add_caller_secret(
        self, connection: Connection, project: str, secret: bytes, now_ms: int, is_first: bool = False
    ) -> None:
        """Store a secret that makes ids from now on; with `is_first` only if there is none."""
        while True:  # until no other node adds one in between
            newest = connection.row(SELECT_CALLER_SECRETS, project=project)
            if newest is not None and is_first:
                return
            values = {"version": 1 if newest is None else newest[0] + 1, "secret": secret, "made_ms": now_ms}
            if connection.execute(ADD_CALLER_SECRET, project=project, **values):
                return

    # The operator's endpoint

    @writes
    def set_operator_endpoint(
        self,
        connection: Connection,
        url: str,
        secret: str | None,
        contents: str = "full",
        now_ms: int = 0,
        include: Sequence[str] = (),
    ) -> None:
        """Set the receiver of every session's history, and enable it.

        It is the same for all nodes, and stays until another one is set or it is turned off. `contents` and `include`
        apply to all payloads that are not frozen yet. A replaced secret, at the same URL, signs alongside the new one
        for `OPERATOR_OVERLAP_MS`.
        """
        values: dict[str, Any] = {"url": url, "secret": secret, "contents": contents}
        values["include"] = msgspec.json.encode(include).decode()
        if not connection.execute(SAVE_OPERATOR_ENDPOINT, until_ms=now_ms + OPERATOR_OVERLAP_MS, **values):
            connection.execute(INSERT_OPERATOR_ENDPOINT, key=connection.draw_key(), public_only=False, **values)

    async def turn_off_operator_endpoint(self) -> None:
        """Turn that receiver off, on all nodes; do nothing if there is none."""
        await self.database.execute(TURN_OFF_OPERATOR_ENDPOINT)


def to_key(*row: Any) -> ApiKey:
    key_id, project, name, digest, scopes, created_ms, revoked_ms, *limits = row
    return ApiKey(key_id, project, name, digest, to_scopes(scopes), created_ms, revoked_ms, KeyLimits(*limits))


def to_app(*row: Any) -> AgoraApp:
    app_id, project, certificate, scopes, *rest = row
    return AgoraApp(app_id, project, certificate, to_scopes(scopes), *rest)


def to_scopes(scopes: str) -> tuple[str, ...]:
    return tuple(filter(None, scopes.split(",")))
