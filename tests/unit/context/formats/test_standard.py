"""What vendors other than `custom` get."""

from __future__ import annotations

from collections.abc import Sequence

from hypothesis import given

from tests.support.samples.formats import JOKE, SEED_CALL, memories, message_of
from voicemem.context.formats import RequestFormat, request_body
from voicemem.transcript.messages import Message


def test_seed_call() -> None:
    """The first recorded call comes out as role and content of every message, and nothing else."""
    expected = [{"role": message.role, "content": message.content} for message in SEED_CALL]
    assert request_body(SEED_CALL, [], RequestFormat()) == {"messages": expected}


@given(memories)
def test_role_and_content_only_and_never_blank(memory: Sequence[Message]) -> None:
    """Every message that says something is there with two keys; one that says nothing is not there."""
    entries = request_body(memory, [], RequestFormat())["messages"]
    assert [list(entry) for entry in entries] == [["role", "content"]] * len(entries)
    assert [entry["content"] for entry in entries] == [each.content for each in memory if each.content.strip()]


def test_blank_messages_go_after_the_enrichers() -> None:
    """A reply of which nothing was heard is gone, but its note stands in what the user said next."""
    memory = [message_of("assistant", "", interrupted=True, original=JOKE), message_of("user", "Stop.")]
    (entry,) = request_body(memory, [], RequestFormat(enrich=("originals",)))["messages"]
    assert JOKE in entry["content"]


def test_top_level_names_of_custom_are_free() -> None:
    """Params may set what only a custom LLM is told, since nothing here makes it."""
    assert request_body([], [], RequestFormat(params={"turn_id": 7}))["turn_id"] == 7
