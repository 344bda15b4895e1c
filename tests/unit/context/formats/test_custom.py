"""What the vendor `custom` gets."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import msgspec
import pytest
from hypothesis import given

from tests.support.samples.formats import SEED_CALL, memories, message_of, tool_use_of
from voicemem.context.formats import RequestFormat, request_body
from voicemem.transcript.messages import Message

CUSTOM = RequestFormat(vendor="custom", model="xxxx")


def test_seed_call() -> None:
    """The first recorded call comes out whole, with turn and time of its last message on top."""
    body = request_body(SEED_CALL, [], CUSTOM)
    top = {"turn_id": 4, "timestamp": 1678905236, "interruptable": True, "model": "xxxx"}
    assert body == {"messages": [msgspec.to_builtins(message) for message in SEED_CALL]} | top


def test_key_order() -> None:
    """Keys stand in the documented order, at the top and in a message."""
    body = request_body(SEED_CALL, [], msgspec.structs.replace(CUSTOM, params={"stream": True}))
    assert list(body) == ["messages", "turn_id", "timestamp", "interruptable", "model", "stream"]
    assert list(body["messages"][0]) == ["role", "content", "turn_id", "timestamp", "metadata"]


@given(memories)
def test_nothing_is_left_out(memory: Sequence[Message]) -> None:
    """Every message is there with every field, the blank ones too."""
    assert request_body(memory, [], CUSTOM)["messages"] == [msgspec.to_builtins(message) for message in memory]


def test_without_messages() -> None:
    """Before anything was said there is no turn and no time."""
    assert request_body([], [], CUSTOM) == {"messages": [], "interruptable": True, "model": "xxxx"}


@pytest.mark.parametrize("memory", [(), SEED_CALL])
def test_params_never_set_what_is_made_here(memory: Sequence[Message]) -> None:
    """Params cannot forge turn, time or messages, not even where these are left out."""
    forged: dict[str, Any] = {"messages": 0, "turn_id": 0, "timestamp": 0, "interruptable": 0, "model": 0}
    assert request_body(memory, [], msgspec.structs.replace(CUSTOM, params=forged)) == request_body(memory, [], CUSTOM)


def test_newest_message_counts_though_it_is_not_shown() -> None:
    """Turn and time are those of the newest message also in a style that refuses blank ones."""
    memory = [message_of("user", "Hi.", 1, 10), message_of("assistant", "", 2, 20)]
    body = request_body(memory, [], RequestFormat(vendor="custom", style="anthropic"))
    assert (body["turn_id"], body["timestamp"], len(body["messages"])) == (2, 20, 1)


def test_joined_message_has_the_fields_of_its_newest() -> None:
    """Of neighbours that a style joins, the last one's turn, time and metadata stay."""
    memory = [message_of("user", "Hi.", 1, 10, user="a"), message_of("user", "Hello?", 2, 20, user="b")]
    (entry,) = request_body(memory, [], RequestFormat(vendor="custom", alternate=True))["messages"]
    assert entry == {"role": "user", "content": "Hi.\nHello?", "turn_id": 2, "timestamp": 20, "metadata": {"user": "b"}}


def test_only_memory_has_fields() -> None:
    """Tool calls and invented messages belong to no turn of the memory."""
    body = request_body(
        [message_of("assistant", "Hi.")], [tool_use_of()], RequestFormat(vendor="custom", alternate=True, tools=True)
    )
    assert [entry["role"] for entry in body["messages"] if "turn_id" in entry] == ["assistant"]
