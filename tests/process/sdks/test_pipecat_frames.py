"""The recorded RTVI messages are those of Pipecat's own types."""

from __future__ import annotations

import warnings
from typing import Any

import pytest

from tests.support.dialects import RECORDINGS, Recording
from tests.support.needs import needs_module
from voicemem.dialects.pipecat_rtvi import KINDS
from voicemem.protocol.types import JsonObject

needs_module("pipecat", "pipecat")
with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # what the framework imports is not ours
    from pipecat.processors.frameworks.rtvi import models
    from pydantic import BaseModel

CALLS = [one for one in RECORDINGS if one.dialect == "pipecat-rtvi"]


def message_types() -> dict[str, type[BaseModel]]:
    """The types of the SDK, by the `type` of their messages."""
    members = [one for one in vars(models).values() if isinstance(one, type) and issubclass(one, BaseModel)]
    named = {one.model_fields["type"].default: one for one in members if {"label", "type"} <= one.model_fields.keys()}
    return {name: one for name, one in named.items() if isinstance(name, str)}


TYPES = message_types()


def written(frame: JsonObject) -> Any:
    """A message as Pipecat's own types write it."""
    if frame["type"] == "send-text":
        return frame | {"data": models.SendTextData.model_validate(frame["data"]).model_dump(exclude_unset=True)}
    return TYPES[frame["type"]].model_validate(frame).model_dump(mode="json", exclude_none=True)


@pytest.mark.parametrize("recording", CALLS, ids=str)
def test_recorded_frames_are_the_sdks(recording: Recording) -> None:
    """Every field of a recorded message is one that Pipecat's types have."""
    for envelope in recording.envelopes():
        frame, found = envelope["frame"], written(envelope["frame"])
        data = found.get("data", {})
        assert {"label", "type", *frame} == set(found)
        assert {key: data[key] for key in frame.get("data", {})} == frame.get("data", {})


def test_every_message_of_the_sdk_is_known() -> None:
    """Each type of message is known, whether or not it says anything."""
    assert set(TYPES) <= set(KINDS)
