"""Entries of a journal as they are shown."""

from __future__ import annotations

from typing import Annotated

from msgspec import Meta, Raw, Struct

from voicemem.events import SessionId
from voicemem.server.rest.schemas import reference
from voicemem.store.base import Row

ONE_LINE = bytes.maketrans(b"\r\n", b"  ")
"""Between the tokens of JSON only: inside strings there are none."""
JournaledJson = Annotated[Raw, Meta(extra_json_schema=reference("JournaledEvent"))]


class JournalEntry(Struct, frozen=True):
    """An event at its place; those of the server's own have neither producer nor seq."""

    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    event: JournaledJson


class TailEntry(Struct, frozen=True):
    """An entry of the journal of a session that is followed."""

    session_id: SessionId
    position: int
    producer: str | None
    seq: int | None
    received_ms: int
    event: JournaledJson


def spliced(row: Row) -> Raw:
    """The event of an entry as it is in the journal, on one line."""
    return Raw(row.payload.translate(ONE_LINE))
