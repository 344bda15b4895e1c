"""Copies of a session: write a checkpoint, restore one as a new session, fork a session at a turn."""

import asyncio
from typing import Annotated, Literal

from aiohttp import web
from msgspec import Meta, Raw, Struct

from voicemem.errors import InvalidFrame, RateLimited, Refused
from voicemem.memory import checkpoints
from voicemem.memory.fork import fork
from voicemem.protocol.arguments import converted
from voicemem.protocol.pieces import Pieces, Unreadable
from voicemem.protocol.types import Natural, SessionId
from voicemem.server.http.request import (
    Request,
    check_session_id,
    decompress,
    json_response,
    read_object,
    receive_body,
    stream_body,
)
from voicemem.server.http.routes import JSON, MergePatch, Routes
from voicemem.server.rest.sessions import GivenConfig, check_outbound_change, note_outbound_change
from voicemem.server.rest.tails import JournalEntry
from voicemem.sessions.lifecycle import SessionInfo, info_of
from voicemem.store.streams import Stream

ROUTES = Routes()
CREATE_CODES = "invalid_field address_not_allowed session_exists session_erased quota_exceeded"

BODY_TIMEOUT_S = 120.0
"""For the body of a restore, which may be large."""
SLOT_WAIT_S, RETRY_AFTER_S = 30.0, 5.0
"""How long a restore waits for others before its body is read; and what `Retry-After` then says."""
WRONG_FIELDS = "The body must have a `checkpoint`, and may have a `session_id`."


class Checkpoint(Struct, frozen=True):
    """A session with its journal; `sha256` is the hash of both, independent of white space and the order of keys."""

    voicemem: Literal["checkpoint"]
    version: Literal[1]
    session: checkpoints.CheckpointSession
    events: list[JournalEntry]
    sha256: str


class ToRestore(Struct, frozen=True, forbid_unknown_fields=True):
    """A checkpoint, and the id of the new session; without one the server generates it."""

    checkpoint: Annotated[Raw, Meta(extra_json_schema={"type": "object"})]
    session_id: SessionId | None = None


class Fork(GivenConfig, frozen=True, forbid_unknown_fields=True, kw_only=True):
    """A fork: its place, the id of the new session, and changes to its configuration (a merge patch)."""

    at_turn: Natural
    session_id: SessionId | None = None


class ForkPoint(Struct, frozen=True):
    """The fields of a fork that are not configuration."""

    at_turn: Natural
    session_id: str | None = None


@ROUTES.add("GET /v1/sessions/{id}/checkpoint", "read", Checkpoint)
async def read_checkpoint(request: Request, stream: Stream) -> web.StreamResponse:
    """Read the session with its journal as one portable document, without secrets."""
    services = request.services
    pieces = checkpoints.write_checkpoint(services.store, services.read_models.off_loop, stream)
    return await stream_body(request, {"Content-Type": JSON}, pieces)


@ROUTES.add(
    "POST /v1/restore",
    "ingest",
    SessionInfo,
    ToRestore,
    f"{CREATE_CODES} invalid_checkpoint",
    status=201,
    id_field="session_id",
)
async def restore_session(request: Request) -> web.StreamResponse:
    """Create a session from a checkpoint, with the same journal, and so with the same history and context.

    The body may be at most 64 MiB. Two checkpoints are restored at a time: others wait, and are refused with 429
    after 30 s.
    """
    slots = request.services.restore_slots  # few, since each restore may hold a large body
    try:
        async with asyncio.timeout(SLOT_WAIT_S):
            await slots.acquire()
    except TimeoutError:
        raise RateLimited(RETRY_AFTER_S, "Other checkpoints are being restored; try again a little later.") from None
    try:
        return await restore_from_body(request)
    finally:
        slots.release()


async def restore_from_body(request: Request) -> web.StreamResponse:
    encoding = request.headers.get("Content-Encoding", "")
    # In a thread of the event loop's own: there are two slots, so others have threads left.
    body = await receive_body(request, checkpoints.MAX_RESTORE_BYTES, BODY_TIMEOUT_S)
    checkpoint, session_id = await asyncio.to_thread(parse_restore, body, encoding)
    check_outbound_change(request, checkpoint.config)
    grant, sessions = request.grant, request.services.sessions
    stream = await checkpoints.restore_checkpoint(sessions, grant.project, session_id, checkpoint, grant.key_id)
    note_outbound_change(request, checkpoint.config, stream)
    return json_response(info_of(stream), 201)


def parse_restore(body: bytes, encoding: str) -> tuple[checkpoints.ParsedCheckpoint, str | None]:
    pieces = Pieces(decompress(body, encoding, checkpoints.MAX_RESTORE_BYTES))
    checkpoint, session_id = None, None
    if pieces.follows(b"["):
        raise Refused("invalid_field", WRONG_FIELDS)
    try:
        for name in pieces.names():
            if name == "checkpoint":
                checkpoint = checkpoints.find_pieces(pieces)
            elif name == "session_id":
                session_id = pieces.decode(pieces.value())
            else:
                raise Refused("invalid_field", WRONG_FIELDS)
        pieces.end()
    except Unreadable:
        raise InvalidFrame("invalid_json", "The body is not UTF-8 encoded JSON.") from None
    checked_id = None if session_id is None else check_session_id(session_id)
    if checkpoint is None:
        raise Refused("invalid_field", WRONG_FIELDS)
    return checkpoints.check_pieces(checkpoint), checked_id


@ROUTES.add(
    "POST /v1/sessions/{id}/fork",
    "ingest",
    body=MergePatch(Fork),
    codes=f"{CREATE_CODES} missing_field unknown_turn session_set_aside",
    status=201,
    id_field="session_id",
    keys_only=True,
)
async def fork_session(request: Request, stream: Stream) -> SessionInfo:
    """Create a running session that remembers this one up to a turn, and continues with the next turn.

    Erasing the original does not erase its forks.
    """
    config = await read_object(request)  # and the fields of a fork, taken out next
    point = converted({name: config.pop(name) for name in ("at_turn", "session_id") if name in config}, ForkPoint)
    session_id = None if point.session_id is None else check_session_id(point.session_id)
    check_outbound_change(request, config)
    services = request.services
    key_id = request.grant.key_id
    forked = await fork(services.sessions, services.read_models, stream, point.at_turn, session_id, config, key_id)
    note_outbound_change(request, config, forked)
    return info_of(forked)
