"""Session reports of LiveKit's agents, which upload them to `LIVEKIT_OBSERVABILITY_URL` (docs/livekit-agents.md).

An upload is a form with a header in protobuf, which has the agent's facts about the call as JSON, the history, and a
recording. The first two are stored as a webhook of the dialect; the recording, traces, logs and metrics are not kept.
"""

import asyncio
from collections.abc import AsyncIterator

import orjson
from aiohttp import BodyPartReader, MultipartReader, web
from aiohttp.http_exceptions import BadHttpMessage

from voicemem.dialects.livekit_agents import LIVEKIT_AGENTS
from voicemem.errors import InvalidFrame, RateLimited, Refused, StoreUnavailable
from voicemem.protocol.types import JsonObject, Name
from voicemem.server.http.connections import connection_of
from voicemem.server.http.request import Request
from voicemem.server.http.routes import JSON, BodySpec, ResponseSpec, Routes
from voicemem.server.rest.inbound import HOOKS, HookQuery, address_of, record
from voicemem.sessions.inbound_webhooks import MAX_HOOK_BYTES, HookAddress, HookTaken

ROUTES = Routes()
UPLOAD = f"/v1/hooks/{LIVEKIT_AGENTS.name}/{{project}}/observability"
PLACES = {"project": Name, "signal": Name}
PROTOBUF, FORM, ANY = "application/x-protobuf", "multipart/form-data", "application/octet-stream"
MAX_RECORDING_BYTES, RECORDING_S = 1024**3, 600
"""The most bytes and seconds for which a recording is read, and not kept."""
ROOM_ID, JOB_ID, SUMMARY = 1, 8, 11
"""Fields of LiveKit's `MetricsRecordingHeader`."""
VARINT, SIZED, FIXED = 0, 2, {1: 8, 5: 4}
"""Protobuf's wire types, and the lengths of those with a fixed one."""
RETRY_TYPE = b"type.googleapis.com/google.rpc.RetryInfo"
UNAVAILABLE, RETRY_DELAY_S = 14, 5
MALFORMED = "An upload is a form of a header, and a chat_history unless the session records no transcript."


@ROUTES.add(
    f"POST {UPLOAD}/recordings/v0",
    None,
    {200: ResponseSpec({JSON: HookTaken})},
    BodySpec({FORM: bytes}),
    "unauthorized forbidden rate_limited malformed_frame missing_field invalid_json too_big quota_exceeded",
    tag=HOOKS,
    placeholders=PLACES,
)
async def take_report(request: Request) -> web.StreamResponse:
    """Take the session report of a LiveKit agent; the answer comes once its history is on disk.

    It must carry a token that the LiveKit API secret has signed which the project or the operator has set for
    `livekit-agents`; without one, a key with the scope `ingest`.
    """
    try:
        address = await sender_of(request)
        parts = await parts_of(request)
        async with asyncio.timeout(connection_of(request).deadlines.body):
            header, history = await read_part(parts, "header"), await read_part(parts, "chat_history")
        answer = await record(request, LIVEKIT_AGENTS, report_of(header, history), address)
        async with asyncio.timeout(RECORDING_S):
            await skip(request.content.iter_any(), MAX_RECORDING_BYTES)
        return answer
    except (StoreUnavailable, RateLimited):  # an agent tries again only if it is told so in its own form
        return web.Response(status=503, body=retry_info(), content_type=PROTOBUF)


@ROUTES.add(
    f"POST {UPLOAD}/{{signal}}/otlp/v0",
    None,
    {200: ResponseSpec({ANY: bytes})},
    BodySpec({ANY: bytes}),
    "unauthorized forbidden rate_limited too_big",
    tag=HOOKS,
    placeholders=PLACES,
)
async def ignore_signal(request: Request) -> web.StreamResponse:
    """Accept a LiveKit agent's traces, logs and metrics, of which nothing is kept."""
    await sender_of(request)
    async with asyncio.timeout(connection_of(request).deadlines.body):
        await skip(request.content.iter_any(), MAX_HOOK_BYTES)
    return web.Response(content_type=ANY)


