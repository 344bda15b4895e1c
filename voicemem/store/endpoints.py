"""Endpoints: the receivers of webhooks, of a session, a project or the operator."""

from collections.abc import Callable
from typing import Any

import msgspec
from msgspec.structs import asdict, replace

from voicemem.config.session import HISTORY_EVENT
from voicemem.store.database import Connection, Port, assign, insert, writes
from voicemem.store.outbox import ENDPOINT_COLUMNS, ENDPOINT_FIELDS, Endpoint, to_endpoint
from voicemem.store.streams import Stream

COUNT_ENDPOINTS = "select count(*) from endpoints where project = :project"
UPDATE_ENDPOINT = f"update endpoints set {assign(ENDPOINT_FIELDS[1:])} where key = :key"
DELETE_ENDPOINT = "delete from endpoints where key = :key"
SELECT_ENDPOINTS = f"select {ENDPOINT_COLUMNS} from endpoints e where project = :project"
SELECT_ENDPOINT = f"{SELECT_ENDPOINTS} and id = :id"
SELECT_OPERATOR_ENDPOINT = f"""
    select {ENDPOINT_COLUMNS} from endpoints e
    where stream is null and project is null and disabled_ms is distinct from 0
"""
DISABLE_GONE_ENDPOINT = """
    update endpoints set disabled_ms = :now_ms, disabled_reason = 'gone'
    where key = :key and url = :url and disabled_ms is null
"""
DISABLE_FAILING_ENDPOINT = """
    update endpoints set disabled_ms = :now_ms, disabled_reason = 'failing'
    where key = :key and disabled_ms is null and project is not null and failing_since_ms <= :since_ms
"""
FAIL_PENDING_DELIVERIES = """
    update deliveries set state = 'failed', due_ms = null where endpoint = :endpoint and due_ms is not null
"""
SELECT_SIGNING = "select value from secrets where stream = :stream and name = 'webhook.secret'"
DISABLE_SESSION_ENDPOINT = "update endpoints set disabled_ms = :now_ms where stream = :stream"
OF_SESSION = ("url", "secret", "contents", "event_types", "include")
UPDATE_SESSION_ENDPOINT = f"""
    update endpoints set {assign(OF_SESSION)}, disabled_ms = null, disabled_reason = null where stream = :stream
"""
INSERT_SESSION_ENDPOINT = insert("endpoints", ["key", "stream", *OF_SESSION, "public_only"])


class Endpoints(Port):
    @writes
    def add_endpoint(self, connection: Connection, endpoint: Endpoint, limit: int) -> Endpoint | None:
        """Store a project's new endpoint, and return it with its key; None when the project has `limit` already."""
        connection.lock(f"endpoints of {endpoint.project}")  # two at once must not both be the last one allowed
        if connection.one(COUNT_ENDPOINTS, project=endpoint.project) >= (limit,):
            return None
        added = replace(endpoint, key=connection.draw_key())
        connection.execute(insert("endpoints", ENDPOINT_FIELDS), **endpoint_values(added))
        return added

    async def list_endpoints(self, project: str) -> list[Endpoint]:
        """Return a project's endpoints, in the order in which they were made."""
        rows = await self.database.rows(f"{SELECT_ENDPOINTS} order by key", project=project)
        return [to_endpoint(*row) for row in rows]

    async def find_endpoint(self, project: str, endpoint_id: str) -> Endpoint | None:
        return await self.database.find(to_endpoint, SELECT_ENDPOINT, project=project, id=endpoint_id)

    async def find_operator_endpoint(self) -> Endpoint | None:
        """Return the operator's endpoint; None when there never was one, or it was turned off."""
        return await self.database.find(to_endpoint, SELECT_OPERATOR_ENDPOINT)

    @writes
    def change_endpoint(
        self, connection: Connection, project: str, endpoint_id: str, change: Callable[[Endpoint], Endpoint]
    ) -> Endpoint | None:
        """Replace an endpoint by what `change` returns for it; None when the id is unknown.

        `change` is pure, and may run more than once. When the result is disabled, its pending deliveries are failed.
        """
        row = connection.row(f"{SELECT_ENDPOINT} for no key update", project=project, id=endpoint_id)
        if row is None:
            return None
        changed = change(to_endpoint(*row))
        connection.execute(UPDATE_ENDPOINT, **endpoint_values(changed))
        if changed.disabled_ms is not None:
            connection.execute(FAIL_PENDING_DELIVERIES, endpoint=changed.key)
        return changed

    @writes
    def delete_endpoint(self, connection: Connection, project: str, endpoint_id: str) -> bool:
        """Delete an endpoint, and fail its pending deliveries; False when the id is unknown."""
        row = connection.row(f"{SELECT_ENDPOINT} for update", project=project, id=endpoint_id)
        if row is None:
            return False
        connection.execute(FAIL_PENDING_DELIVERIES, endpoint=row[0])
        connection.execute(DELETE_ENDPOINT, key=row[0])
        return True

    async def disable_endpoint(self, endpoint: Endpoint, now_ms: int) -> None:
        """Disable an endpoint that answered that it is gone, and fail its pending deliveries.

        Do nothing if its URL has changed in between: only the old address is gone.
        """
        await self.disable(DISABLE_GONE_ENDPOINT, endpoint.key, now_ms=now_ms, url=endpoint.url)

    async def disable_failing(self, key: int, since_ms: int, now_ms: int) -> bool:
        """Disable a project's endpoint if it has been failing since `since_ms` or longer; return whether it was."""
        return await self.disable(DISABLE_FAILING_ENDPOINT, key, now_ms=now_ms, since_ms=since_ms)

    @writes
    def disable(self, connection: Connection, statement: str, /, key: int, **values: Any) -> bool:
        is_disabled = connection.execute(statement, key=key, **values) > 0
        if is_disabled:
            connection.execute(FAIL_PENDING_DELIVERIES, endpoint=key)
        return is_disabled


def save_session_endpoint(connection: Connection, stream: Stream, now_ms: int) -> None:
    """Set the session's own endpoint as `webhook` in its configuration says; without a URL, disable it."""
    webhook = stream.config.get("webhook") or {}
    url = webhook.get("url")
    if url is None:
        connection.execute(DISABLE_SESSION_ENDPOINT, now_ms=now_ms, stream=stream.key)
        return
    (secret,) = connection.row(SELECT_SIGNING, stream=stream.key) or (None,)
    values = {
        "stream": stream.key,
        "url": url,
        "secret": secret,
        "contents": webhook.get("contents", "full"),
        "event_types": msgspec.json.encode(webhook.get("event_types", [HISTORY_EVENT])).decode(),
        "include": msgspec.json.encode(webhook.get("include", [])).decode(),
    }
    if not connection.execute(UPDATE_SESSION_ENDPOINT, **values):
        connection.execute(INSERT_SESSION_ENDPOINT, key=connection.draw_key(), public_only=True, **values)


def endpoint_values(endpoint: Endpoint) -> dict[str, Any]:
    lists = {"event_types": endpoint.event_types, "include": endpoint.include}
    return asdict(endpoint) | {name: msgspec.json.encode(value).decode() for name, value in lists.items()}
