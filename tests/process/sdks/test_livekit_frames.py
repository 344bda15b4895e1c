"""The recorded frames of LiveKit Agents are those of LiveKit's own types."""

from __future__ import annotations

import json
import warnings
from typing import Any, get_args

import pytest

from tests.support.dialects import RECORDINGS, Recording
from tests.support.needs import needs_module
from voicemem.dialects.livekit_agents import KINDS, TRANSCRIPTION
from voicemem.protocol.types import JsonObject

needs_module("livekit.agents", "livekit")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from livekit.agents.llm import ChatContext
    from livekit.agents.voice import events
    from pydantic import TypeAdapter

CALLS = [one for one in RECORDINGS if one.dialect == "livekit-agents"]
EVENT: Any = TypeAdapter(events.AgentEvent)


def as_sent(frame: JsonObject) -> JsonObject:
    """A frame as LiveKit's own types write it."""
    if "call_id" in frame or "role" in frame or frame["type"].startswith("agent_config"):
        written = ChatContext.from_dict({"items": [frame]}).to_dict(exclude_timestamp=False)["items"][0]
    else:
        written = EVENT.validate_python(frame).model_dump_json()
    return dict(written if isinstance(written, dict) else json.loads(written))


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recorded_frames_are_the_sdks(recording: Recording) -> None:
    """Every event and item of a recorded call comes out of LiveKit's types as it went in.

    But for a tool without an output, which was null before 1.6.
    """
    for envelope in recording.envelopes():
        frame = envelope["frame"]
        if frame.get("topic") != TRANSCRIPTION and None not in frame.get("function_call_outputs", ()):
            assert as_sent(frame) == frame


def test_every_event_of_the_sdk_is_known() -> None:
    """Each type of event is known, whether or not it says anything."""
    names = {get_args(one.model_fields["type"].annotation)[0] for one in get_args(get_args(events.AgentEvent)[0])}
    assert names <= set(KINDS)