async def sender_of(request: Request) -> HookAddress:
    """Return the project of an upload, if its sender may send it. Raises `Refused`, and `RateLimited`."""
    assert LIVEKIT_AGENTS.hook is not None
    query = HookQuery(project=request.in_path["project"])
    return await address_of(request, query, LIVEKIT_AGENTS.name, b"", LIVEKIT_AGENTS.hook.verify)


async def parts_of(request: Request) -> MultipartReader:
    if request.content_type != FORM:
        raise Refused("malformed_frame", MALFORMED)
    try:
        return await request.multipart()
    except ValueError:  # a boundary that is missing, or too long
        raise Refused("malformed_frame", MALFORMED) from None


async def read_part(parts: MultipartReader, name: str) -> bytes:
    """Read the next part of a form, which must have this name; empty if there is none. Raises `Refused`,
    `InvalidFrame`."""
    try:
        part = await parts.next()
        if part is None:
            return b""
        if not isinstance(part, BodyPartReader) or part.name != name:
            raise Refused("malformed_frame", MALFORMED)
        read = bytearray()
        while piece := await part.read_chunk():
            read += piece
            if len(read) > MAX_HOOK_BYTES:
                raise InvalidFrame("too_big", f"A part may be at most {MAX_HOOK_BYTES // 1024**2} MiB.")
    except (ValueError, BadHttpMessage, web.RequestPayloadError, ConnectionResetError):
        raise Refused("malformed_frame", MALFORMED) from None
    return bytes(read)


async def skip(pieces: AsyncIterator[bytes], most: int) -> None:
    """Read the rest, and keep nothing. Raises `InvalidFrame`."""
    size = 0
    async for piece in pieces:
        size += len(piece)
        if size > most:
            raise InvalidFrame("too_big", f"This may be at most {most // 1024**2} MiB.")


def report_of(header: bytes, history: bytes) -> bytes:
    """Return the report as JSON: the header's facts about the call, and its history. Raises `Refused`."""
    about = texts_of(header)
    try:
        summary = orjson.loads(about.get(SUMMARY, b"{}"))
        job_id = about.get(JOB_ID, b"").decode() or about.get(ROOM_ID, b"").decode()
    except ValueError:
        raise Refused("malformed_frame", MALFORMED) from None
    report: JsonObject = summary if isinstance(summary, dict) else {}
    items = orjson.Fragment(history or b'{"items": []}')
    return orjson.dumps(report | {"job_id": report.get("job_id") or job_id, "chat_history": items})


def texts_of(message: bytes) -> dict[int, bytes]:
    """Return the texts, bytes and messages in a protobuf message, by field number. Raises `Refused`."""
    texts: dict[int, bytes] = {}
    place = 0
    try:
        while place < len(message):
            key, place = varint_at(message, place)
            if key & 7 == VARINT:
                _, place = varint_at(message, place)
            elif key & 7 == SIZED:
                size, place = varint_at(message, place)
                texts[key >> 3] = message[place : place + size]
                place += size
            else:
                place += FIXED[key & 7]
    except (IndexError, KeyError):
        raise Refused("malformed_frame", MALFORMED) from None
    return texts


def varint_at(message: bytes, place: int) -> tuple[int, int]:
    """Return the number that begins at a place in a protobuf message, and where it ends."""
    value = 0
    for shift in range(0, 70, 7):
        value |= (message[place] & 0x7F) << shift
        place += 1
        if not message[place - 1] & 0x80:
            return value, place
    raise IndexError


def retry_info() -> bytes:
    """Return a `google.rpc.Status` that asks to try again later."""
    delay = field(1, field(1, RETRY_DELAY_S))
    return field(1, UNAVAILABLE) + field(3, field(1, RETRY_TYPE) + field(2, delay))


def field(number: int, value: int | bytes) -> bytes:
    """Return a field of a protobuf message; its number, value and length must be below 16, 128 and 128."""
    return bytes([number << 3, value]) if isinstance(value, int) else bytes([number << 3 | SIZED, len(value)]) + value
