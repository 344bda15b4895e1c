"""Sessions: how they are created, changed and ended, listed and read."""

from __future__ import annotations

import asyncio
import base64
import binascii
import hmac
from collections.abc import Callable
from typing import Any

import msgspec

from voicemem.config.secrets import SessionPatch
from voicemem.config.session import validate_config
from voicemem.errors import Refused
from voicemem.protocol.types import JsonObject
from voicemem.runtime import Runtime
from voicemem.store.port import Store
from voicemem.store.records import Restored, StreamFilter
from voicemem.store.streams import Ending, Stream

CLOSED_BY_REQUEST = "api"
"""The reason of a close over REST that gives none."""


class Sessions:
    """The life of sessions.

    `check_settings` raises `Refused` for settings that may not be set.
    """

    def __init__(self, store: Store, runtime: Runtime, check_settings: Callable[[SessionPatch], None]) -> None:
        self.store = store
        self.clock = runtime.clock
        self.new_id = runtime.new_id
        self.check_settings = check_settings
        self.joining = asyncio.Lock()
        """Held from the look at a name until it is taken."""
        self.notices_due = asyncio.Event()
        """Set at every start and close: there may be notices to send."""

    # Reading

    async def get(self, project: str, session_id: str) -> Stream:
        """Raises `Refused` (`unknown_session`)."""
        stream = await self.store.stream(project, session_id)
        if stream is None:
            raise Refused("unknown_session")
        return stream

    async def list(self, wanted: StreamFilter, cursor: str | None) -> tuple[list[Stream], str | None]:
        """A page of sessions, the newest first, and the cursor of the next page. Raises `Refused`."""
        after = None if cursor is None else self.read_cursor(wanted.project, cursor)
        page = await self.store.streams(msgspec.structs.replace(wanted, after=after, limit=wanted.limit + 1))
        if len(page) <= wanted.limit:
            return page, None
        page = page[: wanted.limit]
        return page, self.write_cursor(wanted.project, page[-1])

    def write_cursor(self, project: str, last: Stream) -> str:
        body = msgspec.json.encode([last.started_ms, last.key])
        return base64.urlsafe_b64encode(self.sign(project, body) + body).decode().rstrip("=")

    def read_cursor(self, project: str, cursor: str) -> tuple[int, int]:
        try:
            raw = base64.urlsafe_b64decode(cursor + "=" * (-len(cursor) % 4))
        except (binascii.Error, ValueError):
            raise Refused("invalid_cursor") from None
        signature, body = raw[:16], raw[16:]
        if not hmac.compare_digest(signature, self.sign(project, body)):
            raise Refused("invalid_cursor")
        return msgspec.json.decode(body, type=tuple[int, int])

    def sign(self, project: str, body: bytes) -> bytes:
        """Cursors hold for one project and one incarnation of the store."""
        scope = f"{self.store.incarnation}\0{project}\0".encode()
        return hmac.digest(self.store.cursor_secret, scope + body, "sha256")[:16]

    # Changing

    async def create(self, project: str, session_id: str | None, given: JsonObject) -> tuple[Stream, bool]:
        """A session, and whether it is new. Raises `Refused` (`session_exists`) when it is there but different."""
        session_patch = validate_config(given)
        self.check_settings(session_patch)
        stream, how = await self.store.create(project, session_id or self.new_id(), session_patch, self.clock())
        if how == "different":
            raise Refused("session_exists")
        if how == "created":
            self.notices_due.set()
        return stream, how == "created"

    async def restore(
        self, project: str, session_id: str | None, session_patch: SessionPatch, restored: Restored
    ) -> Stream:
        """A new session with a journal. Raises `Refused` (`session_exists`, `session_erased`, `invalid_field`)."""
        self.check_settings(session_patch)
        stream = await self.store.restore(project, session_id or self.new_id(), session_patch, restored, self.clock())
        if stream is None:
            raise Refused("session_exists", "There is a session with this id.")
        self.notices_due.set()
        return stream

    async def join(self, project: str, given: JsonObject) -> Stream:
        """A new session. Raises `Refused` (`session_exists`) while another one of its name is running."""
        async with self.joining:
            name = given.get("name")
            if isinstance(name, str) and await self.store.is_running(project, name):
                raise Refused("session_exists", "A session of this name is running.")
            stream, _ = await self.create(project, None, given)
            return stream

    async def count(self, wanted: StreamFilter) -> int:
        """How many sessions a list has, over all its pages."""
        return await self.store.count_streams(wanted)

    async def change(self, stream: Stream, patch: JsonObject) -> Stream:
        """Merge a patch into the configuration. Raises `Refused` (`invalid_field`, `session_ended`)."""
        session_patch = validate_config(patch)
        self.check_settings(session_patch)
        payload = msgspec.json.encode({"type": "session.update", **without_type(session_patch.public)})
        return await self.store.change(stream.key, session_patch, payload, self.clock())

    async def end(self, stream: Stream, reason: str | None) -> Stream:
        """End and close at once; a session that was closed before stays as it was."""
        now = self.clock()
        closed = await self.store.close(stream.key, Ending(now, reason or CLOSED_BY_REQUEST), self.new_id(), now)
        if closed is None:
            return await self.get(stream.project, stream.id)
        self.notices_due.set()
        return closed

    async def erase(self, stream: Stream) -> None:
        await self.store.erase(stream.key, self.clock())


def without_type(values: JsonObject) -> dict[str, Any]:
    return {key: value for key, value in values.items() if key != "type"}
