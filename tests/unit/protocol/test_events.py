"""The vocabulary of what can arrive."""

from __future__ import annotations

import re
from typing import Any, get_args

import msgspec
import pytest

from tests.support.rows import every_row
from voicemem.config.session import SessionConfig
from voicemem.protocol.events import (
    UPDATE_FIELDS,
    Event,
    IncomingEvent,
    JournaledEvent,
    ProducedEvent,
    SessionUpdate,
    update_patch,
)
from voicemem.protocol.types import MAX_DEPTH, MAX_FRAME_BYTES, MAX_INTEGER, MAX_TEXT_BYTES, SESSION_ID_PATTERN


def tags(union: Any) -> set[str]:
    """The event types of a union."""
    return {str(one.__struct_config__.tag) for one in get_args(union)}


DOCUMENTED = """
    asr llm.delta llm.done llm.error llm.cancel tts interrupt resume message tool.call tool.result metric
    session.update session.end frame
"""


def test_producers_send_the_documented_types() -> None:
    """A producer may send each type of docs/ingest.md, and nothing else."""
    assert tags(ProducedEvent) == set(DOCUMENTED.split())


def test_connections_take_opens_and_keys_as_well() -> None:
    """What opens a connection is no part of a journal."""
    assert tags(IncomingEvent) - tags(ProducedEvent) == {"session.open", "auth"}
    assert tags(JournaledEvent) & {"session.open", "auth"} == set()


def test_server_has_events_of_its_own() -> None:
    """What the server journals itself cannot be sent by a producer."""
    own = {"session.closed", "session.reopened", "session.gap", "session.forked", "refused"}
    own |= {"memory.summary", "memory.forgotten", "memory.carried", "memory.document", "memory.data"}
    own |= {"memory.added", "memory.edited", "memory.removed", "memory.extracted", "user.linked", "user.unlinked"}
    assert tags(JournaledEvent) - tags(ProducedEvent) == own
    assert own & tags(IncomingEvent) == set()


@every_row("event", get_args(IncomingEvent), ids=lambda event: str(event.__struct_config__.tag))
def test_every_event_has_the_common_fields(event: type[Event]) -> None:
    """All events may carry the same common fields, and are immutable."""
    common = {"session_id", "producer", "seq", "ts", "id", "item", "metadata"}
    assert common <= set(event.__struct_fields__)
    assert event.__struct_config__.frozen


def test_turn_id_may_be_left_out() -> None:
    """Producers without turn numbers leave it out of every event."""
    types = {str(one.__struct_config__.tag): one for one in get_args(ProducedEvent)}
    fields = {tag: {field.name: field for field in msgspec.structs.fields(one)} for tag, one in types.items()}
    in_turns = {tag for tag, known in fields.items() if "turn_id" in known}
    assert in_turns == set(DOCUMENTED.split()) - {"session.update", "session.end", "frame"}
    assert not [tag for tag in in_turns if fields[tag]["turn_id"].required]


def test_update_may_set_what_a_configuration_has() -> None:
    """A `session.update` knows every setting, and the short form of the system messages."""
    assert set(UPDATE_FIELDS) == {*SessionConfig.__struct_fields__, "system_messages"}


def test_update_patch_holds_what_was_given() -> None:
    """Null takes a setting away; what was not given is not in the patch."""
    update = SessionUpdate(labels={"a": None}, name=None, seq=3, metadata={"x": 1})
    assert update_patch(update) == {"labels": {"a": None}, "name": None}
    assert update_patch(SessionUpdate()) == {}


@pytest.mark.parametrize("name", ["a", "A-Z_09.x:y", "x" * 128, "...", ".a", "..a", "a.."])
def test_session_ids(name: str) -> None:
    """Session ids are 1 to 128 characters of a small set."""
    assert re.match(SESSION_ID_PATTERN, name)


@every_row("name", ["", "x" * 129, "a b", "a/b", "é", "a\n", "\na", "a\0", "٣", "a%20", ".", ".."])
def test_what_is_no_session_id(name: str) -> None:
    """Anything else is refused, a line feed at the end and the segments of paths included."""
    assert not re.match(SESSION_ID_PATTERN, name)


def test_limits_are_the_documented_ones() -> None:
    """Frame 1 MiB, text 256 KiB, nesting 32, integers within ±2^53."""
    limits = (MAX_FRAME_BYTES, MAX_TEXT_BYTES, MAX_DEPTH, MAX_INTEGER)
    assert limits == (1_048_576, 262_144, 32, 9_007_199_254_740_992)
