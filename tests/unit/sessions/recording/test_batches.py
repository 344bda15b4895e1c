"""The service's own producers have names of their own."""

from __future__ import annotations

from voicemem.compat.agora import agents as conversation
from voicemem.gateway import new_input
from voicemem.memory import add
from voicemem.sessions.recording.batches import RESERVED_PRODUCERS


def test_the_names_are_those_that_the_service_uses() -> None:
    """One for each way in that is none of a producer's."""
    assert {add.API_PRODUCER, new_input.GATEWAY_PRODUCER, conversation.AGORA_PRODUCER} == RESERVED_PRODUCERS
