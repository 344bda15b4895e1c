"""Calls as documents: one, or all for which conditions hold, one at a time (docs/exports.md)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from functools import partial
from typing import Annotated

import msgspec
from msgspec import Meta, Raw, Struct, structs

from voicemem.config.session import parse_config
from voicemem.errors import DamagedEntry, SessionQuarantined
from voicemem.exports.call import Call, CallFacts, call_of
from voicemem.exports.formats import FORMATS, FormatName, file_name
from voicemem.protocol.types import MAX_INTEGER, SessionId
from voicemem.sessions.read_models.cache import ReadModelCache
from voicemem.sessions.read_models.read_model import ReadModel
from voicemem.store.port import Store
from voicemem.store.records import LIST_BYTES, SessionFilter
from voicemem.store.streams import Stream

SESSIONS_AT_ONCE = 20
"""Sessions listed at a time: each may have a configuration of 256 KiB."""


AnyJson = Annotated[Raw, Meta(extra_json_schema={})]


class CallsBegin(Struct, frozen=True, tag="calls"):
    """The first line: in which format, and how many calls there are now for which the conditions hold."""

    format: FormatName
    sessions: int


class ExportedCall(Struct, frozen=True, tag="call"):
    """A call: a name for its file, and the whole document; a vCon is an object, everything else is a text."""

    session_id: SessionId
    file: str
    document: AnyJson


class UnreadableCall(Struct, frozen=True, tag="unreadable"):
    """A call that is stored, but cannot be read; an operator has to look at it."""

    session_id: SessionId


class CallsEnd(Struct, frozen=True, tag="end"):
    """The last line, without which an export is cut short."""

    calls: int
    unreadable: int


CallsLine = CallsBegin | ExportedCall | UnreadableCall | CallsEnd


def read_call(stream: Stream, read_model: ReadModel) -> Call:
    """A call from its row and its memory."""
    config = parse_config(stream.config)
    facts = CallFacts(
        session_id=stream.id,
        state=stream.state,
        reason=stream.reason,
        started_ms=stream.started_ms,
        ended_ms=stream.ended_ms,
        name=config.name,
        channel=config.channel,
        user_id=config.user_id,
        labels=config.labels,
    )
    return call_of(facts, read_model.timed_messages(), read_model.state)


def write_call(name: FormatName, stream: Stream, read_model: ReadModel) -> str:
    """The document of a call."""
    return FORMATS[name].write(read_call(stream, read_model))


async def export_calls(
    store: Store, read_models: ReadModelCache, wanted: SessionFilter, name: FormatName
) -> AsyncGenerator[bytes, None]:
    """The calls for which conditions hold, the newest first, each as a line of JSON. Raises `StoreUnavailable`.

    Calls that begin meanwhile may be missing. It takes no more memory than the largest call.
    """
    wanted = structs.replace(wanted, limit=SESSIONS_AT_ONCE, after=None)
    yield line_of(CallsBegin(name, await store.count_sessions(wanted, MAX_INTEGER)))
    calls = unreadable = 0
    more = True
    while more:
        page, more = await store.list_page(wanted, LIST_BYTES)
        for stream in page:
            line = await call_line(read_models, stream, name)
            if line is None:
                continue
            calls, unreadable = calls + 1, unreadable + isinstance(line, UnreadableCall)
            yield line_of(line)
        if page:
            wanted = structs.replace(wanted, after=(page[-1].started_ms, page[-1].key))
    yield line_of(CallsEnd(calls - unreadable, unreadable))


async def call_line(
    read_models: ReadModelCache, stream: Stream, name: FormatName
) -> ExportedCall | UnreadableCall | None:
    """The line of a call; None if it was erased meanwhile."""
    try:
        read_model = await read_models.load_as_of(stream.key, stream.position, background=True)
        if read_model.position < stream.position:
            return None
        make = partial(write_call, name, stream, read_model)
        document = await read_models.perform(stream.key, read_model, make, read_model.is_large, background=True)
    except (SessionQuarantined, DamagedEntry):
        return UnreadableCall(stream.id)
    json = document.strip().encode() if FORMATS[name].is_json else msgspec.json.encode(document)
    return ExportedCall(stream.id, file_name(stream.id, name), Raw(json))


def line_of(line: CallsLine) -> bytes:
    return msgspec.json.encode(line) + b"\n"
