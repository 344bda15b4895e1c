"""A session as callers see it, over REST and in the library."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Struct

from voicemem.config.session import warnings_about
from voicemem.protocol.types import JsonObject, SessionId
from voicemem.store.quarantine import QuarantineEntry
from voicemem.store.streams import Stream

StateName = Annotated[str, Meta(extra_json_schema={"enum": ["running", "ended"]})]


class SessionInfo(Struct, frozen=True, omit_defaults=True):
    """A session; times are Unix ms, secrets are left out of `config`.

    `warnings` are sentences about settings that have no effect. `set_aside` is there only when a session was asked for
    by its id, and its memory cannot be made. JSON has neither of the two where there is nothing to say.
    """

    session_id: SessionId
    state: StateName
    reason: str | None
    started_at: int
    ended_at: int | None
    position: int
    config: Annotated[JsonObject, Meta(extra_json_schema={"$ref": "#/components/schemas/SessionConfig"})]
    warnings: tuple[str, ...] = ()
    set_aside: QuarantineEntry | None = None


def info_of(stream: Stream, set_aside: QuarantineEntry | None = None) -> SessionInfo:
    return SessionInfo(
        session_id=stream.id,
        state=stream.state,
        reason=stream.reason,
        started_at=stream.started_ms,
        ended_at=stream.ended_ms,
        position=stream.position,
        config=stream.config,
        warnings=warnings_about(stream.config),
        set_aside=set_aside,
    )
